"""Draw masks, legends and scales with one colour palette.

Images are uint8 RGB (H, W, 3), masks uint8 (H, W) with 0 as background, depth float32 (H, W) in mm.
"""
