"""Exports to annotation tools, read back by other libraries: IoU 1 for rasters and 0.99 for polygons, same names."""

import json
import resource
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import cv2
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import yaml
from PIL import Image, ImageDraw

from shared_components.core.task import make_task
from shared_components.data.annotations.convert import convert
from shared_components.data.annotations.formats import annotation_files, read_annotations
from shared_components.data.files.label_names import label_names
from shared_components.inference import EXPORTS, InferenceError
from shared_components.inference import regions as module
from shared_components.inference.export_cvat import run_lengths
from shared_components.inference.exports import class_colours
from shared_components.inference.frames import FrameStream
from shared_components.inference.results import PredictionFolder
from tests.common.test_atomic import full_disk
from tests.inference.conftest import grey, write_image, write_video

coco = pytest.importorskip("pycocotools.coco")
pytest.importorskip("pycocotools.mask")
nrrd = pytest.importorskip("nrrd")

CLASSES = ("background", "Nadelhalter groß", "suction & irrigation", "naïve <hook>", "never seen")
TASK = make_task("segmentation", classes=CLASSES)
POLYGONS, RASTERS = ("coco", "labelme", "yolo"), ("cvat", "nifti", "nrrd", "png")
H, W = 60, 80


def drawn(number):
    """A frame of thin tools, rings with holes, specks of a pixel, and noise; every tenth is empty."""
    random = np.random.default_rng(number)
    mask = np.zeros((H, W), np.uint8)
    if number % 10 == 9:
        return mask
    for class_id in (1, 2, 3):
        x, y, u, v = (int(value) for value in random.integers(0, [W, H, W, H]))
        kind = (number + class_id) % 5
        if kind == 0:  # a thin tool
            cv2.line(mask, (x, y), (u, v), class_id, 1 + number % 3)
        elif kind == 1:  # a ring
            cv2.circle(mask, (x, y), int(random.integers(6, 30)), class_id, int(random.integers(1, 5)))
        elif kind == 2:
            cv2.ellipse(mask, (x, y), (int(random.integers(3, 40)), 6), int(random.integers(180)), 0, 360, class_id, -1)
        elif kind == 3:  # specks
            mask[random.random((H, W)) < 0.01] = class_id
        else:  # a block with holes
            mask[y : y + 20, x : x + 30] = class_id
            mask[y : y + 20, x : x + 30][random.random(mask[y : y + 20, x : x + 30].shape) < 0.1] = 0
    return mask


MASKS = [drawn(number) for number in range(100)]


def export(source, out, masks, *formats, every=1):
    """Write masks as the predictions of a source."""
    frames = FrameStream(source, height=32, width=64, every=every)
    with PredictionFolder(out, frames, TASK, masks="none", pictures=False, exports=formats) as folder:
        for shot, mask in zip(frames.shots(), masks, strict=True):
            folder.add(shot, np.asarray(mask))
    return out


