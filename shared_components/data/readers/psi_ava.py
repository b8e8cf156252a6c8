"""PSI-AVA, robotic prostatectomy (Valderrama et al., MICCAI 2022).

    root/keyframes/CASE001/00012.jpg                 1 fps

Its successor GraSP, with masks, is `grasp`.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class PsiAva(Unlabelled):
    RATE = 1.0
    FOLDERS = ("keyframes/CASE*",)
    FILE = r"keyframes/(?P<video>CASE\d+)/(?P<number>\d+)\.jpg"
