"""GLENDA, gynaecologic laparoscopy with endometriosis (Leibetseder et al., MMM 2020): its images alone.

    root/DS/no_pathology/frames/v_1_s_10-20/f_12.jpg
    root/DS/pathology/frames/v_2_s_10-20/f_12.jpg

A video is an operation, with all of its stretches, of which there is every frame: as EndoViT counts them, every 25th is
used, from the first one on. EndoViT leaves a stretch's last frame out, and with it the stretches of a single frame.
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
