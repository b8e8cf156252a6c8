"""GLENDA, gynaecologic laparoscopy with endometriosis (Leibetseder et al., MMM 2020).

    root/DS/no_pathology/frames/v_1_s_10-20/f_12.jpg
    root/DS/pathology/frames/v_2_s_10-20/f_12.jpg

A video is an operation, with all of its stretches. The release has every frame; as in EndoViT, every 25th frame of a
stretch is used, from the first one on. EndoViT leaves out a stretch's last frame, and so the stretches of one frame.
"""

from __future__ import annotations

from pathlib import Path

from shared_components.data.unlabelled import Unlabelled

_EACH = 25


class Glenda(Unlabelled):
    FOLDERS = ("DS/*/frames/*",)
    FILE = r"DS/(?:no_)?pathology/frames/(?P<video>v_\d+)[^/]*/f_\d+\.jpg"

    def used(self, folder: Path, files: list[Path]) -> list[Path]:
        return files[:-1:_EACH]
