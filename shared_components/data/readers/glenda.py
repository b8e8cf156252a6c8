"""GLENDA, gynaecologic laparoscopy with endometriosis (Leibetseder et al., MMM 2020).

    root/DS/no_pathology/frames/v_1_s_10-20/f_12.jpg
    root/DS/pathology/frames/v_2_s_10-20/f_12.jpg

A video is an operation, with all of its sequences. The release has every frame. As in EndoViT, every 25th frame of a
sequence is used, without the last frame, so that sequences of one frame are left out.
"""

from pathlib import Path

from shared_components.data.files.unlabelled import Unlabelled


class Glenda(Unlabelled):
    FOLDERS = ("DS/*/frames/*",)
    FILE = r"DS/(?:no_)?pathology/frames/(?P<video>v_\d+)[^/]*/f_\d+\.jpg"

    def used(self, folder: Path, files: list[Path]) -> list[Path]:
        return files[:-1:25]
