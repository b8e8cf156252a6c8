"""HeiCo, colorectal surgery (Maier-Hein et al., Scientific Data 2021).

    root/{Proctocolectomy,Rectal Resection,Sigmoid Resection}/1/Proctocolectomy_1.avi      25 fps

Names of files have no spaces. The middle frame of each second is used, as FFmpeg's `fps=1` of EndoViT chooses it.
"""

from shared_components.data.files.unlabelled import Unlabelled


class Heico(Unlabelled):
    RATE = 25.0
    FIRST = 12
    FOLDERS = ("*/*",)
    FILE = r"[^/]+/\d+/(?P<video>[A-Za-z]+_\d+)\.avi"
