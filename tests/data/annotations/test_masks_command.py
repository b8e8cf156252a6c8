"""`surgfl masks`: annotation files of each format become masks that `surgfl site init` reads without an option."""

import base64
import json
import shlex
from pathlib import Path

import cv2
import nibabel as nib
import numpy as np
import pytest

from shared_components.cli import main
from shared_components.data.files.images import read_ids
from shared_components.data.files.nifti import label_frames
from shared_components.data.site_file import load_site
from tests.data.annotations.writers import NAMES, VIDEOS, WRITERS, areas, lay_images
from tests.data.conftest import write
from tests.data.custom.conftest import CLASSES, FRAMES, H, W, assert_read, canonical, init, lay, photograph


def convert(root: Path, place: Path, *options: str) -> int:
    images = root / "videos" if (root / "videos").is_dir() else root / "images"
    return main(["masks", str(place), "--images", str(images), "--out", str(root / "masks"), *options])


def coco_file(root: Path, rectangles: list[tuple[str, list[int]]], **image: object) -> Path:
    """Write an image `images/f.png` and a COCO file with rectangles x, y, w, h by class."""
    write(root / "images" / "f.png", photograph(0))
    names = list(dict.fromkeys(name for name, _ in rectangles))
    annotations = [
        {"image_id": 1, "category_id": names.index(name), "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]]}
        for name, (x, y, w, h) in rectangles
    ]
    images = [{"id": 1, "file_name": "f.png", "height": H, "width": W} | image]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    path = root / "coco.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_becomes_a_site_that_check_data_accepts(name, tmp_path, capsys):
    place = WRITERS[name](tmp_path)
    assert convert(tmp_path, place) == 0, capsys.readouterr()
    output = capsys.readouterr().out
    assert ["frames", "12", "12", "0"] in [line.split() for line in output.splitlines()]
    last = output.splitlines()[-1]
    assert last.startswith("next: surgfl site init ")
    assert main(shlex.split(last.removeprefix("next: surgfl "))) == 0, capsys.readouterr()
    site = load_site(tmp_path)
    assert site.classes == CLASSES and len(site.source.reader.videos(tmp_path)) == 3
    for split in ("train", "validation", "test"):
        assert_read(tmp_path, split=split)
    assert main(["check-data", str(tmp_path)]) == 0


def test_site_init_and_check_data_name_annotation_files_and_the_command_that_converts_them(tmp_path, capsys):
    WRITERS["labelme"](tmp_path)
    for command in (["site", "init"], ["check-data"]):
        assert main([*command, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert "contains 12 labelme files (images/op_1/f_0.json, images/op_1/f_1.json" in error
        command = error.partition("`surgfl ")[2].partition("`")[0]
        assert command == f"masks {tmp_path} --images {tmp_path} --out {tmp_path / 'masks'}"
    assert main(shlex.split(command)) == 0
    assert init(tmp_path) == 0, capsys.readouterr()
    assert_read(tmp_path)


def test_a_second_run_changes_nothing_and_a_changed_mask_is_replaced_only_on_request(tmp_path, capsys):
    place = WRITERS["coco"](tmp_path)
    assert convert(tmp_path, place) == 0 and "12 masks written, 0 unchanged" in capsys.readouterr().out
    (tmp_path / "masks/op_1/f_0.png").unlink()
    assert convert(tmp_path, place) == 0 and "1 mask written, 11 unchanged" in capsys.readouterr().out
    corrected = tmp_path / "masks/op_2/f_1.png"
    write(corrected, np.zeros((H, W), np.uint8))
    assert convert(tmp_path, place) == 2
    assert "op_2/f_1.png: is there already, and differs" in capsys.readouterr().err
    assert not read_ids(corrected).any()
    assert convert(tmp_path, place, "--force") == 0 and read_ids(corrected).any()
    assert not [path for path in (tmp_path / "masks").rglob(".*")]


def test_the_smaller_shape_wins_in_coco_and_overlaps_crowds_boxes_and_unused_classes_are_counted(tmp_path, capsys):
    """By hand: 100 pixels of the arm, of which the tip covers 4."""
    path = coco_file(tmp_path, [("tip", [4, 4, 2, 2]), ("arm", [0, 0, 10, 10]), ("unused", [0, 0, 1, 1])])
    content = json.loads(path.read_text())
    content["annotations"][1]["iscrowd"] = 1
    content["annotations"][2]["segmentation"] = []
    content["images"].append({"id": 2, "file_name": "gone\x1b[31m.png", "height": H, "width": W})
    content["annotations"].append(content["annotations"][0] | {"image_id": 2})
    path.write_text(json.dumps(content))
    assert convert(tmp_path, path) == 0
    mask, output = read_ids(tmp_path / "masks/f.png"), capsys.readouterr().out
    assert (int((mask == 1).sum()), int((mask == 2).sum())) == (4, 96)
    assert "classes overlap at 4 pixels in 1 frame; the smaller shape wins" in output
    assert f"1 frame (without an image in {tmp_path / 'images'}): gone.png" in output
    assert "1 annotation (not drawn): boxes" in output and "1 class (without shapes): unused" in output
    assert "1 crowd regions are drawn" in output and "1 frame with shapes also have boxes" in output


def test_the_later_shape_wins_in_labelme(tmp_path, capsys):
    write(tmp_path / "images/f.png", photograph(0))
    corners = ([[0, 0], [2, 0], [2, 2], [0, 2]], [[0, 0], [9, 0], [9, 9], [0, 9]])
    shapes = [{"label": name, "points": points} for name, points in zip("ab", corners, strict=True)]
    path = tmp_path / "images/f.json"
    path.write_text(json.dumps({"shapes": shapes, "imagePath": "..\\other\\f.png", "imageData": None}))
    assert convert(tmp_path, path) == 0
    assert sorted(np.unique(read_ids(tmp_path / "masks/f.png")).tolist()) == [0, 2]
    assert "classes overlap at 4 pixels in 1 frame; the later shape wins" in capsys.readouterr().out


def test_classes_are_renamed_merged_and_ignored_and_a_later_run_keeps_their_ids(tmp_path, capsys):
    path = coco_file(tmp_path, [("b", [0, 0, 2, 2]), ("a", [4, 0, 2, 2]), ("c", [8, 0, 2, 2]), ("d", [12, 0, 2, 2])])
    names = ("--rename", "a=hook", "--rename", "b=hook", "--rename", "d=ignore")
    assert convert(tmp_path, path, *names) == 0
    assert read_ids(tmp_path / "masks/f.png")[0, [0, 4, 8, 12, 20]].tolist() == [1, 1, 2, 255, 0]
    second = coco_file(tmp_path, [("new", [0, 0, 2, 2]), ("c", [4, 0, 2, 2])])
    (tmp_path / "masks/f.png").unlink()
    assert convert(tmp_path, second) == 0
    assert read_ids(tmp_path / "masks/f.png")[0, [0, 4]].tolist() == [3, 2]
    assert convert(tmp_path, second, "--rename", "x=hook") == 2
    assert "--rename names the class 'x'; the annotations have new, c" in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"width": W + 1}, "and it is 32x24"), ({"width": 0}, "Expected `int` >= 1"),
    ({"height": 1 << 40}, "Expected `int` <= 65536"), ({"id": 7}, "annotation 0 names image 1"),
    ({"file_name": "/etc/passwd"}, "has no frame to convert: 1 frames (without an image"),
    ({"file_name": "../../../f2.png"}, "has no frame to convert"),
])  # fmt: skip
def test_an_image_that_does_not_fit_is_refused(changes, sentence, tmp_path, capsys):
    assert convert(tmp_path, coco_file(tmp_path, [("a", [0, 0, 2, 2])], **changes)) == 2
    assert sentence.replace("1 frames", "1 frame") in capsys.readouterr().err
    assert not list(tmp_path.rglob("*mask*"))


