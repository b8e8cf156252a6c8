"""GLENDA, gynaecologic laparoscopy with endometriosis (Leibetseder et al., MMM 2020): its images alone.

    root/DS/no_pathology/frames/v_1_s_10-20/f_12.jpg
    root/DS/pathology/frames/v_2_s_10-20/f_12.jpg

A video is an operation, with all of its stretches.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Glenda(Unlabelled):
    PUBLISHED = 1_083
    FOLDERS = ("DS/*/frames/*",)
    FILE = r"DS/(?:no_)?pathology/frames/(?P<video>v_\d+)[^/]*/f_\d+\.jpg"
