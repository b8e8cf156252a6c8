"""DSAD, the Dresden surgical anatomy dataset (Carstens et al., Scientific Data 2023): its images alone.

    root/<organ, or multilabel>/01/image00.png

A video is a surgery, with the images of all organs.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Dsad(Unlabelled):
    PUBLISHED = 13_195
    FOLDERS = ("*/*",)
    FILE = r"[^/]+/(?P<video>\d+)/image\d+\.png"
