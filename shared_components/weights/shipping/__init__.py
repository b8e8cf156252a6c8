"""Convert trained weights to half precision, score them on held-out data and write their record for a bundle."""
