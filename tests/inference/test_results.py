"""Result files of images, videos and sub-folders, and volumes as ITK reads them."""

import csv
import json
import re
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
import SimpleITK as sitk

from shared_components.common.atomic import NotWritten
from shared_components.data.files.label_names import described
from shared_components.inference import InferenceError
from shared_components.inference import export_nifti as nifti
from shared_components.inference.frames import FrameStream
from shared_components.inference.results import PredictionFolder
from shared_components.inference.video import frames_of, look_at
from tests.common.test_atomic import full_disk
from tests.inference.conftest import PARTS, SEGMENTATION, grey, write_image, write_video


def bar(shape):
    """A mask of class 2 in the upper left of the picture."""
    mask = np.zeros(shape[:2], np.uint8)
    mask[: shape[0] // 4, : shape[1] // 2] = 2
    return mask


def written(source, out, *, task=SEGMENTATION, answer=bar, stream=None, **options):
    """Write an answer to every frame and return the paths of the files."""
    frames = FrameStream(source, height=32, width=64, **(stream or {}))
    with PredictionFolder(out, frames, task, **options) as folder:
        for item in frames:
            folder.add(item["shot"], answer(item["shot"].image.shape))
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


@pytest.fixture
def tree(tmp_path):
    """Images of two sizes, one of them in a sub-folder."""
    for name, size in (("a.png", (40, 50)), ("day-1/left/b.png", (31, 33)), ("day-1/left/c.png", (31, 33))):
        write_image(tmp_path / "frames" / name, 90, size)
    return tmp_path / "frames"


TABLES = ["intervals.csv", "prediction.json", "visible.csv"]


def test_images_become_masks_and_overlays_of_their_own_size(tree, tmp_path):
    names = ["a.png", "day-1/left/b.png", "day-1/left/c.png"]
    out = tmp_path / "out"
    assert written(tree, out) == sorted([f"{k}/{n}" for k in ("masks", "overlays") for n in names] + TABLES)
    for name in names:
        frame = cv2.imread(str(tree / name))
        mask = cv2.imread(str(out / "masks" / name), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(mask, bar(frame.shape))
        whole = cv2.imread(str(out / "overlays" / name))
        drawn, names = np.split(whole, [len(frame)])
        assert drawn.shape == frame.shape and len(names) in (26, 52, 78)  # a line or more of the legend
        assert (drawn[-5:] == 90).all() and (drawn[:5, :9] != 90).any()
        assert (drawn[:, -9:] == 90).all()


def test_sub_folders_have_overlay_videos_of_their_own_where_there_is_a_rate(tree, tmp_path):
    files = written(tree, tmp_path / "out", stream={"video_rate": 10}, pictures=False, masks="none")
    assert files == ["intervals.csv", "overlay.mp4", "overlays/day-1/left.mp4", "prediction.json", "visible.csv"]
    result = look_at(tmp_path / "out" / "overlays" / "day-1" / "left.mp4")
    assert (result.frames, result.rate) == (2, 10)
    with (tmp_path / "out" / "visible.csv").open(newline="") as file:
        rows = [(row["seconds"], row["frame"], row["shaft"]) for row in csv.DictReader(file)]
    assert rows == [("0.000", "a", "0.000"), ("0.000", "day-1/left/b", "0.000"), ("0.100", "day-1/left/c", "0.000")]


def test_images_of_several_sizes_are_no_video(tree, tmp_path):
    write_image(tree / "b.png", 90, (44, 50))
    with pytest.raises(InferenceError, match=r"overlay\.mp4: the picture size changes from 50x118 to 50x122"):
        written(tree, tmp_path / "out", stream={"video_rate": 10})
    assert not (tmp_path / "out").exists()


def test_a_video_becomes_masks_and_an_overlay_video_of_its_rate(video, tmp_path):
    files = written(video, tmp_path / "out")
    assert files == sorted([*(f"masks/frame_{n:06d}.png" for n in range(40)), "overlay.mp4", *TABLES])
    result = look_at(tmp_path / "out" / "overlay.mp4")
    assert (result.rate, result.frames) == (25, 40)
    whole = cv2.VideoCapture(str(tmp_path / "out" / "overlay.mp4")).read()[1]
    read, names = np.split(whole, [48])
    assert len(names) == 3 * 26 and names[26 + 9 : 26 + 18, 6:16].std(axis=(0, 1)).max() < 8 < np.ptp(names)
    assert read.shape == (48, 64, 3)
    assert np.ptp(read[20:]) < 8 and np.ptp(read[:, 40:]) < 8 < 50 < np.ptp(read[:10, :30])


def test_every_other_frame_is_shown_as_long_as_the_video_lasts(tmp_path):
    video = write_video(tmp_path / "a.mp4", grey(30), rate=Fraction(30000, 1001), aspect=Fraction(16, 15))
    written(video, tmp_path / "out", stream={"every": 2})
    result = look_at(tmp_path / "out" / "overlay.mp4")
    assert (result.rate, result.frames, result.aspect) == (Fraction(15000, 1001), 15, Fraction(16, 15))


@pytest.mark.parametrize(("pictures", "masks"), [(True, "none"), (False, "png")])
def test_what_is_not_wanted_is_left_out(video, tree, tmp_path, pictures, masks):
    for source in (video, tree):
        files = written(source, tmp_path / f"{source.stem}-out", pictures=pictures, masks=masks)
        assert any(name.startswith("overlays/") for name in files) == pictures
        assert any(name.startswith("masks/") for name in files) == (masks == "png")


def test_the_record_says_what_was_shown_to_what(video, tmp_path):
    written(video, tmp_path / "out", stream={"every": 4}, facts={"model": "model.safetensors"})
    record = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert record["input"] == str(video) and record["model"] == "model.safetensors"
    assert (record["frames"], record["every"], record["complete"]) == (10, 4, True)
    assert record["task"] == SEGMENTATION.card.to_json()
    assert record["files"] == ["intervals.csv", "masks", "overlay.mp4", "visible.csv"]


@pytest.mark.parametrize("room", [0, 400, 1500])
@pytest.mark.parametrize("options", [{}, {"exports": ["nifti"]}, {"masks": "none", "pictures": False}])
def test_a_full_disk_is_one_sentence_that_names_the_folder_and_leaves_nothing(video, tmp_path, options, room):
    out = tmp_path / "out"
    with full_disk(room), pytest.raises((NotWritten, InferenceError), match="could not be written") as caught:
        written(video, out, **options)
    message = str(caught.value)
    assert "check the disk's space" in message and (str(out) in message or "overlay.mp4" in message)
    assert not out.exists()


def test_a_spreadsheet_finds_no_formula_in_a_table(tmp_path):
    """File names are untrusted, and Excel opens the tables."""
    write_image(tmp_path / "frames" / "=cmd|'calc'!A1.png", 90, (40, 50))
    written(tmp_path / "frames", tmp_path / "out")
    rows = list(csv.reader((tmp_path / "out" / "visible.csv").open(newline="")))
    assert rows[1][1] == "'=cmd|'calc'!A1" and float(rows[1][2]) >= 0
    rows = list(csv.reader((tmp_path / "out" / "intervals.csv").open(newline="")))
    assert rows[1][3] == rows[1][4] == "'=cmd|'calc'!A1"


def test_an_input_of_billions_of_pixels_is_refused_before_a_frame_is_read(tree):
    with pytest.raises(InferenceError, match=r"size is 64000x64000; give a size of at most 16,777,216 pixels"):
        FrameStream(tree, height=64000, width=64000)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("notes.txt", {"alone": True}, "contains 'notes.txt'"),
        ("nifti", {"exports": ["nifti"]}, "contains 'nifti', which is not part of an earlier result"),
        ("masks", {}, "contains 'masks', which is not part of an earlier result; give another folder, or move it away"),
    ],
)
def test_what_somebody_else_wrote_is_not_replaced(video, tmp_path, name, options, sentence):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("theirs")
    with pytest.raises(InferenceError, match=sentence):
        written(video, tmp_path / "out", **options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_results_do_not_lie_among_what_they_are_of(tree):
    with pytest.raises(InferenceError, match="lies in the input folder"):
        written(tree, tree / "day-1" / "results")


def test_masks_are_png_or_none(video, tmp_path):
    with pytest.raises(InferenceError, match="masks is 'jpg'; use one of png, none"):
        written(video, tmp_path / "out", masks="jpg")


# ---- volumes for label editors


def numbered(number, shape):
    """A mask without symmetry that differs from frame to frame."""
    mask = np.zeros(shape, np.uint8)
    mask[: shape[0] // 3, : 4 + number] = 1 + number % 3
    return mask


def segment(source, out, **stream):
    frames = FrameStream(source, height=32, width=64, **stream)
    with PredictionFolder(out, frames, SEGMENTATION, masks="none", pictures=False, exports=["nifti"]) as folder:
        for number, item in enumerate(frames):
            folder.add(item["shot"], numbered(number, item["shot"].image.shape[:2]))
    return out / "nifti"


def array(path):
    """Read a file with ITK: (T, H, W), or (T, H, W, 3)."""
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


@pytest.mark.parametrize("every", [1, 3])
def test_a_video_becomes_a_volume_of_labels_and_one_of_the_frames_that_were_taken(every, tmp_path):
    video = write_video(tmp_path / "op 7.mp4", grey(7))
    folder = segment(video, tmp_path / "out", every=every)

    frames = [image for _, image, _ in frames_of(look_at(video), every=every)]
    np.testing.assert_array_equal(array(folder / "frames" / "op 7.nii"), frames)
    expected = [numbered(number, (48, 64)) for number in range(len(frames))]
    np.testing.assert_array_equal(array(folder / "labels" / "op 7.nii.gz"), expected)
    assert sorted(path.name for path in folder.rglob("*")) == [
        "frames", "labels", "labels.txt", "op 7.nii", "op 7.nii.gz",
    ]  # fmt: skip


def test_every_sub_folder_is_a_volume_of_its_own(tree, tmp_path):
    folder = segment(tree, tmp_path / "out")
    assert array(folder / "labels" / "frames.nii.gz").shape == (1, 40, 50)
    labels = array(folder / "labels" / "day-1" / "left.nii.gz")
    np.testing.assert_array_equal(labels, [numbered(n, (31, 33)) for n in (1, 2)])
    assert array(folder / "frames" / "day-1" / "left.nii").shape == (2, 31, 33, 3)


def test_names_and_colours_are_those_that_itk_snap_reads():
    """The format of ITK-SNAP's documentation: numbers, then the name in quotes."""
    line = re.compile(r'^\s*(\d+)(?:\s+(\d+)){3}\s+[01]\s+[01]\s+[01]\s+"([^"]*)"$')
    rows = [
        line.match(row) for row in described(dict(enumerate([*PARTS, 'a "quoted" name']))).splitlines() if row[0] != "#"
    ]
    assert all(rows), "a line that ITK-SNAP would not read"
    assert [(int(row[1]), row[3]) for row in rows] == [*enumerate(PARTS), (4, "a 'quoted' name")]
    colours = {tuple(row[0].split()[1:4]) for row in rows}
    assert len(colours) == len(rows) and all(0 <= int(value) <= 255 for row in colours for value in row)


def test_images_of_several_sizes_are_no_volume_and_leave_nothing(tmp_path):
    for name, size in (("a.png", (40, 50)), ("b.png", (40, 51))):
        write_image(tmp_path / "frames" / name, 90, size)
    with pytest.raises(InferenceError, match=r"export nifti: b: .*frames\.nii.* frame 1 has shape \(40, 51\)"):
        segment(tmp_path / "frames", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_video_that_fits_in_no_volume_is_refused_before_a_frame_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(nifti, "MOST_FRAMES", 3)
    stream = FrameStream(write_video(tmp_path / "a.mp4", grey(10)), height=32, width=64, every=2)
    with pytest.raises(InferenceError, match=r"a\.mp4 has 5 frames to segment, .* takes 3; .* --every 4"):
        nifti.open_export(tmp_path / "out", stream, PARTS)


def test_what_is_of_unknown_length_and_fits_in_no_volume_goes_on_in_another(tmp_path, monkeypatch):
    monkeypatch.setattr(nifti, "MOST_FRAMES", 3)
    init = FrameStream.__init__
    monkeypatch.setattr(
        FrameStream, "__init__", lambda self, *a, **k: init(self, *a, **k) or vars(self).update(total=None)
    )
    folder = segment(write_video(tmp_path / "a.mp4", grey(7)), tmp_path / "out")
    result = [array(folder / "labels" / f"{name}.nii.gz") for name in ("a", "a-2", "a-3")]
    assert [len(one) for one in result] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(result), [numbered(number, (48, 64)) for number in range(7)])
    assert array(folder / "frames" / "a-3.nii").shape == (1, 48, 64, 3)


def test_two_sequences_of_one_name_are_refused(tmp_path):
    for name in ("frames/a.png", "frames/frames/b.png"):
        write_image(tmp_path / name, 90, (40, 50))
    with pytest.raises(InferenceError, match="two volumes would have the name 'frames'"):
        segment(tmp_path / "frames", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_that_were_corrected_are_never_replaced(tmp_path):
    """With and without new volumes; unchanged volumes are replaced."""
    write_image(tmp_path / "frames" / "a.png")
    segment(tmp_path / "frames", tmp_path / "out")
    path = segment(tmp_path / "frames", tmp_path / "out") / "labels" / "frames.nii.gz"
    corrected = sitk.ReadImage(str(path)) * 0 + 2
    sitk.WriteImage(corrected, str(path))
    stream = FrameStream(tmp_path / "frames", height=32, width=64)
    for again in (["nifti"], []):
        with pytest.raises(InferenceError, match=r"frames\.nii\.gz was changed after the prediction"):
            PredictionFolder(tmp_path / "out", stream, SEGMENTATION, exports=again)
    assert (array(path) == 2).all()


@pytest.mark.parametrize("name", ["labels/frames.nii", "site.yaml", "labels/notes.txt", "frames/corrected.nii"])
def test_what_a_person_has_added_to_the_volumes_is_not_lost(name, tmp_path):
    write_image(tmp_path / "frames" / "a.png")
    folder = segment(tmp_path / "frames", tmp_path / "out")
    (folder / "labels" / ".DS_Store").touch()
    segment(tmp_path / "frames", tmp_path / "out")
    (folder / name).write_text("mine")
    with pytest.raises(InferenceError, match=f"{name} was added after the prediction and would be lost"):
        segment(tmp_path / "frames", tmp_path / "out")
    assert (folder / name).read_text() == "mine"


def test_labels_that_were_corrected_while_a_run_worked_are_not_replaced(tmp_path):
    write_image(tmp_path / "frames" / "a.png")
    path = segment(tmp_path / "frames", tmp_path / "out") / "labels" / "frames.nii.gz"
    frames = FrameStream(tmp_path / "frames", height=32, width=64)
    with (
        pytest.raises(InferenceError, match="was changed after the prediction"),
        PredictionFolder(tmp_path / "out", frames, SEGMENTATION, exports=["nifti"]) as folder,
    ):
        for item in frames:
            folder.add(item["shot"], bar(item["shot"].image.shape))
        path.write_bytes(b"corrected")
    assert path.read_bytes() == b"corrected"


def test_a_video_of_the_same_name_in_another_folder_is_another(tmp_path, monkeypatch):
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        write_video(tmp_path / name / "left.mp4", grey(2))
    monkeypatch.chdir(tmp_path / "A")
    written(Path("left.mp4"), tmp_path / "out")
    written(tmp_path / "A" / "left.mp4", tmp_path / "out")
    monkeypatch.chdir(tmp_path / "B")
    with pytest.raises(InferenceError, match=r"contains the result of input .*A/left\.mp4, not of .*B/left\.mp4"):
        written(Path("left.mp4"), tmp_path / "out")