def export_images(root, count):
    """All exports of some images in two sub-folders."""
    for name, number in zip(paths(count), range(count), strict=True):
        write_image(root / "frames" / f"{name}.jpg", number, (H, W))
    return export(root / "frames", root / "out", MASKS[:count], *EXPORTS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_images(tmp_path_factory.mktemp("few"), 10)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    return export_images(tmp_path_factory.mktemp("hundred"), 100)


def paths(count):
    return [f"day {2 * number // count}/Bild_{number:03d}" for number in range(count)]


def painted(shapes):
    """Draw (class name, bool mask) in order, as class ids."""
    mask = np.zeros((H, W), np.uint8)
    for name, pixels in shapes:
        mask[pixels] = CLASSES.index(name)
    return mask


# ---- readers: independent of the exports


def read_coco(folder):
    data = coco.COCO(str(folder / "annotations.json"))
    names = {category["id"]: category["name"] for category in data.loadCats(data.getCatIds())}
    by_image = {}
    for image in data.loadImgs(data.getImgIds()):
        assert (image["height"], image["width"]) == (H, W)
        found = data.loadAnns(data.getAnnIds(imgIds=image["id"]))
        shapes = [(names[entry["category_id"]], data.annToMask(entry) > 0) for entry in found]
        for entry, (_, pixels) in zip(found, shapes, strict=True):
            x, y, w, h = entry["bbox"]
            assert pixels[y : y + h, x : x + w].sum() == pixels.sum() > 0
        by_image[Path(image["file_name"]).with_suffix("").as_posix()] = painted(shapes)
    return list(names.values()), by_image


def read_labelme(folder):
    by_image = {}
    for path in folder.rglob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert cv2.imread(str(path.parent / data["imagePath"])).shape[:2] == (data["imageHeight"], data["imageWidth"])
        shapes = []
        for shape in data["shapes"]:
            assert shape["shape_type"] == "polygon" and data["imageData"] is None
            canvas = Image.new("1", (W, H))  # as labelme's own export does
            ImageDraw.Draw(canvas).polygon([tuple(point) for point in shape["points"]], fill=1, outline=1)
            shapes.append((shape["label"], np.array(canvas)))
        by_image[path.relative_to(folder).with_suffix("").as_posix()] = painted(shapes)
    return (folder / "labels.txt").read_text(encoding="utf-8").splitlines(), by_image


def read_yolo(folder):
    data = yaml.safe_load((folder / "data.yaml").read_text(encoding="utf-8"))
    by_image = {}
    for path in (folder / data["train"]).rglob("*.png"):
        name = path.relative_to(folder / "images").with_suffix("").as_posix()
        shapes = []
        for line in (folder / "labels" / f"{name}.txt").read_text().splitlines():
            number, *shares = line.split()
            points = np.array(shares, np.float32).reshape(-1, 2) * (W, H)
            canvas = np.zeros((H, W), np.uint8)
            cv2.fillPoly(canvas, [points.astype(np.int32)], 1)  # rounds down, as Ultralytics does
            shapes.append((data["names"][int(number)], canvas > 0))
        by_image[name] = painted(shapes)
    return list(data["names"].values()), by_image


def read_cvat(folder):
    root = ET.parse(folder / "annotations.xml").getroot()
    assert root.findtext("version") == "1.1"
    by_image = {}
    for number, image in enumerate(root.iter("image")):
        assert (image.get("id"), image.get("height"), image.get("width")) == (str(number), str(H), str(W))
        shapes = []
        for entry in image.iter("mask"):
            x, y, w, h = (int(entry.get(key)) for key in ("left", "top", "width", "height"))
            values, value = [], 0
            for run in entry.get("rle").split(","):
                values += [value] * int(run)
                value = 1 - value
            pixels = np.zeros((H, W), bool)
            pixels[y : y + h, x : x + w] = np.reshape(values, (h, w))
            shapes.append((entry.get("label"), pixels))
        by_image[Path(image.get("name")).with_suffix("").as_posix()] = painted(shapes)
    return [label.findtext("name") for label in root.iter("label")], by_image


def read_png(folder):
    lines = [row.split(":") for row in (folder / "labelmap.txt").read_text(encoding="utf-8").splitlines()[1:]]
    ids = {tuple(map(int, colour.split(","))): number for number, (_, colour, *_) in enumerate(lines)}
    by_image = {}
    for name in (folder / "ImageSets" / "Segmentation" / "default.txt").read_text(encoding="utf-8").splitlines():
        path = folder / "SegmentationClass" / f"{name}.png"
        colours = cv2.imread(str(path))[:, :, ::-1]  # as CVAT reads them
        mask = np.array([[ids[tuple(pixel)] for pixel in row] for row in colours.tolist()], np.uint8)
        assert np.array_equal(mask, np.asarray(Image.open(path)))  # values are ids, too
        by_image[name] = mask
    return [name for name, *_ in lines][1:], by_image


def by_volume(folder, ending, read):
    """Return the frames of volumes (T, H, W) by image, in the order of the exported images."""
    volumes = [read(folder / "labels" / f"day {number}{ending}") for number in (0, 1)]
    frames = np.concatenate(volumes).astype(np.uint8)
    return dict(zip(paths(len(frames)), frames, strict=True))


def read_nifti(folder):
    def read(path):
        return np.asarray(nib.load(path).dataobj).transpose(2, 1, 0)

    rows = [row.split('"')[1] for row in (folder / "labels.txt").read_text(encoding="utf-8").splitlines()[2:]]
    return rows[1:], by_volume(folder, ".nii.gz", read)


def read_nrrd(folder):
    def read(path):
        itk = sitk.ReadImage(str(path))
        data, header = nrrd.read(str(path))
        assert np.array_equal(sitk.GetArrayFromImage(itk), data.transpose(2, 1, 0))
        places = range(len(CLASSES) - 1)
        assert [header[f"Segment{place}_LabelValue"] for place in places] == ["1", "2", "3", "4"]
        assert {header[f"Segment{place}_Layer"] for place in places} == {"0"}
        names.append([itk.GetMetaData(f"Segment{place}_Name") for place in places])
        frames = sitk.ReadImage(str(folder / "frames" / f"{path.name.removesuffix('.seg.nrrd')}.nrrd"))
        assert frames.GetSize() == itk.GetSize() and frames.GetNumberOfComponentsPerPixel() == 3
        assert frames.GetDirection() == itk.GetDirection()
        return sitk.GetArrayFromImage(itk)

    names = []
    frames = by_volume(folder, ".seg.nrrd", read)
    assert names[0] == names[1]
    return names[0], frames


READERS = {
    "coco": read_coco, "cvat": read_cvat, "labelme": read_labelme, "nifti": read_nifti, "nrrd": read_nrrd,
    "png": read_png, "yolo": read_yolo,
}  # fmt: skip


# ---- round trips


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_a_hundred_frames_come_back_with_their_names_and_pixels(name, hundred):
    compare(name, hundred, 100)


@pytest.mark.parametrize("name", EXPORTS)
def test_ten_frames_come_back_with_their_names_and_pixels(name, exported):
    compare(name, exported, 10)


def compare(name, folder, count):
    """With classes that never occur, empty frames, holes and single pixels; the expectation is the mask itself."""
    names, frames = READERS[name](folder / name)
    assert names == list(CLASSES[1:])
    assert sorted(frames) == paths(count)
    worst = defaultdict(lambda: 1.0)
    for path, mask in zip(paths(count), MASKS[:count], strict=True):
        for class_id in range(1, len(CLASSES)):
            one, other = frames[path] == class_id, mask == class_id
            if (union := (one | other).sum()) == 0:
                continue
            worst[class_id] = min(worst[class_id], (one & other).sum() / union)
    assert set(worst) == {1, 2, 3}
    assert min(worst.values()) >= (0.99 if name in POLYGONS else 1.0)


def test_every_format_is_a_raster_or_polygons_and_has_a_reader():
    assert sorted(POLYGONS + RASTERS) == sorted(EXPORTS) == sorted(READERS)


def test_a_large_tool_needs_few_points_and_a_pixel_keeps_four_corners():
    mask = np.zeros((400, 600), np.uint8)
    cv2.ellipse(mask, (300, 200), (250, 120), 20, 0, 360, 1, -1)
    mask[0, 599] = 2
    (large, outline), (speck, corners) = module.polygons(mask)
    assert (large.class_id, speck.class_id) == (1, 2)
    assert len(outline) <= 40 and sorted(map(tuple, corners.tolist())) == [
        (599.25, 0.25), (599.25, 0.75), (599.75, 0.25), (599.75, 0.75),
    ]  # fmt: skip


def test_a_speck_survives_a_large_neighbour_that_is_simplified():
    mask = np.zeros((100, 100), np.uint8)
    cv2.circle(mask, (50, 50), 40, 1, -1)
    border = np.argwhere((mask == 0) & (cv2.dilate(mask, np.ones((3, 3), np.uint8)) == 1))
    mask[tuple(border[::9].T)] = 2
    for fill in module.FILLS:
        canvas = np.zeros_like(mask)
        for region, polygon in module.polygons(mask):
            canvas[fill(polygon, 100, 100)] = region.class_id
        assert min(module.iou(canvas == number, mask == number) for number in (1, 2)) >= module.LEAST_IOU


def test_run_lengths_begin_with_the_background():
    assert run_lengths(np.array([[False, True, True], [True, False, False]])) == [1, 3, 2]
    assert run_lengths(np.array([[True, False]])) == [0, 1, 1]
    assert run_lengths(np.ones((2, 2), bool)) == [0, 4]


def test_colours_are_those_of_overlays_and_never_repeat(exported):
    from shared_components.common.drawing.palette import colour

    colours = class_colours(254)
    assert len(set(colours)) == 254 and colours[:13] == [colour(number) for number in range(13)]
    blue = colour(1)
    labels = json.loads((exported / "cvat" / "labels.json").read_text(encoding="utf-8"))
    assert (labels[0]["name"], labels[0]["color"]) == (CLASSES[1], "#{:02x}{:02x}{:02x}".format(*blue))
    config = yaml.safe_load((exported / "labelme" / "labelme.yaml").read_text(encoding="utf-8"))
    assert config["label_colors"][CLASSES[1]] == list(blue)
    categories = json.loads((exported / "coco" / "annotations.json").read_text())["categories"]
    assert categories[0]["color"] == list(blue)
    segment = sitk.ReadImage(str(exported / "nrrd" / "labels" / "day 0.seg.nrrd")).GetMetaData("Segment0_Color")
    assert [round(255 * float(value)) for value in segment.split()] == list(blue)


# ---- names, videos and files


def test_annotations_name_the_images_of_a_folder_and_the_frames_of_a_video(exported, tmp_path):
    """CVAT finds a video's frames by their number in the video, with `every` as well."""
    names = [image["file_name"] for image in json.loads((exported / "coco" / "annotations.json").read_text())["images"]]
    assert names[0] == "day 0/Bild_000.jpg" and not (exported / "coco" / "images").exists()
    video = write_video(tmp_path / "surgery.mp4", grey(6, H, W))
    out = export(video, tmp_path / "out", MASKS[:3], *EXPORTS, every=2)
    images = list(ET.parse(out / "cvat" / "annotations.xml").getroot().iter("image"))
    assert [(image.get("id"), image.get("name")) for image in images] == [
        (str(number), f"frame_{number:06d}.png") for number in (0, 2, 4)
    ]
    assert not (out / "cvat" / "images").exists()
    for folder in ("coco/images", "labelme", "yolo/images"):
        assert sorted(path.name for path in (out / folder).glob("*.png")) == [image.get("name") for image in images]
    assert sitk.ReadImage(str(out / "nrrd" / "labels" / "surgery.seg.nrrd")).GetSize() == (W, H, 3)


def test_ultralytics_finds_the_labels_of_a_sub_folder_named_images(tmp_path):
    write_image(tmp_path / "frames" / "day-1" / "images" / "a.jpg", size=(H, W))
    out = export(tmp_path / "frames", tmp_path / "out", MASKS[:1], "yolo")
    image = next((out / "yolo" / "images").rglob("*.png")).as_posix()
    before, _, after = image.rpartition("/images/")  # the rule of `img2label_paths` of Ultralytics
    assert Path(f"{before}/labels/{after}").with_suffix(".txt").is_file()


@pytest.mark.parametrize("name", EXPORTS)
def test_a_failed_run_leaves_no_file_and_a_corrected_export_is_not_replaced(name, tmp_path):
    write_image(tmp_path / "frames" / "a.png", size=(H, W))
    write_image(tmp_path / "frames" / "b.png", size=(H, W))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        export(tmp_path / "frames", tmp_path / "out", MASKS[:1], name)
    assert not (tmp_path / "out").exists()
    for _ in range(2):  # an unchanged export is replaced
        export(tmp_path / "frames", tmp_path / "out", MASKS[:2], name)
    record = json.loads((tmp_path / "out" / "prediction.json").read_text())
    files = [path for path in (tmp_path / "out" / name).rglob("*") if path.is_file()]
    assert set(record["exports"]) == {path.relative_to(tmp_path / "out").as_posix() for path in files}
    labels = {"coco": "*.json", "cvat": "*.xml", "labelme": "a.json", "nifti": "*.nii.gz", "nrrd": "*.seg.nrrd"}
    (corrected,) = (tmp_path / "out" / name).rglob({**labels, "png": "a.png", "yolo": "a.txt"}[name])
    corrected.write_bytes(corrected.read_bytes() + b" ")
    with pytest.raises(InferenceError, match=f"{name}/.* was changed after the prediction .* move .*out/{name} away"):
        export(tmp_path / "frames", tmp_path / "out", MASKS[:2], name)


def test_the_record_of_version_0_1_0_protects_its_volumes(tmp_path):
    """It has hashes of only NIfTI's files, under another key and relative to their folder."""
    write_image(tmp_path / "frames" / "a.png", size=(H, W))
    out = export(tmp_path / "frames", tmp_path / "out", MASKS[:1], "nifti")
    for change in (b"", b" "):
        record = json.loads((out / "prediction.json").read_text())
        hashes = {name.removeprefix("nifti/"): value for name, value in record.pop("exports").items()}
        (out / "prediction.json").write_text(json.dumps({**record, "labels": hashes}))
        path = out / "nifti" / "labels" / "frames.nii.gz"
        path.write_bytes(path.read_bytes() + change)
        if change:
            with pytest.raises(InferenceError, match="was changed after the prediction"):
                export(tmp_path / "frames", out, MASKS[:1], "nifti")
        else:
            export(tmp_path / "frames", out, MASKS[:1], "nifti")


@pytest.mark.parametrize("name", ["coco", "cvat", "png"])
def test_a_file_that_cannot_be_finished_hides_no_error_and_leaves_nothing(name, tmp_path):
    """The buffered rest does not fit the disk, either, when the run is abandoned."""
    for frame in ("a", "b"):
        write_image(tmp_path / "frames" / f"{frame}.png", size=(H, W))

    def masks():
        yield MASKS[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        raise ValueError("the model failed")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(ValueError, match="the model failed"):
            export(tmp_path / "frames", tmp_path / "out", masks(), name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EXPORTS)
def test_a_full_disk_leaves_no_export(name, tmp_path):
    write_image(tmp_path / "frames" / "a.png", size=(H, W))
    with full_disk(100), pytest.raises(OSError, match="could not be written"):
        export(tmp_path / "frames", tmp_path / "out", MASKS[:1], name)
    assert not (tmp_path / "out").exists()


def test_what_a_format_cannot_contain_is_refused_before_a_frame_is_predicted(tmp_path, monkeypatch):
    write_image(tmp_path / "a.png")
    stream = FrameStream(tmp_path / "a.png", height=32, width=64)
    with pytest.raises(InferenceError, match=r"export is 'pascal'; use one of coco, cvat"):
        PredictionFolder(tmp_path / "out", stream, TASK, exports=["pascal"])
    task = make_task("segmentation", classes=("background", "grasper: left"))
    with pytest.raises(InferenceError, match=r"labelmap\.txt cannot contain the class 'grasper: left'"):
        PredictionFolder(tmp_path / "out", stream, task, exports=["png"])
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    for name in POLYGONS:
        with pytest.raises(ModuleNotFoundError, match="pycocotools"):
            PredictionFolder(tmp_path / "out", stream, TASK, exports=[name])


@pytest.mark.parametrize("name", ["coco", "cvat", "labelme", "nrrd", "yolo"])
def test_surgfl_masks_reads_an_export_back(name, exported, tmp_path):
    """Frames without a shape are left out, since no file says whether they are done; 3D Slicer does not list them."""
    kind, files = annotation_files(exported / name)
    images = exported / name if name in ("labelme", "yolo") else exported.parent / "frames"
    result = convert([read_annotations(file, kind) for file in files], images, tmp_path)
    names = label_names([tmp_path])
    assert set(names.values()) == set(CLASSES[1:4])
    written = {"/".join(path.with_suffix("").parts[-2:]): path for path in tmp_path.rglob("*.png")}
    counts = {left.kind: left.count for left in result.inventory.left_out}
    assert sorted(written) == paths(10)[:9] and counts.get("frames", 0) == (name != "nrrd")
    for path, mask in zip(paths(10)[:9], MASKS, strict=False):
        found = cv2.imread(str(written[path]), cv2.IMREAD_UNCHANGED)
        for number, class_name in names.items():
            one, other = found == number, mask == CLASSES.index(class_name)
            assert (one & other).sum() >= (0.99 if name in POLYGONS else 1) * (one | other).sum()
