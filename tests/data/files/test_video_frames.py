"""Players and this library show the same frames of a video, whatever its container counts or hides."""

import random
import struct
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from shared_components.data.files.images import DataError
from shared_components.data.files.video import frame_count, read_frame
from shared_components.inference.video import frames_of, look_at
from tests.data.conftest import encode

COUNT, STEP = 30, 8
KEEP_TIMES = {"use_editlist": "1", "avoid_negative_ts": "disabled"}


def write_numbers(path: Path, codec: str = "libx264", **options: object) -> Path:
    return encode(path, [np.full((64, 96, 3), STEP * number, np.uint8) for number in range(COUNT)], codec, **options)


def copy_packets(source: Path, target: Path, *, later: float = 0.0, first: int = 0, **options: str) -> Path:
    """Copy the packets from the one of this number on, so many seconds later."""
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(packet for packet in old.demux(video=0) if packet.dts is not None):
            if number >= first:
                shift = round(later / packet.time_base)
                packet.stream, packet.pts, packet.dts = stream, packet.pts + shift, packet.dts + shift
                new.mux(packet)
    return target


def second_key(path: Path) -> int:
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.dts is not None]
    return [number for number, packet in enumerate(packets) if packet.is_keyframe][1]


def edit(path: Path, *entries: tuple[int, int]) -> Path:
    """Replace the edit list of an MP4 by (duration in ms, media time or -1) entries."""
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 8
    assert struct.unpack_from(">I", data, place)[0] >= len(entries) and not data[place - 4]
    struct.pack_into(">I", data, place, len(entries))
    for number, (duration, start) in enumerate(entries):
        struct.pack_into(">IiI", data, place + 4 + 12 * number, duration, start, 1 << 16)
    path.write_bytes(data)
    return path


def number_of(image: np.ndarray) -> int:
    return round(float(np.median(image)) / STEP)


def assert_frames(path: Path, expected: list[int]) -> None:
    """Compare all frames, in order, at random and streamed, and OpenCV's number of frames."""
    assert frame_count(path) == len(expected)
    order = list(range(len(expected)))
    assert [number_of(read_frame(path, place)) for place in order] == expected
    random.Random(0).shuffle(order)
    assert {place: number_of(read_frame(path, place)) for place in order} == dict(enumerate(expected))
    assert [number_of(image) for _, image, _ in frames_of(look_at(path))] == expected
    capture = cv2.VideoCapture(str(path))
    assert sum(1 for _ in iter(lambda: capture.read()[0], False)) == len(expected)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("b_frames", [0, 3])
@pytest.mark.parametrize("key_every", [10, 30])
def test_frames_before_the_start_of_an_edit_list_are_not_counted(codec, b_frames, key_every, tmp_path, caplog):
    x265 = {"x265-params": f"bframes={b_frames}:keyint={key_every}:log-level=none"}
    options = {"bf": b_frames, "g": key_every} if codec == "libx264" else x265
    whole = write_numbers(tmp_path / "whole.mp4", codec, **options)
    path = copy_packets(whole, tmp_path / "trimmed.mp4", later=-0.2, **KEEP_TIMES)
    assert_frames(path, list(range(5, COUNT)))
    assert "ends after" not in caplog.text


@pytest.mark.parametrize(("entries", "expected"), [
    ([(600, 2560)], range(5, 20)), ([(1200, 0)], range(30)), ([(400, -1), (800, 2560)], range(5, 25)),
    ([(400, 0), (400, 10240)], [*range(10), *range(20, 30)]), ([(400, 10240), (400, 0)], [*range(20, 30), *range(10)]),
], ids=["end", "all", "empty edit first", "two pieces", "pieces in another order"])  # fmt: skip
def test_edit_lists_of_other_kinds_show_what_they_name(entries, expected, tmp_path):
    whole = write_numbers(tmp_path / "whole.mp4", bf=0, g=10)
    shift = -0.2 if len(entries) == 1 else 0.4  # the copy has one entry, or two
    path = copy_packets(whole, tmp_path / "edited.mp4", later=shift, **KEEP_TIMES)
    assert_frames(edit(path, *entries), list(expected))


@pytest.mark.parametrize("ending", ["mkv", "ts"])
def test_leading_pictures_that_cannot_be_decoded_are_no_frames(ending, tmp_path):
    """A cut at an open key frame of HEVC leaves pictures in the file that need frames before it."""
    params = "open-gop=1:keyint=10:min-keyint=10:bframes=3:log-level=none"
    whole = write_numbers(tmp_path / "whole.mp4", "libx265", **{"x265-params": params})
    path = copy_packets(whole, tmp_path / f"cut.{ending}", first=second_key(whole))
    assert_frames(path, list(range(10, COUNT)))


def test_frames_of_avi_stored_in_another_order_keep_their_numbers_and_joined_recordings_their_order(tmp_path):
    assert_frames(write_numbers(tmp_path / "a.avi", bf=2), list(range(COUNT)))
    path = write_numbers(tmp_path / "a.ts", bf=2)
    path.write_bytes(2 * path.read_bytes())
    assert_frames(path, 2 * list(range(COUNT)))


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9"])
def test_hidden_frames_are_not_counted(codec, tmp_path):
    path = write_numbers(tmp_path / "a.webm", codec, **{"auto-alt-ref": 1, "lag-in-frames": 16, "b": "4M"})
    assert_frames(path, list(range(COUNT)))


def test_a_trimmed_video_that_is_also_cut_off_says_so(tmp_path):
    whole = write_numbers(tmp_path / "whole.mp4", bf=0, g=10)
    path = copy_packets(whole, tmp_path / "a.mp4", later=-0.2, movflags="+faststart", **KEEP_TIMES)
    data = path.read_bytes()
    start = data.index(b"mdat")
    path.write_bytes(data[: start + (len(data) - start) * 7 // 10])
    assert frame_count(path) == 25
    assert number_of(read_frame(path, 0)) == 5
    with pytest.raises(DataError, match=r"has no frame 24: it ends after 9 of the 25 frames that it announces"):
        read_frame(path, 24)
