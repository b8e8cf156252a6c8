"""Any frame of a video is read by its number with the very pixels that decoding from the start gives."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from shared_components.data.files import DataError
from shared_components.data.video import frame_count, read_frame

FRAMES = 40
FORMS = {
    "b-frames.mp4": ("libx264", {"bf": "3", "g": "10", "x264-params": "scenecut=0"}),
    "open.mkv": ("libx264", {"bf": "3", "g": "8", "x264-params": "open-gop=1:scenecut=0"}),
    "one-key.mp4": ("libx264", {"g": "250"}),
    "mpeg4.avi": ("mpeg4", {"g": "12"}),
    "pictures.avi": ("mjpeg", {}),
    "mpeg2.ts": ("mpeg2video", {"bf": "2", "g": "9"}),
    "vp9.webm": ("libvpx-vp9", {"g": "9", "auto-alt-ref": "1", "lag-in-frames": "8"}),
    "raw.h264": ("libx264", {"bf": "2", "g": "10"}),
}


def encoded(path: Path, codec: str, options: dict[str, str]) -> Path:
    """Write frames that differ, of unequal durations where the container can."""
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for index in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 3 * index, axis=1), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", FORMS)
def test_frames_in_any_order_are_those_of_the_whole_video(name, tmp_path):
    path = encoded(tmp_path / name, *FORMS[name])
    whole = decoded(path)
    order = [*range(len(whole)), *random.Random(0).sample(range(len(whole)), len(whole)), len(whole) - 1, 0]

    assert frame_count(path) == len(whole) == FRAMES
    for number in order:
        np.testing.assert_array_equal(read_frame(path, number), whole[number], err_msg=str(number))


def test_threads_and_several_videos_do_not_disturb_each_other(tmp_path):
    paths = [encoded(tmp_path / name, *FORMS[name]) for name in ("b-frames.mp4", "mpeg4.avi")]
    whole = {path: decoded(path) for path in paths}
    wanted = [(path, number) for number in range(0, FRAMES, 3) for path in paths]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda one: read_frame(*one), wanted))
    for (path, number), image in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(image, whole[path][number])


def test_another_video_of_the_same_name_is_read_anew(tmp_path):
    path = encoded(tmp_path / "a.mp4", *FORMS["b-frames.mp4"])
    first = read_frame(path, 5)
    encoded(path, *FORMS["one-key.mp4"])
    assert (read_frame(path, 5) == decoded(path)[5]).all() and (first != read_frame(path, 5)).any()


@pytest.mark.parametrize("number", [-1, FRAMES])
def test_a_frame_that_is_not_there_is_refused(number, tmp_path):
    path = encoded(tmp_path / "a.mp4", *FORMS["b-frames.mp4"])
    with pytest.raises(DataError, match=rf"a\.mp4: has no frame {number}, but frames 0 to 39"):
        read_frame(path, number)


def test_what_is_no_video_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be opened"):
        frame_count(tmp_path / "absent.mp4")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(DataError, match=r"text\.mp4: cannot be read \(.*; check it with another player"):
        frame_count(tmp_path / "text.mp4")


def test_a_video_cut_off_says_which_frame_it_cannot_give(tmp_path):
    path = encoded(tmp_path / "a.avi", *FORMS["mpeg4.avi"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)

    count = frame_count(path)
    with pytest.raises(DataError, match=r"a\.avi: (cannot be decoded at frame|has no frame) \d+"):
        for number in range(FRAMES):
            read_frame(path, number)
    assert count <= FRAMES
