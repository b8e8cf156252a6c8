"""Fine-tune a bundle's weights on a few labelled frames of one site, within minutes."""
