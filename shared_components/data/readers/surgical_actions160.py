"""SurgicalActions160, gynaecologic laparoscopy (Schoeffmann et al., MTAP 2018): its clips alone.

    root/01_abdominal_access/01_02.mp4               25 frames a second

A video is a clip.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class SurgicalActions160(Unlabelled):
    RATE = 25.0
    PUBLISHED = 761
    FOLDERS = ("*",)
    FILE = r"\d+_[^/]+/(?P<video>\d+_\d+)\.mp4"
