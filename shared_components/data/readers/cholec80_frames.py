"""Cholec80 without its labels, for pre-training (Twinanda et al., IEEE TMI 2017).

    root/videos/video01.mp4                          25 fps
    root/frames/video01/video01_000001.png           or 1 fps

FL-EndoViT leaves out the videos 12, 17, 27 and 52, which test segmentation.
"""

from pathlib import Path

from shared_components.data.files.unlabelled import FramesByVideo, Unlabelled


class Cholec80Frames(Unlabelled):
    FILE = r"(?:videos/(?=.*\.mp4)|frames/)(?P<video>video\d+)(?:\.mp4|/(?:.*_)?(?P<number>\d+)\.(?:png|jpg))"

    def _frames_by_video(self, root: Path) -> FramesByVideo:
        # extracted frames are preferred
        return self._in(root, "videos") | self._in(root, "frames/video*")
