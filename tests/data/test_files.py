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


def test_a_text_file_is_not_an_image(tmp_path):
    path = tmp_path / "frame000.png"
    path.write_text("404 not found")

    with pytest.raises(DataError, match=r"frame000\.png: is not a readable image"):
        read_rgb(path)


def test_a_folder_named_like_an_image_is_refused(tmp_path):
    (tmp_path / "frame000.png").mkdir()

    with pytest.raises(DataError, match=r"frame000\.png: cannot be opened"):
        read_rgb(tmp_path / "frame000.png")


@pytest.mark.parametrize("read", [read_rgb, read_ids, read_colours, read_npy, read_depth])
def test_a_missing_file_is_named_with_what_to_do(read, tmp_path):
    with pytest.raises(DataError) as error:
        read(tmp_path / "absent")

    assert str(error.value) == (
        f"{tmp_path / 'absent'}: file is missing; put it back or take the video out of the split"
    )
    assert (error.value.file, error.value.what) == (tmp_path / "absent", "file is missing")


def test_a_frame_is_read_in_rgb_order(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[[10, 20, 30]]], dtype=np.uint8))

    assert read_rgb(tmp_path / "a.png").tolist() == [[[10, 20, 30]]]


def test_a_grey_frame_is_read_as_three_channels(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[7]], dtype=np.uint8))

    assert read_rgb(tmp_path / "a.png").tolist() == [[[7, 7, 7]]]


def test_a_colour_image_is_no_mask_of_ids(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[[1, 1, 2]]], dtype=np.uint8))

    with pytest.raises(DataError, match="is a colour image, not a mask of ids"):
        read_ids(tmp_path / "a.png")


def test_a_grey_image_is_no_colour_coded_label(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[1]], dtype=np.uint8))

    with pytest.raises(DataError, match="is not an 8-bit RGB or RGBA label"):
        read_colours(tmp_path / "a.png")


def test_a_mask_of_16_bits_is_refused(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[300]], dtype=np.uint16))

    with pytest.raises(DataError, match="holds uint16 values"):
        read_ids(tmp_path / "a.png")


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(DataError, match=r"a\.npy: cannot be read as \.npy"):
        read_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 not a zip"])
def test_a_damaged_array_is_refused(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)

    with pytest.raises(DataError, match=r"a\.npy: cannot be read as \.npy"):
        read_npy(tmp_path / "a.npy")


def test_a_float_array_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))

    with pytest.raises(DataError, match="holds float64 values"):
        read_npy(tmp_path / "a.npy")


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


def test_a_name_without_a_number_is_refused(tmp_path):
    (tmp_path / "notes.png").touch()

    with pytest.raises(DataError, match=r"notes\.png: has no frame number"):
        by_number(tmp_path, "*.png")


def test_hidden_files_are_not_frames(tmp_path):
    for name in ("frame001.png", "._frame001.png"):
        (tmp_path / name).touch()

    assert by_number(tmp_path, "*.png") == {1: tmp_path / "frame001.png"}


def test_two_files_of_one_number_are_refused(tmp_path):
    for name in ("frame1.png", "frame001.png"):
        (tmp_path / name).touch()

    with pytest.raises(DataError, match="has the same frame number as"):
        by_number(tmp_path, "*.png")


def test_depth_is_read_exactly(tmp_path, layouts):
    layouts.write(tmp_path / "a.png", np.array([[0, 1, 256, 65535]], dtype=np.uint16))

    depth = read_depth(tmp_path / "a.png")

    assert depth.dtype == np.float32
    assert depth.tolist() == [[0.0, 1 / 256, 1.0, 65535 / 256]]


@pytest.mark.parametrize("clipped", [np.array([[255]], dtype=np.uint8), np.full((1, 1, 3), 255, dtype=np.uint16)])
def test_depth_of_8_bits_or_several_channels_is_refused_and_never_clipped(clipped, tmp_path, layouts):
    layouts.write(tmp_path / "a.png", clipped)

    with pytest.raises(DataError, match=r"a\.png: holds uint.* export the depth again: one channel of 16 bits"):
        read_depth(tmp_path / "a.png")


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
