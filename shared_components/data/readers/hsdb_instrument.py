"""hSDB-instrument, laparoscopic and robotic surgery (Yoon et al., MICCAI 2021): its images alone.

    root/gastric_real_{train,val}/0000000012.jpg

Whose operation an image shows is not said: a video is a folder.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class HsdbInstrument(Unlabelled):
    PUBLISHED = 35_576
    FOLDERS = ("*",)
    FILE = r"(?P<video>\w+_real_(?:train|val))/(?P<number>\d+)\.jpg"