@pytest.mark.parametrize(("segmentation", "sentence"), [
    ({"size": [H, W], "counts": [5]}, "run lengths of 5 pixels do not fill 32x24"),
    ({"size": [8192, 8192], "counts": [0, 8192 * 8192]}, "run lengths are of 8192x8192, and the image of 32x24"),
    ({"size": [H, W], "counts": "oooo"}, "compressed run lengths are cut off"),
    ({"size": [H, W], "counts": [-1]}, "Expected `int` >= 0"), ([["a"]], "Expected `float`"),
    ([[0, 0, 1e300, 0, 1, 1]], "a point far outside"),
    ([[W, 0, W + 4, 0, W + 4, 4]], "it lies outside of the frame of 32x24"),
])  # fmt: skip
def test_a_damaged_shape_is_refused_with_its_file(segmentation, sentence, tmp_path, capsys):
    path = coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    content = json.loads(path.read_text())
    content["annotations"][0]["segmentation"] = segmentation
    path.write_text(json.dumps(content))
    assert convert(tmp_path, path) == 2
    error = capsys.readouterr().err
    assert sentence in error and str(path) in error and error.count("\n") == 1
    assert not list(tmp_path.rglob("*mask*"))


@pytest.mark.parametrize("name", ["a,b", "mean", "x" * 61, "red\x1b[31m", ""])
def test_a_class_that_cannot_be_a_name_is_refused_with_the_option(name, tmp_path, capsys):
    assert convert(tmp_path, coco_file(tmp_path, [(name, [0, 0, 2, 2])])) == 2
    error = capsys.readouterr().err
    assert "whose name cannot be used" in error and "--rename 'OLD=NEW'" in error and "\x1b" not in error


