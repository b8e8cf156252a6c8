"""PSI-AVA, robotic prostatectomy (Valderrama et al., MICCAI 2022): its images alone.

    root/keyframes/CASE001/00012.jpg                 one a second

Its successor GraSP, with masks, is `grasp`.
"""

from __future__ import annotations

from shared_components.data.unlabelled import Unlabelled


class PsiAva(Unlabelled):
    RATE = 1.0
    FOLDERS = ("keyframes/CASE*",)
    FILE = r"keyframes/(?P<video>CASE\d+)/(?P<number>\d+)\.jpg"
