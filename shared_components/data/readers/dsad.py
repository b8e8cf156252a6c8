"""DSAD, the Dresden surgical anatomy dataset (Carstens et al., Scientific Data 2023).

    root/<organ>/01/image00.png

A video is a surgery, with the images of all organs. The folder multilabel is not read: it repeats the images in
stomach.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Dsad(Unlabelled):
    FOLDERS = ("*/*",)
    FILE = r"(?!multilabel/)[^/]+/(?P<video>\d+)/image\d+\.png"
