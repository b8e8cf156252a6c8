"""Fine-tuning of a bundle's weights on one site's few labelled frames, within minutes."""
