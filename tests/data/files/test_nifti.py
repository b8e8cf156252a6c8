"""Label volumes are read as ITK-SNAP and 3D Slicer show and save them; SimpleITK (ITK) is the reference."""

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from nibabel import orientations

from shared_components.data.files import nifti
from shared_components.data.files.images import DataError
from tests.data.volumes import read_labels, write_labels

T, H, W = 5, 4, 6
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@pytest.fixture
def masks() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 9, (T, H, W), dtype=np.uint8)


def saved(path: Path, array: np.ndarray, affine: np.ndarray = LPS, *, form: type = nib.Nifti1Image) -> Path:
    nib.save(form(array, affine), path)
    return path


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_itk_sees_labels_and_colours_upright_and_any_picture_is_read_by_number(name, masks, tmp_path):
    path = tmp_path / name
    write_labels(path, masks)
    seen = sitk.ReadImage(str(path))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(seen), masks)  # axes (t, y, x)
    assert seen.GetDirection() == (1, 0, 0, 0, 1, 0, 0, 0, 1)  # to the left, to the back, to the head: as shown
    assert seen.GetSpacing() == (1, 1, 1) and seen.GetPixelIDTypeAsString() == "8-bit unsigned integer"
    assert list(tmp_path.iterdir()) == [path]
    array = np.asarray(nib.load(path).dataobj)
    assert array.shape == (W, H, T) and array[5, 0, 2] == masks[2, 0, 5]
    np.testing.assert_array_equal(read_labels(path), masks)
    assert nifti.label_shape(path) == (T, H, W) and nifti.has_written_axes(path)
    path = tmp_path / name
    frames = pictures(path)
    seen = sitk.ReadImage(str(path))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(seen), frames)
    assert seen.GetNumberOfComponentsPerPixel() == 3 and seen.GetSpacing() == (1, 1, 1)
    assert seen.GetDirection() == (1, 0, 0, 0, 1, 0, 0, 0, 1)
    assert nifti.picture_count(path) == T
    for place in (3, 0, T - 1):
        np.testing.assert_array_equal(nifti.read_picture(path, place), frames[place])


@pytest.mark.parametrize("spatial", ["nii", "nii.gz"])
@pytest.mark.parametrize("axes", ["RAS", "LAS", "LPI", "SPL", "ARS", "PIR", "LPS"])
def test_a_volume_saved_with_other_axes_is_read_the_same(axes, spatial, masks, tmp_path):
    write_labels(tmp_path / "written.nii", masks)
    written = nib.load(tmp_path / "written.nii")
    turn = orientations.ornt_transform(orientations.io_orientation(written.affine), orientations.axcodes2ornt(axes))
    nib.save(written.as_reoriented(turn), path := tmp_path / f"turned.{spatial}")
    np.testing.assert_array_equal(read_labels(path, frames=T, size=(H, W)), masks)
    assert nifti.label_shape(path) == (T, H, W) and nifti.has_written_axes(path) == (axes == "LPS")


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.int32, np.float32, np.float64])
def test_labels_of_other_types_are_read_the_same_and_turned_by_itk_too(kind, masks, tmp_path):
    path = saved(tmp_path / "a.nii.gz", masks.transpose(2, 1, 0).astype(kind))
    turned = sitk.DICOMOrient(sitk.ReadImage(str(path)), "RAS")
    sitk.WriteImage(turned, str(tmp_path / "b.nii.gz"))
    for file in (path, tmp_path / "b.nii.gz"):
        labels = read_labels(file)
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(labels, masks)


def test_axes_may_be_taken_as_stored(masks, tmp_path):
    path = saved(tmp_path / "a.nii.gz", masks.transpose(2, 1, 0), np.eye(4))  # x to the right, as numpy users write
    np.testing.assert_array_equal(read_labels(path, axes="stored"), masks)
    np.testing.assert_array_equal(read_labels(path), masks[:, ::-1, ::-1])  # as ITK-SNAP shows it
    assert not nifti.has_written_axes(path)
    image = nib.Nifti1Image(masks.transpose(2, 1, 0), None)  # a header without directions
    image.set_sform(None, 0)
    image.set_qform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    np.testing.assert_array_equal(read_labels(tmp_path / "a.nii"), masks)


