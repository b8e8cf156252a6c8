"""Depth from a stereo pair, in the steps of OpenCV's manual.

1. Rectify both images by the calibration (`cv2.stereoRectify`, alpha 0, equal principal points): a point then lies in
   the same row of both images. Depth and image belong to the rectified left camera.
2. Compute disparity by semi-global matching (Hirschmueller, TPAMI 2008; `cv2.StereoSGBM`) of grey images, 5 x 5 blocks.
3. Match in the other direction, too; if the results differ by more than a pixel, depth is unknown.
4. Depth = focal length x baseline / disparity; outside `NEAREST` to `FARTHEST`, depth is 0, unknown.

Both directions may agree on a wrong match: this depth is a measurement, not ground truth.
"""

import configparser
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from shared_components.common.atomic import write_bytes
from shared_components.common.drawing.pictures import encoded
from shared_components.data.files.images import DataError, Size, depth_values, read_text, refuse_special
from shared_components.data.readers.stereomis import CALIBRATION, DEPTH, LEFT, StereoMis, is_used, stretches

NEAREST, FARTHEST = 25.0, 250.0  # mm; a 16-bit file ends below 256
_BLOCK = 5  # pixels: side of a block
_MAX_DIFFERENCE = 1.0  # pixels between the two directions
_BASELINES = 1.0, 50.0  # mm between the cameras of an endoscope; other values have another unit
Array = np.ndarray


@dataclass(frozen=True)
class Calibration:
    """A stereo camera: matrices (3, 3) and distortions (8,) of the left and right camera, for images of `size`.

    A point x (3, 1) of the left camera is `rotation` x + `translation` in the right camera, in mm.
    """

    size: Size
    matrices: tuple[Array, Array]
    distortions: tuple[Array, Array]
    rotation: Array
    translation: Array


def read_calibration(path: Path) -> Calibration:
    """Read StereoMIS's StereoCalibration.ini; DataError if a number is missing or a distance is not in mm."""
    parser = configparser.ConfigParser()
    try:
        parser.read_string(read_text(path, 1 << 16))
        left, right = parser["StereoLeft"], parser["StereoRight"]
        size = int(float(left["res_y"])), int(float(left["res_x"]))
        matrices = _matrix(left), _matrix(right)
        distortions = _numbers(left, "kc", 8), _numbers(right, "kc", 8)
        rotation = _numbers(right, "R", 9).reshape(3, 3)  # (9,) -> (3, 3)
        translation = _numbers(right, "T", 3).reshape(3, 1)
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError, ValueError) as error:
        raise DataError(path, f"is no calibration of StereoMIS ({error})", "copy the file again") from error
    distance = float(np.linalg.norm(translation))
    if not _BASELINES[0] <= distance <= _BASELINES[1]:
        raise DataError(path, f"puts the two cameras {distance:g} mm apart", "write T_0 to T_2 in millimetres")
    return Calibration(size, matrices, distortions, rotation, translation)


def _matrix(eye: configparser.SectionProxy) -> Array:
    fx, fy, cx, cy = (float(eye[name]) for name in ("fc_x", "fc_y", "cc_x", "cc_y"))
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def _numbers(eye: configparser.SectionProxy, name: str, count: int) -> Array:
    return np.array([float(eye[f"{name}_{place}"]) for place in range(count)])


