"""Depth of a rendered stereo pair equals its geometry, and the reader reads the unpacked frames."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from shared_components.commands import check_data, unpack_stereomis
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.data.stereo import StereoCamera, disparity, read_calibration, sequences, unpack
from tests.data.conftest import frame_image, run_command, write, write_yaml

HEIGHT, WIDTH, FOCAL = 120, 160, 150.0
PLANE = 50.0  # mm from the left camera
MATRIX = np.array([[FOCAL, 0, 81], [0, FOCAL, 59], [0, 0, 1]])
ROTATION = cv2.Rodrigues(np.array([0.01, -0.02, 0.015]))[0]
TRANSLATION = np.array([[-4.2], [0.05], [0.1]])


def calibration(folder: Path, translation: np.ndarray = TRANSLATION, rotation: np.ndarray = ROTATION) -> Path:
    eye = {"fc_x": FOCAL, "fc_y": FOCAL, "cc_x": MATRIX[0, 2], "cc_y": MATRIX[1, 2], "res_x": WIDTH, "res_y": HEIGHT}
    eye |= {f"kc_{place}": 0.0 for place in range(8)}
    pose = {f"R_{place}": value for place, value in enumerate(rotation.ravel())}
    pose |= {f"T_{place}": value for place, value in enumerate(translation.ravel())}
    lines = ["[StereoLeft]", *(f"{key} = {value}" for key, value in eye.items()), "[StereoRight]"]
    lines += [f"{key} = {value}" for key, value in (eye | pose).items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "StereoCalibration.ini").write_text("\n".join(lines))
    return folder / "StereoCalibration.ini"


def pair() -> tuple[np.ndarray, np.ndarray]:
    """Draw a textured plane as the left camera and, by the plane's homography, as the right one sees it."""
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    left = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 1.5), None, 0, 255, cv2.NORM_MINMAX)
    induced = MATRIX @ (ROTATION + TRANSLATION @ [[0, 0, 1]] / PLANE) @ np.linalg.inv(MATRIX)
    return left, cv2.warpPerspective(left, induced, (WIDTH, HEIGHT))


def expected_depth() -> np.ndarray:
    """Intersect the ray of each pixel of the rectified left camera with the plane."""
    turn, _, new, *_ = cv2.stereoRectify(
        MATRIX, None, MATRIX, None, (WIDTH, HEIGHT), ROTATION, TRANSLATION, flags=cv2.CALIB_ZERO_DISPARITY, alpha=0
    )
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    rays = np.linalg.inv(new[:, :3]) @ np.stack([x, y, np.ones_like(x)]).reshape(3, -1)  # (3, H, W) -> (3, H*W)
    return (PLANE / (turn.T @ rays)[2]).reshape(HEIGHT, WIDTH)


def test_the_depth_of_a_plane_equals_its_geometry_at_each_size(tmp_path):
    calibrated = read_calibration(calibration(tmp_path))
    camera = StereoCamera(calibrated, (HEIGHT, WIDTH))
    depth = camera.depth(*camera.rectified(*pair()))
    known = depth > 0
    assert depth.dtype == np.float32 and known[:, 30:].mean() > 0.8
    error = np.abs(depth - expected_depth())[known]
    assert np.median(error) < 0.6 and np.quantile(error, 0.95) < 2.0  # a quarter of a pixel is 1 mm here
    camera = StereoCamera(calibrated, (HEIGHT // 2, WIDTH // 2))
    small = (cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA) for image in pair())
    depth = camera.depth(*camera.rectified(*small))
    assert abs(np.median(depth[depth > 0]) - PLANE) < 2
    with pytest.raises(ValueError, match="an image is 160x100, and the calibration is for 160x120"):
        StereoCamera(calibrated, (100, WIDTH))


def test_points_that_only_one_camera_sees_are_unknown():
    """A square in front, 12 pixels apart in both images, hides 8 columns of the background, 4 pixels apart."""
    left, behind = np.random.default_rng(1).integers(0, 256, (2, 60, 120, 3), dtype=np.uint8)
    right = np.roll(left, -4, axis=1)
    right[:, 108:] = behind[:, 108:]
    right[20:40, 48:78] = left[20:40, 60:90]
    shift = disparity(left, right, most=15)
    assert (np.abs(shift[24:36, 64:86] - 12) < 0.5).mean() > 0.9 and (np.abs(shift[48:, 20:100] - 4) < 0.5).mean() > 0.9
    assert (shift[24:36, 53:59] > 0).mean() < 0.4


def published(folder: Path, frames: int = 4) -> Path:
    """Write a published sequence: a video of both images, and the calibration."""
    calibration(folder)
    both = cv2.cvtColor(np.vstack(pair()), cv2.COLOR_RGB2BGR)
    video = cv2.VideoWriter(str(folder / "P1.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 25, (WIDTH, 2 * HEIGHT))
    for _ in range(frames):
        video.write(both)
    video.release()
    return folder


def test_a_sequence_is_unpacked_once_and_read_as_a_site(tmp_path, capsys):
    published(tmp_path / "StereoMIS_0_0_1/P1")
    assert run_command(unpack_stereomis, tmp_path, "--every", "2") == 0
    assert "P1: 2 frames written, of a video of 25 a second" in capsys.readouterr().out
    assert unpack(tmp_path / "StereoMIS_0_0_1/P1", every=2) == (0, 25.0)
    config = {"dataset": "stereomis", "root": ".", "task": "depth", "rate": 25, "split": {"train": ["P1"]}}
    site = load_site(write_yaml(tmp_path / "site.yaml", config))
    listed = samples(site, "train", SampleSpec(("depth",), frames=2, interval=0.08, targets_of="all"))
    assert [sample.index for sample in listed] == [0, 2]
    depth = read_sample(listed[1]).targets["depth"]
    assert depth.shape == (2, HEIGHT, WIDTH) and abs(np.median(depth[depth > 0]) - PLANE) < 2
    assert run_command(check_data, site.path) == 0


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda folder: (folder / "P1.mp4").unlink(), "has 0 .mp4 files"),
    (lambda folder: (folder / "P1.mp4").write_bytes(b"no video"), "is damaged, or no video"),
    (lambda folder: calibration(folder, TRANSLATION / 1000), "cameras 0.0042.* mm apart; write T_0 to T_2 in mil"),
    (lambda folder: calibration(folder, -TRANSLATION), "right camera is not to the right of the left camera"),
    (lambda folder: (folder / "StereoCalibration.ini").write_text("[StereoLeft]\nfc_x = 1"), "no calibration of"),
])  # fmt: skip
def test_a_sequence_that_cannot_be_unpacked_is_refused_by_one_sentence(spoil, words, tmp_path):
    spoil(published(tmp_path / "P1", 1))
    with pytest.raises(DataError, match=words):
        unpack(tmp_path / "P1")
    with pytest.raises(ValueError, match=words):
        run_command(unpack_stereomis, tmp_path)


