"""Pre-training on rendered scenes that are made as it goes."""