class StereoCamera:
    """Rectifies pairs of images of one size and measures their depth."""

    def __init__(self, calibration: Calibration, size: Size) -> None:
        """Scale the calibration to images of (height, width); ValueError if it does not fit them."""
        height, width = size
        scale_y, scale_x = height / calibration.size[0], width / calibration.size[1]
        if abs(scale_x / scale_y - 1) > 0.01:
            calibrated = "{1}x{0}".format(*calibration.size)
            raise ValueError(f"an image is {width}x{height}, and the calibration is for {calibrated}")
        left, right = (np.diag([scale_x, scale_y, 1.0]) @ matrix for matrix in calibration.matrices)
        turn_left, turn_right, new_left, new_right, *_ = cv2.stereoRectify(
            left, calibration.distortions[0], right, calibration.distortions[1], (width, height),
            calibration.rotation, calibration.translation, flags=cv2.CALIB_ZERO_DISPARITY, alpha=0,
        )  # fmt: skip
        eyes = zip((left, right), calibration.distortions, (turn_left, turn_right), (new_left, new_right), strict=True)
        self.maps = [cv2.initUndistortRectifyMap(*eye, (width, height), cv2.CV_32FC1) for eye in eyes]
        self.focal = float(new_left[0, 0])
        self.baseline = -float(new_right[0, 3]) / float(new_right[0, 0])
        if self.baseline <= 0 or new_right[1, 3]:
            raise ValueError("the right camera is not to the right of the left camera")

    def rectified(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Rectify a pair of images (H, W, 3)."""
        rectified = [
            cv2.remap(image, *maps, cv2.INTER_LINEAR) for image, maps in zip((left, right), self.maps, strict=True)
        ]
        return rectified[0], rectified[1]

    def depth(self, left: Array, right: Array) -> Array:
        """Measure the depth of a rectified pair (H, W, 3) as float32 (H, W) in mm, 0 for unknown."""
        reach = self.focal * self.baseline
        shift = disparity(left, right, most=reach / NEAREST)
        known = shift >= reach / FARTHEST
        return np.where(known, reach / np.where(known, shift, 1.0), 0.0).astype(np.float32)


def disparity(left: Array, right: Array, *, most: float) -> Array:
    """Measure how many pixels, at most ``most``, a point lies further left in the right image of a rectified pair.

    Images are uint8 (H, W, 3) RGB; the result is float32 (H, W), 0 for unknown.
    """
    grey = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (left, right)]
    count = 16 * max(1, -(-int(most + 1) // 16))  # OpenCV wants a multiple of 16
    forward = _match(grey[0], grey[1], count)
    backward = _match(grey[1][:, ::-1], grey[0][:, ::-1], count)[:, ::-1]  # mirrored, the right image is the left image
    W = forward.shape[1]
    columns = np.arange(W)[None] - np.rint(forward).astype(np.int64)
    matched = np.take_along_axis(backward, columns.clip(0, W - 1), axis=1)  # (H, W)
    agree = (forward > 0) & (columns >= 0) & (np.abs(forward - matched) <= _MAX_DIFFERENCE)
    return np.where(agree, forward, 0.0).astype(np.float32)


def _match(left: Array, right: Array, count: int) -> Array:
    matcher = cv2.StereoSGBM.create(
        minDisparity=0, numDisparities=count, blockSize=_BLOCK, P1=8 * _BLOCK**2, P2=32 * _BLOCK**2,
        uniquenessRatio=5, speckleWindowSize=100, speckleRange=2, mode=cv2.STEREO_SGBM_MODE_SGBM_3WAY,
    )  # fmt: skip
    sides = [np.ascontiguousarray(np.pad(image, ((0, 0), (count, 0)))) for image in (left, right)]
    return matcher.compute(*sides)[:, count:].astype(np.float32) / 16  # OpenCV returns sixteenths


def sequences(root: Path) -> list[Path]:
    """List the folders of StereoMIS's sequences under a root, unpacked or not."""
    folders = dict.fromkeys(StereoMis().folders(root).values())  # a folder with two videos once
    return [path for path in folders if (path / CALIBRATION).is_file()]


def unpack(folder: Path, *, every: int = 25, size: Size | None = None) -> tuple[int, float]:
    """Write the rectified left image and the depth of every n-th frame of a sequence's video; keep existing files.

    The video has the left image above the right image. Frames outside the stretches of the sequence's tables are
    skipped. ``size`` is the (height, width) to shrink both images to. Return the number of written frames and the
    video's frames per second. DataError for a missing or damaged file, or files that do not fit each other.
    """
    calibration, wanted = read_calibration(folder / CALIBRATION), stretches(folder)
    videos = sorted(path for path in folder.glob("*.mp4") if not path.name.startswith("."))
    if len(videos) != 1:
        raise DataError(folder, f"has {len(videos)} .mp4 files", "put the one video of the sequence there")
    refuse_special(videos[0])
    capture, written, camera = cv2.VideoCapture(str(videos[0])), 0, None
    try:
        number = 0
        while capture.grab():
            files = [folder / below / f"{number:06d}.png" for below in (LEFT, DEPTH)]
            is_read = number % every == 0 and is_used(number, wanted)
            if is_read and not all(file.is_file() for file in files):
                left, right = _read_pair(capture, videos[0], size)
                camera = camera or _camera(calibration, folder, left)
                left, right = camera.rectified(left, right)
                for file, picture in zip(files, (left, depth_values(camera.depth(left, right))), strict=True):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(file, encoded(picture, ".png"))
                written += 1
            number += 1
        rate = float(capture.get(cv2.CAP_PROP_FPS))
    finally:
        capture.release()
    if not number:
        raise DataError(videos[0], "is damaged, or no video", "copy it again")
    return written, rate


def _read_pair(capture: cv2.VideoCapture, video: Path, size: Size | None) -> tuple[Array, Array]:
    decoded, both = capture.retrieve()
    if not decoded or len(both) % 2:
        raise DataError(video, "cannot be decoded as two images, one above the other", "copy it again")
    left, right = (
        half if size is None else cv2.resize(half, size[::-1], interpolation=cv2.INTER_AREA)
        for half in np.split(cv2.cvtColor(both, cv2.COLOR_BGR2RGB), 2)  # (2H, W, 3) -> 2 of (H, W, 3)
    )
    return left, right


def _camera(calibration: Calibration, folder: Path, image: Array) -> StereoCamera:
    try:
        return StereoCamera(calibration, image.shape[:2])
    except ValueError as error:
        raise DataError(folder / CALIBRATION, f"does not fit ({error})", "copy video and calibration again") from error
