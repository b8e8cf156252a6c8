"""Files are read whole or refused by name."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from shared_components.data.files import (
    DataError,
    by_number,
    frame_number,
    map_ids,
    natural_order,
    read_colours,
    read_depth,
    read_ids,
    read_npy,
    read_rgb,
    spacing,
    with_number,
)
from tests.data.conftest import write


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.98])
def test_a_file_cut_short_is_refused_wherever_it_is_cut(ending, share, tmp_path):
    path = tmp_path / f"frame000.{ending}"
    noise = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), noise)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(DataError, match=rf"frame000\.{ending}: is not a readable image"):
        read_rgb(path)


@pytest.mark.parametrize("read", [read_rgb, read_ids, read_colours, read_npy, read_depth])
def test_a_missing_file_is_named_with_what_to_do(read, tmp_path):
    with pytest.raises(DataError) as error:
        read(tmp_path / "absent")

    assert str(error.value) == (
        f"{tmp_path / 'absent'}: file is missing; put it back or take the video out of the split"
    )
    assert (error.value.file, error.value.what) == (tmp_path / "absent", "file is missing")


@pytest.mark.parametrize(("pixel", "expected"), [([10, 20, 30], [10, 20, 30]), (7, [7, 7, 7])], ids=["colour", "grey"])
def test_a_frame_is_read_as_three_channels_in_rgb_order(pixel, expected, tmp_path):
    write(tmp_path / "a.png", np.array([[pixel]], dtype=np.uint8))
    assert read_rgb(tmp_path / "a.png").tolist() == [[expected]]


@pytest.mark.parametrize(
    ("read", "content", "sentence"),
    [
        (read_rgb, b"404 not found", "is not a readable image"),
        (read_rgb, None, "cannot be opened"),
        (read_ids, np.array([[[1, 1, 2]]], np.uint8), "is a colour image, not a mask of ids"),
        (read_ids, np.array([[300]], np.uint16), "holds uint16 values"),
        (read_colours, np.array([[1]], np.uint8), "is not an 8-bit RGB or RGBA label"),
        (read_npy, b"", r"cannot be read as \.npy"),
        (read_npy, b"\x93NUMPY", r"cannot be read as \.npy"),
        (read_npy, b"PK\x03\x04 not a zip", r"cannot be read as \.npy"),
        (read_npy, np.array([{"a": 1}], object), r"cannot be read as \.npy"),  # never unpickled
        (read_npy, np.zeros((2, 2)), "holds float64 values"),
        (read_depth, np.array([[255]], np.uint8), "holds uint.* export the depth again: one channel of 16 bits"),
        (read_depth, np.full((1, 1, 3), 255, np.uint16), "holds uint.* export the depth again: one channel of 16 bits"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(read, content, sentence, tmp_path):
    """None is a folder."""
    path = tmp_path / ("frame000.npy" if read is read_npy else "frame000.png")
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write(path, content)
    with pytest.raises(DataError, match=rf"frame000\.\w+: {sentence}"):
        read(path)


def test_ids_are_mapped_one_by_one(tmp_path):
    label = np.array([[0, 160], [70, 0]], dtype=np.uint8)

    mapped = map_ids(label, {0: 0, 160: 1, 70: 2}, path=tmp_path, allowed="")

    assert mapped.tolist() == [[0, 1], [2, 0]]
    assert mapped.dtype == np.uint8


def test_an_id_of_255_is_unknown_unless_the_table_has_it(tmp_path):
    label = np.array([[255]], dtype=np.uint8)

    assert map_ids(label, {255: 3}, path=tmp_path, allowed="").tolist() == [[3]]
    with pytest.raises(DataError, match=r"unknown ids \[255\]"):
        map_ids(label, {0: 0}, path=tmp_path, allowed="")


def test_natural_order_puts_2_before_10():
    assert sorted(["seq_10", "seq_2", "a", "seq_1"], key=natural_order) == ["a", "seq_1", "seq_2", "seq_10"]


def test_the_last_number_in_a_name_is_the_frames(tmp_path):
    names = ["frame012.png", "img_07_raw.png", "000000060.png", "v2frame3.png"]

    assert [frame_number(tmp_path / name) for name in names] == [12, 7, 60, 3]


def test_hidden_files_are_not_frames(tmp_path):
    for name in ("frame001.png", "._frame001.png"):
        (tmp_path / name).touch()
    assert by_number(tmp_path, "*.png") == {1: tmp_path / "frame001.png"}


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["notes.png"], r"notes\.png: has no frame number"),
        (["frame1.png", "frame001.png"], "has the same frame number as"),
    ],
)
def test_files_without_a_number_of_their_own_are_refused(names, sentence, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=sentence):
        by_number(tmp_path, "*.png")


def test_depth_is_read_exactly(tmp_path):
    write(tmp_path / "a.png", np.array([[0, 1, 256, 65535]], dtype=np.uint16))

    depth = read_depth(tmp_path / "a.png")

    assert depth.dtype == np.float32
    assert depth.tolist() == [[0.0, 1 / 256, 1.0, 65535 / 256]]


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("frame012.png", 7, "frame007.png"),
        ("img_07_raw.png", 112, "img_112_raw.png"),
        ("video3frame000000060.npy", 48, "video3frame000000048.npy"),
    ],
)
def test_a_name_is_given_another_frame_number(name, number, expected, tmp_path):
    assert with_number(tmp_path / name, number) == tmp_path / expected


def test_the_spacing_of_numbers_is_the_largest_step_of_all_of_them():
    assert spacing([0, 60, 120]) == 60
    assert spacing([3, 27, 15, 51]) == 12
    assert spacing([5]) == spacing([]) == 0