def test_a_slope_is_undone_and_large_labels_take_16_bits_in_order_from_many_chunks(masks, tmp_path, monkeypatch):
    write_labels(path := tmp_path / "slope.nii", masks * 10)
    header = bytearray(path.read_bytes())
    header[112:116] = np.float32(0.1).tobytes()  # scl_slope, at its place in the standard
    path.write_bytes(header)
    assert nib.load(path).dataobj.slope == np.float32(0.1)
    np.testing.assert_array_equal(read_labels(path), masks)
    masks = np.array([[[0, 300], [65535, 1]]], dtype=np.int64)
    write_labels(path := tmp_path / "a.nii.gz", masks)
    labels = read_labels(path)
    assert labels.dtype == np.uint16 and np.array_equal(labels, masks)
    assert sitk.GetArrayFromImage(sitk.ReadImage(str(path))).tolist() == masks.tolist()
    write_labels(path, iter(np.arange(40, dtype=np.uint8).repeat(H * W).reshape(40, H, W)))
    monkeypatch.setattr("shared_components.data.files.nifti._CHUNK_BYTES", 7 * 8 * H * W)
    assert [int(frame[0, 0]) for frame in nifti.label_frames(path)] == list(range(40))


@pytest.mark.parametrize(("array", "sentence"), [
    (np.full((W, H, T), 0.5, np.float32), "has the value 0.5, which is no label"),
    (np.full((W, H, T), np.nan, np.float32), r"no numbers \(NaN\)"),
    (np.full((W, H, T), np.inf, np.float32), "no numbers"), (np.full((W, H, T), -1, np.int16), "has the label -1"),
    (np.full((W, H, T), 70000, np.int32), "has the label 70000"),
    (np.zeros((W, H, 2, T), np.uint8), "is a volume of 6x4x2x5; export one volume of three axes"),
    (np.zeros((W, H), np.uint8), "is a volume of 6x4; export one volume of three axes"),
    (np.zeros((W, H, T + 1), np.uint8), "has 6 frames, but its video has 5; export it again"),
    (np.zeros((W, H + 1, T), np.uint8), "has frames of 6x5, but its video is 6x4; export it again"),
    (np.zeros((H, W, T), np.uint8), "frames of 4x6, but its video is 6x4.*the width as its first axis"),
    (np.zeros((W, H, T), [("R", "u1"), ("G", "u1"), ("B", "u1")]), "has colours; export a label volume"),
    (np.zeros((W, H, T), np.complex64), "has complex64 values; export"),
])  # fmt: skip
def test_other_volumes_are_refused(array, sentence, tmp_path):
    path = saved(tmp_path / "a.nii.gz", array)
    with pytest.raises(DataError, match=rf"a\.nii\.gz: .*{sentence}"):
        read_labels(path, frames=T, size=(H, W))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.97])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_a_volume_cut_short_is_refused_wherever_it_is_cut(name, share, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (20, 32, 32), dtype=np.uint8)
    write_labels(tmp_path / name, noise)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="is not a readable NIfTI volume"):
        read_labels(tmp_path / name)


