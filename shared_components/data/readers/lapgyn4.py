"""LapGyn4, gynaecologic laparoscopy (Leibetseder et al., MMSys 2018).

    root/{Actions_on_Anatomy,Anatomical_Structures,Surgical_Actions}/<class>/c_1_v_2_f_12.jpg

A video is a case. The fourth folder, Instrument_Count, is not read: it contains unmarked images of Cholec80, and
EndoViT leaves it out.
"""

from shared_components.data.files.unlabelled import Unlabelled


class Lapgyn4(Unlabelled):
    FOLDERS = ("*/*",)
    FILE = r"(?:Actions_on_Anatomy|Anatomical_Structures|Surgical_Actions)/[^/]+/(?P<video>c_\d+)_v_\d+_f_\d+\.jpg"