@pytest.mark.parametrize(("key", "entry", "sentence"), [
    ("images", {"id": 1, "file_name": "g.png", "height": H, "width": W}, "has two images with the id 1"),
    ("categories", {"id": 0, "name": "other"}, "has two categories with the id 0"),
    ("categories", {"id": 1, "name": "a"}, "has two categories 'a' with annotations"),
    ("images", {"id": 2, "file_name": "f.png", "height": H, "width": W}, "f.png twice"),
    ("images", {"id": 2}, "missing required field `file_name`"), ("images", 5, "Expected `object`, got `int`"),
    ("annotations", {"image_id": 1, "category_id": 9}, "annotation 3 names image 1 and category 9"),
])  # fmt: skip
def test_a_coco_file_that_contradicts_itself_is_refused(key, entry, sentence, tmp_path, capsys):
    path = coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    content = json.loads(path.read_text())
    shape = content["annotations"][0]
    content["annotations"] += [shape | {"category_id": int(key == "categories" and entry["id"] == 1)},
                               shape | {"image_id": 2 if "f.png" in sentence else 1}]  # fmt: skip
    content[key].append(entry)
    path.write_text(json.dumps(content))
    assert convert(tmp_path, path) == 2
    error = capsys.readouterr().err
    assert sentence in error and str(path) in error and error.count("\n") == 1
    assert not list(tmp_path.rglob("*mask*"))


def test_json_min_of_label_studio_gives_the_masks_of_its_json(tmp_path):
    """https://labelstud.io/guide/export: a row per annotation, with the values of each control by its name."""
    path = WRITERS["label_studio"](tmp_path)
    assert convert(tmp_path, path) == 0
    (tmp_path / "masks").rename(tmp_path / "plain")
    rows = []
    for task in json.loads(path.read_text()):
        (annotation,) = task["annotations"]
        sizes = ("original_width", "original_height")
        values = [region["value"] | {side: region[side] for side in sizes} for region in annotation["result"]]
        row = task["data"] | {"id": task["id"], "tag": values, "annotator": 1, "annotation_id": task["id"]}
        rows += [row | {"tag": values[:1], "updated_at": "2025"}, row | {"updated_at": "2026"}]  # the newest counts
    path.write_text(json.dumps(rows))
    assert convert(tmp_path, path) == 0
    masks = list((tmp_path / "masks").rglob("*.*"))
    assert len(masks) == 13
    for mask in masks:
        assert mask.read_bytes() == (tmp_path / "plain" / mask.relative_to(tmp_path / "masks")).read_bytes()


@pytest.mark.parametrize(("channels", "size", "sentence"), [
    (4, (H, W), ""), (4, (H, W + 1), "a bitmask has the shape (24, 33, 4), not (24, 32, 4)"),
    (3, (H, W), "a bitmask has the shape (24, 32, 3)"), (0, (H, W), "a mask is not a whole PNG"),
])  # fmt: skip
def test_a_bitmask_of_label_studio_is_black_on_transparent(channels, size, sentence, tmp_path, capsys):
    """https://labelstud.io/tags/bitmasklabels: opaque pixels belong to the label."""
    write(tmp_path / "images/f.png", photograph(0))
    image = np.zeros((*size, max(channels, 1)), np.uint8)
    image[2:5, 3:9, -1] = 255  # 18 pixels
    data = base64.b64encode(cv2.imencode(".png", image)[1].tobytes()[: None if channels else 20]).decode()
    value = {"imageDataURL": f"data:image/png;base64,{data}", "bitmasklabels": ["hook"]}
    region = {"type": "bitmasklabels", "value": value, "original_width": W, "original_height": H}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"id": 1, "data": {"image": "f.png"}, "annotations": [{"result": [region]}]}]))
    assert convert(tmp_path, path) == (2 if sentence else 0)
    if sentence:
        assert sentence in capsys.readouterr().err and not list(tmp_path.rglob("*mask*"))
    else:
        mask = read_ids(tmp_path / "masks/f.png")
        assert mask.sum() == 18 and mask[2:5, 3:9].all()


