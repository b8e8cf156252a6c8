"""What pictures are drawn with, wherever they are seen: one palette, tinted masks, legends and scales.

Needs numpy and cv2 alone, and imports nothing of ours. Images are uint8 RGB (H, W, 3), masks uint8 (H, W) with 0 as
background, depth float32 (H, W) in mm.
"""
