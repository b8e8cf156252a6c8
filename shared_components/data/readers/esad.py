"""ESAD, robotic prostatectomy (Bawa et al., arXiv 2104.03178): its images alone.

    root/{train/set1,train/set2,val/obj,test}/RARP1_frame_12.jpg     one a second

A video is an operation, with the images of all sets.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Esad(Unlabelled):
    PUBLISHED = 43_456
    FOLDERS = ("[!.]*/**/",)
    FILE = r"(?:train/set\d|val/obj|test)/(?P<video>RARP\d+)_frame_\d+\.jpg"