def test_a_category_without_annotations_may_repeat_a_name(tmp_path):
    """Roboflow writes the project's name as category 0."""
    path = coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    content = json.loads(path.read_text())
    content["categories"].append({"id": 1, "name": "a"})
    path.write_text(json.dumps(content))
    assert convert(tmp_path, path) == 0 and read_ids(tmp_path / "masks/f.png").sum() == 4


def test_shapes_across_the_border_and_without_a_pixel_are_counted(tmp_path, capsys):
    """By hand: 2x4 pixels of the first rectangle are in the frame; the last one lies between pixel centres."""
    path = coco_file(tmp_path, [("a", [W - 2, 0, 9, 4]), ("a", [0, 0, 4, H + 1]), ("b", [9, 9, 0, 0])])
    assert convert(tmp_path, path) == 0
    output = capsys.readouterr().out
    assert "note: 1 shape cut at the border of the frame" in output and "note: 1 shape without a pixel" in output
    assert (read_ids(tmp_path / "masks/f.png") == 1).sum() == 2 * 4 + 4 * H


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_last_frame_leaves_the_masks_of_an_earlier_run_as_they_are(name, tmp_path, capsys):
    place = WRITERS[name](tmp_path)
    assert convert(tmp_path, place) == 0

    def state():
        return {path: path.read_bytes() for path in (tmp_path / "masks").rglob("*") if path.is_file()}

    (tmp_path / "masks/op_1").rename(tmp_path / "moved")  # frames that would be new
    before = state()
    last = max((tmp_path / "masks/op_3").iterdir())
    write(last, np.full((H, W), 2, np.uint8))
    before[last] = last.read_bytes()
    assert convert(tmp_path, place, "--rename", "irrigator=sucker") == 2, capsys.readouterr()
    assert state() == before and not list(tmp_path.rglob(".*"))


def test_a_full_disk_leaves_no_masks(tmp_path, monkeypatch, capsys):
    import os

    place = WRITERS["coco"](tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert convert(tmp_path, place) == 2
    assert "could not be written (No space left on device)" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*mask*"))


def test_names_of_several_folders_need_a_folder_or_the_place_of_the_file(tmp_path, capsys):
    path = coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    write(tmp_path / "images/other/f.png", photograph(1))
    assert convert(tmp_path, path) == 2
    assert "has a frame 'f.png', and below" in capsys.readouterr().err
    (tmp_path / "images/other/coco.json").write_bytes(path.read_bytes())
    assert convert(tmp_path, tmp_path / "images/other/coco.json") == 0
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("masks/**/*.png")] == ["masks/other/f.png"]
    assert convert(tmp_path, tmp_path / "images/other") == 0
    (tmp_path / "images/other/again.json").write_bytes(path.read_bytes())
    assert convert(tmp_path, tmp_path / "images/other") == 2
    assert "annotates" in (error := capsys.readouterr().err) and "keep one of the two annotations" in error


def test_two_formats_in_a_folder_need_a_choice(tmp_path, capsys):
    WRITERS["coco"](tmp_path)
    WRITERS["yolo"](tmp_path)
    assert convert(tmp_path, tmp_path) == 2
    assert "contains 1 COCO file (_annotations.coco.json) and 1 YOLO file (data.yaml)" in capsys.readouterr().err
    assert convert(tmp_path, tmp_path, "--format", "yolo") == 0