def test_other_files_and_an_affine_without_a_direction_are_refused(masks, tmp_path):
    astray = nib.Nifti1Image(masks, None)
    astray.header["sform_code"], astray.header["srow_x"] = 1, np.nan
    nib.save(astray, tmp_path / "astray.nii")
    saved(tmp_path / "other.mgz", masks.astype(np.int32), form=nib.MGHImage)
    for name, data in (("text", b"no volume"), ("gzip", gzip.compress(b"no volume", mtime=0)), ("zeros", b"\0" * 400)):
        (tmp_path / f"{name}.nii.gz").write_bytes(data)
    for name, sentence in (
        ("text.nii.gz", "is not a readable NIfTI volume"), ("gzip.nii.gz", "is not a readable NIfTI volume"),
        ("zeros.nii.gz", "is not a readable NIfTI volume"), ("missing.nii.gz", "file is missing"),
        ("other.mgz", "is MGHImage, not NIfTI"), ("astray.nii", "gives its axes no direction"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=sentence):
            read_labels(tmp_path / name)


@pytest.mark.parametrize(("masks", "sentence"), [
    ([], "there are no frames to write"),
    ([np.zeros((2, 2), np.uint8), np.zeros((2, 3), np.uint8)], r"frame 1 has shape \(2, 3\)"),
    ([np.zeros((2, 2, 3), np.uint8)], r"frame 0 has shape \(2, 2, 3\)"),
    ([np.zeros((2, 0), np.uint8)], r"frame 0 has shape \(2, 0\)"),
    ([np.full((2, 2), 0.5)], "frame 0 has float64 values"),
    ([np.full((2, 2), -1)], "frame 0 has int64 values from -1 to -1"),
    ([np.zeros((2, 2), np.uint8), np.full((2, 2), 256)], "frame 1 has .* from 256 to 256; .* 0 to 255"),
    (np.zeros((1 << 15, 1, 1), np.uint8), "has at most 32767 frames"),
])  # fmt: skip
def test_wrong_masks_are_refused_and_leave_the_earlier_file(masks, sentence, tmp_path):
    path = tmp_path / "a.nii.gz"
    path.write_bytes(b"earlier")
    with pytest.raises(ValueError, match=sentence):
        write_labels(path, masks)
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


def test_equal_labels_give_equal_bytes_and_a_wrong_name_is_refused(masks, monkeypatch, tmp_path):
    for now, name in enumerate(("a", "b")):
        monkeypatch.setattr("time.time", lambda now=now: now * 1e6)
        write_labels(tmp_path / name / "labels.nii.gz", masks)
    first, second = ((tmp_path / name / "labels.nii.gz").read_bytes() for name in ("a", "b"))
    assert first == second
    with pytest.raises(ValueError, match=r"ends in \.nii\.gz or \.nii"):
        nifti.LabelWriter(tmp_path / "a.nrrd")


def pictures(path: Path) -> np.ndarray:
    """Write colours without any symmetry, (T, H, W, 3), and return them."""
    frames = np.random.default_rng(2).integers(0, 256, (T, H, W, 3), dtype=np.uint8)
    with nifti.PictureWriter(path) as writer:
        for frame in frames:
            writer.add(frame)
    return frames


@pytest.mark.parametrize(
    "second", [np.zeros((H, W), np.uint8), np.zeros((H, W + 1, 3), np.uint8), np.zeros((H, W, 3), np.float32)]
)
def test_a_frame_unlike_the_first_leaves_the_earlier_volume(second, tmp_path):
    (path := tmp_path / "a.nii").write_text("earlier")
    with (
        pytest.raises(ValueError, match=r"a\.nii: frame 1 is .* give uint8 pictures"),
        nifti.PictureWriter(path) as writer,
    ):
        writer.add(np.zeros((H, W, 3), np.uint8))
        writer.add(second)
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_colour_volume_are_refused(masks, tmp_path):
    pictures(tmp_path / "a.nii")
    data = (tmp_path / "a.nii").read_bytes()
    (tmp_path / "cut.nii").write_bytes(data[: -H * W * 3])
    write_labels(tmp_path / "labels.nii", masks)
    colours = nib.load(tmp_path / "a.nii")
    saved(tmp_path / "mirrored.nii", np.asanyarray(colours.dataobj), np.diag([1.0, -1.0, 1.0, 1.0]))
    for name, place, sentence in (
        ("none.nii", 0, "is missing"), ("labels.nii", 0, "has uint8 values, not colours.*'surgfl segment --nifti'"),
        ("mirrored.nii", 0, "has its axes in another order"), ("cut.nii", T - 1, "cut off or damaged"),
        ("a.nii", T, f"has no frame {T}, but {T}"), ("a.nii", -1, "has no frame -1"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=sentence):
            nifti.read_picture(tmp_path / name, place)
