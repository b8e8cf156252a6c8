"""PSI-AVA, robotic prostatectomy (Valderrama et al., MICCAI 2022).

    root/keyframes/CASE001/00012.jpg                 1 fps

The reader `grasp` reads its successor GraSP, which has masks.
"""

from shared_components.data.files.unlabelled import Unlabelled


class PsiAva(Unlabelled):
    RATE = 1.0
    FOLDERS = ("keyframes/CASE*",)
    FILE = r"keyframes/(?P<video>CASE\d+)/(?P<number>\d+)\.jpg"