@pytest.mark.parametrize("turned", [1, 6])
def test_annotations_of_an_image_with_an_orientation_are_drawn_upright_or_as_stored(turned, tmp_path):
    """EXIF orientation 6: the file has W columns and H rows, and programs show H columns and W rows."""
    from PIL import Image

    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    exif[274] = turned
    Image.fromarray(photograph(0)).save(tmp_path / "images/f.jpg", exif=exif)
    path = coco_file(tmp_path, [("a", [0, 0, 2, 20])], height=W if turned == 6 else H, width=H if turned == 6 else W)
    (tmp_path / "images/f.png").unlink()
    assert convert(tmp_path, path) == 0
    assert read_ids(tmp_path / "masks/f.png").shape == ((W, H) if turned == 6 else (H, W))


def test_masks_of_cvat_are_named_by_its_labelmap_and_its_objects_are_no_second_masks(tmp_path, capsys):
    """https://docs.cvat.ai/docs/manual/advanced/formats/format-smask: name:red,green,blue:parts:actions."""
    colours = {NAMES[0]: (250, 50, 83), NAMES[1]: (51, 221, 255)}
    table = np.array([(0, 0, 0), *colours.values()], np.uint8)
    for folder, drawn in (("SegmentationClass", canonical), ("SegmentationObject", lambda index: 3 - canonical(index))):
        lay(
            tmp_path, "JPEGImages/{v}/f_{n}.jpg", folder + "/{v}/f_{n}.png", videos=VIDEOS, pictured=photograph,
            drawn=lambda index, drawn=drawn: table[drawn(index) % 3],
        )  # fmt: skip
    rows = [f"{name}:{','.join(map(str, colour))}::" for name, colour in colours.items()]
    (tmp_path / "labelmap.txt").write_text("\n".join(["# label:color_rgb:parts:actions", "background:0,0,0::", *rows]))
    assert init(tmp_path) == 0, capsys.readouterr()
    assert (
        "12 instance masks in SegmentationObject/ (the masks of classes have their pixels)" in capsys.readouterr().out
    )
    assert load_site(tmp_path).classes == CLASSES
    assert_read(tmp_path)
    (tmp_path / "labelmap.txt").write_text("# label:color_rgb:parts:actions\nhook:1,2:\n")
    assert init(tmp_path, "--force") == 2
    assert "labelmap.txt: has no label description in line 2 (hook:1,2:)" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(W, H, 1, FRAMES), (W, H, FRAMES, 1)])
def test_a_volume_with_a_time_axis_has_a_frame_for_each_time(shape, tmp_path):
    labels = np.stack([canonical(index).T for index in range(FRAMES)], axis=-1)
    affine = np.diag([-1.0, -1.0, -1.0 if shape[2] == 1 else 1.0, 1.0])  # the direction of one slice means nothing
    nib.save(nib.Nifti1Image(labels.reshape(shape), affine), tmp_path / "a.nii.gz")
    frames = list(label_frames(tmp_path / "a.nii.gz"))
    np.testing.assert_array_equal(frames, [canonical(index) for index in range(FRAMES)])


def test_masks_of_a_tracker_for_each_object_are_masks_of_classes(tmp_path, capsys):
    """SAM 2 with `--per_obj_png_file`: a folder for each object of a video, with binary masks."""
    lay_images(tmp_path, "{v}/frames/{n:05d}.png")
    for video in VIDEOS:
        for number in range(FRAMES):
            for place, (_, pixels) in enumerate(areas(number), 1):
                write(tmp_path / video / f"masks/{place:03d}/{number:05d}.png", pixels.astype(np.uint8) * 255)
    assert init(tmp_path, "--id", f"001={NAMES[0]}", "--id", f"002={NAMES[1]}") == 0, capsys.readouterr()
    assert_read(tmp_path)


def test_a_palette_of_davis_gives_its_places(tmp_path, capsys):
    from PIL import Image

    lay_images(tmp_path, "JPEGImages/480p/{v}/{n:05d}.png")
    palette = [0, 0, 0, 128, 0, 0, 0, 128, 0, *[9] * (3 * 253)]  # of https://davischallenge.org, its first colours
    for video in VIDEOS:
        for number in range(FRAMES):
            path = tmp_path / f"Annotations/480p/{video}/{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(canonical(number))
            image.putpalette(palette)
            image.save(path)
            assert cv2.imread(str(path)).max() == 128
    assert init(tmp_path, "--id", f"1={NAMES[0]}", "--id", f"2={NAMES[1]}") == 0, capsys.readouterr()
    assert_read(tmp_path)
