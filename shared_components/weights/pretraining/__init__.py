"""Pre-training on scenes that are rendered as they are needed."""
