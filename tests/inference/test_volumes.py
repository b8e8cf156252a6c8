"""Volumes for label editors: what ITK reads of them is what the model said, frame by frame, below it the frames."""

import re

import numpy as np
import pytest
import SimpleITK as sitk

from shared_components.core.task import make_task
from shared_components.inference import InferenceError, volumes
from shared_components.inference.frames import FrameStream
from shared_components.inference.results import PredictionFolder
from shared_components.inference.video import frames_of, look_at
from shared_components.inference.volumes import Volumes, label_names
from tests.inference.conftest import PARTS, SEGMENTATION, grey, write_image, write_video

RATE = 25


def numbered(number, shape):
    """A mask without symmetry that differs from frame to frame."""
    mask = np.zeros(shape, np.uint8)
    mask[: shape[0] // 3, : 4 + number] = 1 + number % 3
    return mask


def segment(source, out, **stream):
    frames = FrameStream(source, height=32, width=64, **stream)
    with PredictionFolder(out, frames, SEGMENTATION, masks="none", pictures=False, volumes=True) as folder:
        for number, item in enumerate(frames):
            folder.add(item["shot"], numbered(number, item["shot"].image.shape[:2]))
    return out / "nifti"


def array(path):
    """What ITK makes of a file: (T, H, W), or (T, H, W, 3)."""
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


@pytest.mark.parametrize("every", [1, 3])
def test_a_video_becomes_a_volume_of_labels_and_one_of_the_frames_that_were_taken(every, tmp_path):
    video = write_video(tmp_path / "op 7.mp4", grey(7), rate=RATE)
    folder = segment(video, tmp_path / "out", every=every)

    frames = [image for _, image, _ in frames_of(look_at(video), every=every)]
    np.testing.assert_array_equal(array(folder / "frames" / "op 7.nii"), frames)
    expected = [numbered(number, (48, 64)) for number in range(len(frames))]
    np.testing.assert_array_equal(array(folder / "labels" / "op 7.nii.gz"), expected)
    assert sorted(path.name for path in folder.rglob("*")) == [
        "frames", "labels", "labels.txt", "op 7.nii", "op 7.nii.gz",
    ]  # fmt: skip


def test_every_sub_folder_is_a_video_of_its_own(tmp_path):
    for name, size in (("a.png", (40, 50)), ("day-1/left/b.png", (31, 33)), ("day-1/left/c.png", (31, 33))):
        write_image(tmp_path / "frames" / name, 90, size)
    folder = segment(tmp_path / "frames", tmp_path / "out")
    assert array(folder / "labels" / "frames.nii.gz").shape == (1, 40, 50)
    np.testing.assert_array_equal(
        array(folder / "labels" / "day-1" / "left.nii.gz"), [numbered(n, (31, 33)) for n in (1, 2)]
    )
    assert array(folder / "frames" / "day-1" / "left.nii").shape == (2, 31, 33, 3)


def test_names_and_colours_are_those_that_itk_snap_reads():
    """A line as its documentation gives it: numbers, then the name in quotes."""
    line = re.compile(r'^\s*(\d+)(?:\s+(\d+)){3}\s+[01]\s+[01]\s+[01]\s+"([^"]*)"$')
    rows = [line.match(row) for row in label_names([*PARTS, 'a "quoted" name']).splitlines() if row[0] != "#"]
    assert all(rows), "a line that ITK-SNAP would not read"
    assert [(int(row[1]), row[3]) for row in rows] == [*enumerate(PARTS), (4, "a 'quoted' name")]
    colours = {tuple(row[0].split()[1:4]) for row in rows}
    assert len(colours) == len(rows) and all(0 <= int(value) <= 255 for row in colours for value in row)


def test_images_of_several_sizes_in_one_folder_are_told_apart_and_leave_nothing(tmp_path):
    for name, size in (("a.png", (40, 50)), ("b.png", (40, 51))):
        write_image(tmp_path / "frames" / name, 90, size)
    with pytest.raises(InferenceError, match=r"--nifti: b: .*frames\.nii.* frame 1 is of shape \(40, 51\)"):
        segment(tmp_path / "frames", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_video_that_fits_in_no_volume_is_refused_before_a_frame_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(volumes, "MOST_FRAMES", 3)
    stream = FrameStream(write_video(tmp_path / "a.mp4", grey(10)), height=32, width=64, every=2)
    with pytest.raises(InferenceError, match=r"a\.mp4 has 5 frames to segment, .* takes 3; .* --every 4"):
        Volumes(tmp_path / "out", stream, PARTS)


def test_a_model_of_depth_has_no_labels_to_correct(tmp_path):
    write_image(tmp_path / "frames" / "a.png")
    stream = FrameStream(tmp_path / "frames", height=32, width=64)
    with pytest.raises(InferenceError, match=r"a model of depth gives no labels .* leave --nifti out"):
        PredictionFolder(tmp_path / "out", stream, make_task("depth"), volumes=True)


def test_labels_that_were_corrected_are_never_replaced(tmp_path):
    """Whether the next run writes volumes or not; those that nobody touched make way for new ones."""
    write_image(tmp_path / "frames" / "a.png")
    segment(tmp_path / "frames", tmp_path / "out")
    path = segment(tmp_path / "frames", tmp_path / "out") / "labels" / "frames.nii.gz"
    corrected = sitk.ReadImage(str(path)) * 0 + 2
    sitk.WriteImage(corrected, str(path))
    stream = FrameStream(tmp_path / "frames", height=32, width=64)
    for again in (True, False):
        with pytest.raises(InferenceError, match=r"frames\.nii\.gz was changed after a model wrote it"):
            PredictionFolder(tmp_path / "out", stream, SEGMENTATION, volumes=again)
    assert (array(path) == 2).all()
