"""LapGyn4, gynaecologic laparoscopy (Leibetseder et al., MMSys 2018): its images alone.

    root/{Actions_on_Anatomy,Anatomical_Structures,Surgical_Actions}/<class>/c_1_v_2_f_12.jpg
    root/Instrument_Count/0/12.jpg

A video is a case; of Instrument_Count, which does not say whose images it has, it is that folder.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class Lapgyn4(Unlabelled):
    PUBLISHED = 38_192
    FOLDERS = ("*/*",)
    FILE = r"(?:[^/]+/[^/]+/(?P<video>c_\d+)_v_\d+_f_\d+|(?P<folder>Instrument_Count)/\d+/\d+)\.jpg"
