"""Tasks (segmentation, depth, phases, ...), one per file."""
