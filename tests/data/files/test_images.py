"""Files are read whole or refused by name; any frame of a video has the pixels of decoding from the start."""

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest

from shared_components.data.files import images as files
from shared_components.data.files.video import frame_count, read_frame
from tests.data.conftest import encode, write


def test_system_folders_are_not_entered_and_other_folders_must_be_readable(tmp_path):
    for name in ("release/video", "lost+found/video", "__MACOSX/release/video"):
        (tmp_path / name).mkdir(parents=True)
    seen = []
    assert list(files.video_folders(tmp_path, lambda path: seen.append(path.name) or path.name == "video")) == ["video"]
    assert seen == ["release", "video"]
    closed = Mock(side_effect=PermissionError(13, "Permission denied", str(tmp_path / "release")))
    with pytest.raises(files.DataError, match=r"release: cannot be listed \(Permission denied\)"):
        files.video_folders(tmp_path, closed)


HUGE_NPY = b"\x93NUMPY\x01\x00\x76\x00" + (
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (60000, 100000), }".ljust(117) + b"\n"
)


def test_an_array_takes_no_more_memory_than_its_file_has(tmp_path):
    (tmp_path / "a.npy").write_bytes(HUGE_NPY)
    tracemalloc.start()
    with pytest.raises(files.DataError, match=r"cannot be read as \.npy .mmap length is greater than file size"):
        files.read_npy(tmp_path / "a.npy")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


@pytest.mark.parametrize(("read", "content", "sentence"), [
    (files.read_rgb, b"404 not found", "is not a readable image"),
    (files.read_rgb, None, "cannot be opened"),  # a folder
    (files.read_rgb, np.full((4, 4, 3), 4095, np.uint16), "contains uint16 values; export the frames with 8 bits"),
    (files.read_ids, np.array([[[1, 1, 2]]], np.uint8), "is a colour image, not a mask of ids"),
    (files.read_ids, np.array([[300]], np.uint16), "contains uint16 values"),
    (files.read_colours, np.array([[1]], np.uint8), "is not an 8-bit RGB or RGBA label"),
    (files.read_npy, b"", r"cannot be read as \.npy"), (files.read_npy, b"\x93NUMPY", r"cannot be read as \.npy"),
    (files.read_npy, b"PK\x03\x04 not a zip", r"cannot be read as \.npy"),
    (files.read_npy, np.array([{"a": 1}], object), r"cannot be read as \.npy"),  # never unpickled
    (files.read_npy, np.zeros((2, 2)), "contains float64 values"),
    (files.read_npy, HUGE_NPY, r"cannot be read as \.npy"),
    (files.read_depth, np.array([[255]], np.uint8), "contains uint.* export the depth again: one channel of 16 bits"),
    (files.read_depth, np.full((1, 1, 3), 255, np.uint16),
     "contains uint.* export the depth again: one channel of 16 bits"),
])  # fmt: skip
def test_a_file_of_another_kind_is_refused_by_name(read, content, sentence, tmp_path):
    path = tmp_path / ("frame000.npy" if read is files.read_npy else "frame000.png")
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write(path, content)
    with pytest.raises(files.DataError, match=rf"frame000\.\w+: {sentence}"):
        read(path)


def test_ids_are_mapped_one_by_one_and_depth_is_read_exactly(tmp_path):
    label = np.array([[0, 160], [255, 0]], dtype=np.uint8)
    mapped = files.map_ids(label, {0: 0, 160: 1, 255: 3}, path=tmp_path, allowed="")
    assert mapped.tolist() == [[0, 1], [3, 0]] and mapped.dtype == np.uint8
    with pytest.raises(files.DataError, match=r"unknown ids \[255\]"):
        files.map_ids(label, {0: 0, 160: 1}, path=tmp_path, allowed="")
    write(tmp_path / "a.png", np.array([[0, 1, 256, 65535]], dtype=np.uint16))
    depth = files.read_depth(tmp_path / "a.png")
    assert depth.dtype == np.float32 and depth.tolist() == [[0.0, 1 / 256, 1.0, 65535 / 256]]