def table(folder: Path, part: str, *rows: tuple[object, object]) -> None:
    (folder / f"{part}_split.csv").write_text("start,end\n" + "".join(f"{start},{end}\n" for start, end in rows))


def unpacked(folder: Path, numbers: range) -> None:
    for number in numbers:
        write(folder / f"rectified/left/{number:06d}.png", frame_image(0))
        write(folder / f"rectified/depth/{number:06d}.png", np.full((64, 80), 256 * 50, np.uint16))


def test_frames_outside_the_published_stretches_are_neither_unpacked_nor_read(tmp_path):
    folder = published(tmp_path / "P1", 9)
    table(folder, "train", (1, 3), (6, 8))
    assert unpack(folder, every=1) == (4, 25.0)
    unpacked(folder, range(9))
    reader = find_reader("stereomis")
    assert reader.videos(tmp_path) == ["P1"] and [*reader.images(tmp_path, "P1")] == [1, 2, 6, 7]
    assert [number for number, _, _ in reader.frames(tmp_path, "P1")] == [1, 2, 6, 7]
    table(folder, "train")  # a table without rows cuts nothing
    assert len(reader.frames(tmp_path, "P1")) == 9


def test_a_sequence_with_stretches_of_both_kinds_is_two_videos(tmp_path):
    for name in ("P1", "P2_0", "P3"):
        unpacked(tmp_path / name, range(8))
    table(tmp_path / "P1", "train", (0, 3))
    table(tmp_path / "P1", "test", (5, 7))
    table(tmp_path / "P2_0", "test", (2, 4))
    reader = find_reader("stereomis")
    assert {video: [*reader.images(tmp_path, video)] for video in reader.videos(tmp_path)} == {
        "P1/train": [0, 1, 2], "P1/test": [5, 6], "P2_0": [2, 3], "P3": [0, 1, 2, 3, 4, 5, 6, 7],
    }  # fmt: skip
    calibration(tmp_path / "P1")
    assert sequences(tmp_path) == [tmp_path / "P1"]
    config = {"dataset": "stereomis", "root": ".", "task": "depth"}
    config["split"] = {"train": ["P1/train"], "test": ["P1/test"]}
    site = load_site(write_yaml(tmp_path / "site.yaml", config))
    assert [len(samples(site, split, SampleSpec(("depth",)))) for split in ("train", "test")] == [3, 2]
    with pytest.raises(SiteError, match="unknown video in split 'train' 'P1'; 'root' has: P1/train, P1/test"):
        load_site(write_yaml(tmp_path / "site.yaml", config | {"split": {"train": ["P1"]}}))
    table(tmp_path / "P2_0", "test", (9, 12))
    with pytest.raises(DataError, match="has no frames in rectified/left/, in the stretches of its tables; run 'surg"):
        reader.images(tmp_path, "P2_0")


@pytest.mark.parametrize(("rows", "words"), [
    ([(3, 3)], "from '3' to '3'"), ([(0, 2), (-1, 4)], "from '-1' to '4'"), ([("a", "b")], "from 'a' to 'b'"),
])  # fmt: skip
def test_frames_that_were_not_unpacked_and_rows_that_are_no_stretch_are_refused(rows, words, tmp_path):
    calibration(tmp_path / "P1")
    with pytest.raises(DataError, match=r"has no frames in rectified/left/; run 'surgfl unpack-stereomis"):
        find_reader("stereomis").frames(tmp_path, "P1")
    unpacked(tmp_path / "P1", range(3))
    table(tmp_path / "P1", "test", *rows)
    with pytest.raises(DataError, match=rf"test_split.csv: has a stretch {words}; copy the file again"):
        find_reader("stereomis").videos(tmp_path)
