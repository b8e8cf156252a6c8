"""SAR-RARP50: which frames miss a mask, and how its videos are unpacked to frames and clips."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.commands import unpack_sar_rarp50
from shared_components.data.files import DataError
from shared_components.data.readers import find_reader
from shared_components.data.readers.sar_rarp50 import unpack
from tests.data.conftest import canonical_mask, frame_image, run_command, write, write_sar_rarp50

READER = find_reader("sar_rarp50")


def labelled(root) -> list[int]:
    """Return the numbers of the frames of video_1 that have or miss a mask."""
    return [number for number, _, _ in READER.frames(root, "video_1")]


def test_everything_but_the_tool_is_background(tmp_path):
    write(tmp_path / "000000000.png", np.arange(10, dtype=np.uint8)[None])
    parts = READER.read_target("label", (tmp_path / "000000000.png",))
    assert parts.tolist() == [[0, 3, 2, 1, 0, 0, 0, 0, 0, 0]]


def test_no_mask_is_missed_between_the_labelled_frames(tmp_path):
    write_sar_rarp50(tmp_path, 1, 3)
    write(tmp_path / "train1/video_1/rgb/000000180.png", frame_image(3))  # after the last mask
    assert labelled(tmp_path) == [0, 60, 120]


def test_the_last_mask_is_missed_where_frames_are_at_1_hz(tmp_path):
    for number in (0, 60, 120):
        write(tmp_path / f"video_1/rgb/{number:09d}.png", frame_image(0))
        write(tmp_path / f"video_1/segmentation/{number:09d}.png", canonical_mask(0))
    (tmp_path / "video_1/segmentation/000000120.png").unlink()
    assert labelled(tmp_path) == [0, 60, 120]


def test_a_video_has_to_be_unpacked_once(packed_video):
    with pytest.raises(DataError, match=r"video_1: has no frames in rgb/; run 'surgfl unpack-sar-rarp50"):
        labelled(packed_video.parent)


@pytest.mark.parametrize(
    ("clip", "expected"), [({}, [0, 60, 120]), ({"frames": 4, "interval": 0.2}, [0, 24, 36, 48, 60, 84, 96, 108, 120])]
)
def test_unpacking_writes_exactly_the_labelled_frames_and_those_of_their_clips(clip, expected, packed_video):
    assert unpack(packed_video, **clip) == len(expected)
    assert unpack(packed_video, **clip) == 0

    found = READER.images(packed_video.parent, "video_1")
    assert list(found) == expected and labelled(packed_video.parent) == [0, 60, 120]
    for number, path in found.items():
        assert abs(READER.read_image(path)[..., 1].mean() - 2 * number) < 1  # frames differ by 2


def test_unpacking_for_clips_misses_no_mask_at_the_start(packed_video):
    (packed_video / "segmentation/000000000.png").unlink()
    unpack(packed_video, frames=3, interval=0.5)
    assert sorted(READER.images(packed_video.parent, "video_1")) == [30, 60, 90, 120]
    assert labelled(packed_video.parent) == [60, 120]


def test_unpacking_at_an_interval_that_60_frames_a_second_cannot_give_is_refused(packed_video):
    with pytest.raises(ValueError, match=r"0\.17 s is no whole number of frames at 60 a second"):
        unpack(packed_video, frames=4, interval=0.17)


def test_unpacking_a_video_that_ends_too_early_is_refused(packed_video):
    write(packed_video / "segmentation/000000180.png", canonical_mask(0))
    with pytest.raises(DataError, match=r"video_left\.avi: is missing, damaged or ends before frame"):
        unpack(packed_video)


def test_the_command_refuses_a_folder_without_videos(tmp_path, capsys):
    assert run_command(unpack_sar_rarp50, tmp_path) == 1
    assert "holds no video_* folders" in capsys.readouterr().err
