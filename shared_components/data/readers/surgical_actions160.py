"""SurgicalActions160, gynaecologic laparoscopy (Schoeffmann et al., MTAP 2018).

    root/01_abdominal_access/01_02.mp4               25 fps

A video is a clip. The middle frame of each second is used, as FFmpeg's `fps=1` of EndoViT chooses it.
"""

from shared_components.data.files.unlabelled import Unlabelled


class SurgicalActions160(Unlabelled):
    RATE = 25.0
    FIRST = 12
    FOLDERS = ("*",)
    FILE = r"\d+_[^/]+/(?P<video>\d+_\d+)\.mp4"
