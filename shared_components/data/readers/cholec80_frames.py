"""Cholec80 without its labels, for pre-training (Twinanda et al., IEEE TMI 2017).

    root/videos/video01.mp4                          25 frames a second, or
    root/frames/video01/video01_000001.png           extracted, one frame a second

What is published of Endo700k leaves out the videos 12, 17, 27 and 52, by which segmentation is tested.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Cholec80Frames(Unlabelled):
    PUBLISHED = 178_129
    FOLDERS = ("videos", "frames/video*")
    FILE = r"(?:videos/(?=.*\.mp4)|frames/)(?P<video>video\d+)(?:\.mp4|/(?:.*_)?(?P<number>\d+)\.(?:png|jpg))"
