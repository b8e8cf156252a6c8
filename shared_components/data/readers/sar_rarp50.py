"""SAR-RARP50, robotic prostatectomy: part masks (Psychogyios et al., arXiv 2401.00496).

    root[/train1|train2|test]/video_*/rgb/000000060.png              from video_left.avi, 60 fps
    root[/train1|train2|test]/video_*/segmentation/000000060.png     1 fps

A file's number is the frame's number in the video. Masks have ids in one or three equal channels: 1 tool clasper, 2
tool wrist, 3 tool shaft; 4 to 9 (needle, thread, suction tool, needle holder, clamps, catheter) are background here.
"""

from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType

import cv2

from shared_components.data.files.classes import SUCTION
from shared_components.data.files.images import DataError, files_by_number, refuse_special, video_folders, whole_steps
from shared_components.data.readers import Listing, Reader

_LABEL_STEP = 60  # 1 Hz at SarRarp50.RATE


class SarRarp50(Reader):
    CLASS_MAP = "parts"
    RATE = 60.0
    IDS = MappingProxyType({0: 0, 1: 3, 2: 2, 3: 1, **dict.fromkeys(range(4, 10), 0), 6: SUCTION})
    ALLOWED = "SAR-RARP50 ids are 0 to 9 (1 clasper, 2 wrist, 3 shaft)"

    def folders(self, root: Path) -> dict[str, Path]:
        def is_video(path: Path) -> bool:
            return path.name.startswith("video") and any((path / part).is_dir() for part in ("rgb", "segmentation"))

        return video_folders(root, is_video)

    def frames(self, root: Path, video: str) -> Listing:
        folder, images = self.folders(root)[video], self.images(root, video)
        masks = files_by_number(folder / "segmentation", "*.png")
        return [
            (number, folder / "rgb" / f"{number:09d}.png", {"label": (folder / "segmentation" / f"{number:09d}.png",)})
            for number in sorted(masks.keys() | _missing_masks(images, masks))
        ]

    def images(self, root: Path, video: str) -> dict[int, Path]:
        folder = self.folders(root)[video]
        images = files_by_number(folder / "rgb", "*.png")
        if not images:
            raise DataError(folder, "has no frames in rgb/", f"run 'surgfl unpack-sar-rarp50 {root}' once")
        return images


def unpack(folder: Path, *, frames: int = 1, interval: float = 0.0) -> int:
    """Write missing labelled frames of a folder's video_left.avi to rgb/; return the number of written frames.

    The video is decoded from its start, since seeking is not exact to the frame. The earlier frames of each clip of
    ``frames`` frames, ``interval`` seconds apart, are written, too. ValueError if the interval is no whole number of
    frames; DataError if the video cannot be read, or ends before the last labelled frame.
    """
    video = folder / "video_left.avi"
    masks = files_by_number(folder / "segmentation", "*.png")
    wanted = masks.keys() | _history(masks, frames, interval)
    wanted -= files_by_number(folder / "rgb", "*.png").keys()
    if video.exists():
        refuse_special(video)
    capture = cv2.VideoCapture(str(video))
    try:
        for number in range(max(wanted, default=-1) + 1):
            if not capture.grab():
                raise DataError(video, f"is missing, damaged or ends before frame {number}", "copy it again")
            if number in wanted:
                _write_frame(capture, folder / "rgb" / f"{number:09d}.png")
    finally:
        capture.release()
    return len(wanted)


def video_paths(root: Path) -> list[Path]:
    """List the video folders under a root, unpacked or not."""
    return list(SarRarp50().folders(root).values())


def _write_frame(capture: cv2.VideoCapture, path: Path) -> None:
    decoded, frame = capture.retrieve()
    if not decoded:
        raise DataError(path, "cannot be decoded from video_left.avi", "copy the video again")
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".part")
    cv2.imencode(".png", frame)[1].tofile(unfinished)
    unfinished.replace(path)


def _history(masks: Collection[int], frames: int, interval: float) -> set[int]:
    """Return the numbers of the earlier frames of clips, without frames on the label grid."""
    step = whole_steps(interval, SarRarp50.RATE)
    if frames > 1 and step < 1:
        rate = f"{SarRarp50.RATE:g} a second"
        raise ValueError(f"{interval:g} s is no whole number of frames at {rate}; ask for another one")
    wanted = {number - back * step for number in masks for back in range(1, frames)}
    return {number for number in wanted if number >= 0 and number % _LABEL_STEP}


def _missing_masks(images: dict[int, Path], masks: dict[int, Path]) -> set[int]:
    """Return the frames on the 1 Hz grid without a mask, up to the last mask; all of them if rgb/ has only 1 Hz."""
    on_grid = {number for number in images if number % _LABEL_STEP == 0}
    end = max(images if len(on_grid) == len(images) else masks, default=0)
    return {number for number in on_grid if number <= end} - masks.keys()