def test_numbers_in_names_are_read_replaced_ordered_and_spaced(tmp_path):
    assert sorted(["seq_10", "seq_2", "a", "seq_1"], key=files.natural_order) == ["a", "seq_1", "seq_2", "seq_10"]
    names = ["frame012.png", "img_07_raw.png", "000000060.png", "v2frame3.png"]
    assert [files.frame_number(tmp_path / name) for name in names] == [12, 7, 60, 3]
    for name, number, expected in (
        ("frame012.png", 7, "frame007.png"),
        ("img_07_raw.png", 112, "img_112_raw.png"),
        ("video3frame000000060.npy", 48, "video3frame000000048.npy"),
    ):
        assert files.replace_frame_number(tmp_path / name, number) == tmp_path / expected
    (tmp_path / "notes.png").touch()
    with pytest.raises(files.DataError, match=r"notes\.png: has no frame number"):
        files.files_by_number(tmp_path, "*.png")
    (tmp_path / "notes.png").rename(tmp_path / "frame1.png")
    (tmp_path / "frame001.png").touch()
    with pytest.raises(files.DataError, match="has the same frame number as"):
        files.files_by_number(tmp_path, "*.png")
    spacings = [files.spacing(numbers) for numbers in ([0, 60, 120], [3, 27, 15, 51], [5], [])]
    assert spacings == [60, 12, 0, 0]
    assert (files.whole_steps(0.2, 60.0), files.whole_steps(0.1, 30.0)) == (12, 3)  # no binary fractions
    assert files.whole_steps(0.2, 2.0) == files.whole_steps(0.01, 2.0) == 0


# ---- videos

FRAMES = 40
FORMS = {
    "b-frames.mp4": ("libx264", {"bf": "3", "g": "10", "x264-params": "scenecut=0"}),
    "open.mkv": ("libx264", {"bf": "3", "g": "8", "x264-params": "open-gop=1:scenecut=0"}),
    "one-key.mp4": ("libx264", {"g": "250"}), "mpeg4.avi": ("mpeg4", {"g": "12"}), "pictures.avi": ("mjpeg", {}),
    "mpeg2.ts": ("mpeg2video", {"bf": "2", "g": "9"}),
    "vp9.webm": ("libvpx-vp9", {"g": "9", "auto-alt-ref": "1", "lag-in-frames": "8"}),
    "raw.h264": ("libx264", {"bf": "2", "g": "10"}),
}  # fmt: skip


def encoded(path: Path, codec: str, options: dict[str, str]) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    return encode(path, [np.roll(noise, 3 * index, axis=1) for index in range(FRAMES)], codec, **options)


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", FORMS)
def test_frames_in_any_order_equal_the_frames_of_the_whole_video(name, tmp_path):
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
        images = list(threads.map(lambda frame: read_frame(*frame), wanted))
    for (path, number), image in zip(wanted, images, strict=True):
        np.testing.assert_array_equal(image, whole[path][number])


def test_another_video_of_the_same_name_is_read_anew_and_missing_frames_are_refused(tmp_path):
    path = encoded(tmp_path / "a.mp4", *FORMS["b-frames.mp4"])
    first = read_frame(path, 5)
    encoded(path, *FORMS["one-key.mp4"])
    assert (read_frame(path, 5) == decoded(path)[5]).all() and (first != read_frame(path, 5)).any()
    for number in (-1, FRAMES):
        with pytest.raises(files.DataError, match=rf"a\.mp4: has no frame {number}, but frames 0 to 39"):
            read_frame(path, number)
    with pytest.raises(files.DataError, match="cannot be opened"):
        frame_count(tmp_path / "absent.mp4")
    path.write_text("no video")
    with pytest.raises(files.DataError, match=r"a\.mp4: cannot be read \(.*; check it with another player"):
        frame_count(path)


def test_a_frame_missing_from_a_truncated_video_is_named(tmp_path):
    path = encoded(tmp_path / "a.avi", *FORMS["mpeg4.avi"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    count = frame_count(path)
    with pytest.raises(files.DataError, match=r"a\.avi: (cannot be decoded at frame|has no frame) \d+"):
        for number in range(FRAMES):
            read_frame(path, number)
    assert count <= FRAMES
