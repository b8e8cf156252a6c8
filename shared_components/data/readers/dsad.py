"""DSAD, the Dresden surgical anatomy dataset (Carstens et al., Scientific Data 2023).

    root/<organ>/01/image00.png

A video is a surgery, with the images of all organs. The folder multilabel repeats images of stomach and is not read.
"""

from shared_components.data.files.unlabelled import Unlabelled


class Dsad(Unlabelled):
    FOLDERS = ("*/*",)
    FILE = r"(?!multilabel/)[^/]+/(?P<video>\d+)/image\d+\.png"
