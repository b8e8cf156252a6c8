"""hSDB-instrument, laparoscopic and robotic surgery (Yoon et al., MICCAI 2021): gastrectomy images only.

    root/gastric_real_{train,val}/0000000012.jpg

The release does not separate operations, so a video is a folder. The folders of cholecystectomies are not read: they
show videos of Cholec80, and EndoViT leaves them out.
"""

from shared_components.data.files.unlabelled import Unlabelled


class HsdbInstrument(Unlabelled):
    FOLDERS = ("*",)
    FILE = r"(?P<video>gastric_real_(?:train|val))/(?P<number>\d+)\.jpg"
