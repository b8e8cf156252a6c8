"""Shapes and formats, compared with pixels counted one by one, with OpenCV and with pycocotools."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from shared_components.data.annotations import coco, label_studio
from shared_components.data.annotations.formats import FORMATS, annotation_files, read_annotations
from shared_components.data.annotations.shapes import Polygons, ellipse, pixels_of_runs
from shared_components.data.files.images import DataError
from tests.data.annotations import writers
from tests.data.annotations.writers import WRITERS, corners, cvat_images, nrrd, packed_brush, runs, yolo
from tests.data.custom.conftest import H, W, canonical

SQUARE = "2,2;6,2;6,6;2,6"  # columns and rows 2 to 5


def drawn(frame, size=(H, W)) -> dict[str, np.ndarray]:
    return {shape.name: shape.draw(size) for shape in frame.shapes}


def cvat_file(tmp_path: Path, content: str, *, task: str = "<size>9</size>") -> Path:
    path = tmp_path / "annotations.xml"
    meta = f"<meta><task>{task}<labels><label><name>hook</name></label></labels></task></meta>"
    path.write_text(f"<annotations><version>1.1</version>{meta}{content}</annotations>")
    return path


def test_a_polygon_on_whole_pixels_covers_these_and_another_the_pixels_whose_centre_is_inside():
    """Only pixels whose centre is within 0.75 pixels of the outline may differ from OpenCV's test of the centre."""
    expected = np.zeros((12, 14), bool)
    expected[2:6, 3:9] = True
    np.testing.assert_array_equal(Polygons([[3, 2, 9, 2, 9, 6, 3, 6]])((12, 14)), expected)
    points = np.random.default_rng(7).uniform(-5, 45, (9, 2)).astype(np.float32)
    ring = cv2.convexHull(points).reshape(-1, 2)
    area = Polygons([ring.ravel().tolist()])((40, 40))
    distances = {(y, x): cv2.pointPolygonTest(ring, (x + 0.5, y + 0.5), True) for y, x in np.ndindex(40, 40)}
    assert sum(abs(distance) > 0.75 for distance in distances.values()) > 1200
    for place, distance in distances.items():  # above 0 inside
        assert abs(distance) <= 0.75 or area[place] == (distance > 0)


def test_a_convex_polygon_has_the_area_of_its_outline():
    ring = np.array(ellipse((20.3, 18.9), (11.7, 6.2), 30))
    area = int(Polygons([ring.tolist()])((40, 40)).sum())
    assert area == pytest.approx(cv2.contourArea(ring.reshape(-1, 1, 2).astype(np.float32)), rel=0.02)
    assert area == pytest.approx(np.pi * 11.7 * 6.2, rel=0.02)


def test_several_polygons_of_an_object_are_united():
    area = Polygons([[0, 0, 2, 0, 2, 2, 0, 2], [1, 1, 3, 1, 3, 3, 1, 3]])((4, 4))
    assert area.astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("ring", [[0, 0, 1e9, 0, 5, 5], [float("nan"), 0, 1, 1, 2, 2], [0, 0, 4e6, 4e6, 0, 1]])
def test_a_polygon_that_would_take_much_memory_is_refused_before_it_is_drawn(ring):
    with pytest.raises(ValueError, match="longer than 4194304 pixels"):
        Polygons([ring])((H, W))


def test_run_lengths_fill_rows_or_columns_and_must_fill_the_size():
    expected = np.array([[0, 1, 1], [1, 0, 0]], bool)
    np.testing.assert_array_equal(pixels_of_runs([1, 3, 2], (2, 3), by_column=False), expected)
    np.testing.assert_array_equal(pixels_of_runs(runs(expected.T), (2, 3), by_column=True), expected)
    for wrong in ([1, 3, 3], [1, 3], [-1, 7], []):
        with pytest.raises(ValueError, match="do not fill 3x2"):
            pixels_of_runs(wrong, (2, 3), by_column=False)


@pytest.mark.parametrize("seed", range(8))
def test_packed_run_lengths_are_those_that_pycocotools_packs(seed):
    random = np.random.default_rng(seed)
    pixels = cv2.resize(random.integers(0, 2, (5 + seed, 9), np.uint8), (61, 47), interpolation=cv2.INTER_NEAREST)
    text = coco_mask.encode(np.asfortranarray(pixels))["counts"].decode()
    assert coco.unpacked(text) == runs(pixels.T)


@pytest.mark.parametrize("text", ["0 1", "P", "o" * 20, "é1"])
def test_packed_run_lengths_that_are_no_such_text_are_refused(text):
    with pytest.raises(ValueError, match="compressed run lengths"):
        coco.unpacked(text)


def test_a_brush_is_unpacked_bit_by_bit_and_a_cut_or_longer_one_is_refused():
    pixels = canonical(1) == 2
    packed = bytes(packed_brush(pixels))
    values = label_studio.unpacked(packed, H * W * 4).reshape(H, W, 4)
    np.testing.assert_array_equal(values, np.repeat(pixels[..., None] * 255, 4, axis=2))
    for cut in range(len(packed) - 1):
        with pytest.raises(ValueError, match="a brush mask"):
            label_studio.unpacked(packed[:cut], H * W * 4)
    with pytest.raises(ValueError, match="does not have the 4 values"):
        label_studio.unpacked(packed, 4)


def test_a_track_is_interpolated_between_keyframes_and_ends_outside(tmp_path):
    """By hand: the square moves 4 columns to the right in 4 frames, so it has moved 2 in frame 2."""
    track = (
        f'<track id="0" label="hook"><polygon frame="0" outside="0" keyframe="1" points="{SQUARE}"/>'
        '<polygon frame="4" outside="0" keyframe="1" points="6,2;10,2;10,6;6,6"/>'
        '<polygon frame="6" outside="1" keyframe="1" points="6,2;10,2;10,6;6,6"/></track>'
    )
    frames = read_annotations(cvat_file(tmp_path, track), "cvat").frames
    assert [frame.place for frame in frames] == [0, 1, 2, 3, 4, 5]
    lefts = [int(np.flatnonzero(drawn(frame)["hook"].any(0))[0]) for frame in frames]
    assert lefts == [2, 3, 4, 5, 6, 6]
    every_second = read_annotations(cvat_file(tmp_path, track, task="<frame_filter>step=2</frame_filter>"), "cvat")
    assert [frame.place for frame in every_second.frames] == [0, 2, 4]


def test_frames_between_keyframes_of_other_shapes_are_left_out_and_counted(tmp_path):
    track = (
        f'<track id="0" label="hook"><polygon frame="0" outside="0" points="{SQUARE}"/>'
        '<polygon frame="3" outside="0" points="6,2;10,2;10,6"/></track>'
        f'<track id="1" label="hook"><polygon frame="1" outside="0" points="{SQUARE}"/></track>'
    )
    content = read_annotations(cvat_file(tmp_path, track, task="<stop_frame>3</stop_frame>"), "cvat")
    assert [frame.place for frame in content.frames] == [0, 3]
    assert content.left_out["shapes between keyframes that cannot be interpolated"] == 2


def test_the_higher_z_order_is_drawn_last_and_other_kinds_of_shapes_are_counted(tmp_path):
    shapes = (
        f'<polygon label="hook" points="{SQUARE}" z_order="2"/><polygon label="a" points="{SQUARE}" z_order="0"/>'
        '<box label="hook" xtl="1" ytl="1" xbr="4" ybr="4"/><skeleton label="s"><points label="1" points="1,1"/>'
        '</skeleton><polygon label="hook" points="1,1;2,2"/>'
        '<ellipse label="b" cx="8" cy="8" rx="4" ry="4" z_order="1"/>'
    )
    image = f'<image id="0" name="f.png" width="{W}" height="{H}">{shapes}</image>'
    content = read_annotations(cvat_file(tmp_path, image), "cvat")
    assert [shape.name for shape in content.frames[0].shapes] == ["a", "b", "hook"]
    assert content.left_out == {"boxes": 1, "skeletons": 1, "polygons with fewer than three points": 1}
    assert drawn(content.frames[0])["b"].sum() == pytest.approx(np.pi * 16, rel=0.05)


def test_segments_of_several_layers_may_overlap_and_keep_their_names(tmp_path):
    layers = np.stack([(canonical(1) > 0).T, (canonical(1) == 2).T])[..., None]
    (frame,) = read_annotations(nrrd(tmp_path / "a.seg.nrrd", layers, packed=False), "seg-nrrd").frames
    assert (frame.names, frame.place) == (("a",), 0)
    np.testing.assert_array_equal(drawn(frame)["bulldog clamp"], canonical(1) > 0)
    np.testing.assert_array_equal(drawn(frame)["irrigator"], canonical(1) == 2)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"more": "data file: ../../secret.raw\n"}, "has its labels in another file"),
    ({"offset": "0 -1 0"}, "lies outside of the frames"), ({"offset": "a b c"}, "lies outside of the frames"),
])  # fmt: skip
def test_a_segmentation_that_names_another_file_or_place_is_refused(changes, sentence, tmp_path):
    path = nrrd(tmp_path / "a.seg.nrrd", canonical(1).T[None, ..., None], **changes)
    with pytest.raises(DataError, match=sentence):
        read_annotations(path, "seg-nrrd")


def test_a_packed_segmentation_is_unpacked_only_to_the_size_of_its_header(tmp_path):
    path = nrrd(tmp_path / "a.seg.nrrd", np.zeros((1, 64, 64, 4), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"sizes: 64 64 4", b"sizes: 64 64 3"))
    with pytest.raises(DataError, match="12289 bytes of labels, not 12288"):
        read_annotations(path, "seg-nrrd")


def test_of_several_annotations_of_a_task_the_ground_truth_or_newest_counts(tmp_path):
    def annotation(label, **keys):
        value = {"points": [[0, 0], [50, 0], [50, 50]], "polygonlabels": [label]}
        return {"result": [{"type": "polygonlabels", "value": value}], **keys}

    given = [annotation("old", updated_at="2026-01-01"), annotation("new", updated_at="2026-02-01"),
             annotation("skipped", was_cancelled=True, updated_at="2026-03-01")]  # fmt: skip
    image = "/data/upload/1/1a2b3c4d-op%201_7.png"
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"id": 1, "data": {"image": image}, "annotations": given}]))
    content = read_annotations(path, "label-studio")
    assert [shape.name for shape in content.frames[0].shapes] == ["new"]
    assert content.left_out == {"skipped or repeated annotations of a task": 2}
    assert content.frames[0].names == ("/data/upload/1/1a2b3c4d-op 1_7.png", "/data/upload/1/op 1_7.png")
    given[0]["ground_truth"] = True
    path.write_text(json.dumps([{"id": 1, "data": {"image": image}, "annotations": given}]))
    assert [shape.name for shape in read_annotations(path, "label-studio").frames[0].shapes] == ["old"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_is_recognised_by_the_content_of_its_files(name, tmp_path):
    place = WRITERS[name](tmp_path)
    kind, paths = annotation_files(place)
    assert kind.replace("-", "_") == name.partition("_")[0] or kind.replace("-", "_") == name
    assert len(paths) == {"labelme": 12, "cvat_video": 3, "seg_nrrd": 3}.get(name, 1)


def test_a_file_of_another_kind_is_refused_with_the_known_formats(tmp_path):
    path = tmp_path / "package.json"
    path.write_text('{"name": "x", "version": "1.0"}')
    with pytest.raises(DataError, match="is no annotation file of COCO, labelme, Label Studio, CVAT XML, YOLO"):
        annotation_files(path)
    with pytest.raises(DataError, match="contains no annotation files of COCO"):
        annotation_files(tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(name, tmp_path):
    """Cut at 12 places, and with 12 bytes changed."""
    kind, paths = annotation_files(WRITERS[name](tmp_path))
    path = paths[0]
    data = path.read_bytes()
    random = np.random.default_rng(3)
    for place in sorted(random.integers(0, len(data), 24)):
        changed = data[:place] if place % 2 else data[:place] + bytes([random.integers(256)]) + data[place + 1 :]
        path.write_bytes(changed)
        try:
            for frame in read_annotations(path, kind).frames:
                drawn(frame)
        except ValueError as error:
            assert "\n" not in str(error)


def test_a_document_type_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotations>&x;</annotations>')
    with pytest.raises(DataError, match="declares a document type or entities"):
        read_annotations(path, "cvat")


def test_a_version_of_cvat_that_nobody_knows_is_refused(tmp_path):
    path = cvat_images(tmp_path)
    path.write_text(path.read_text().replace("<version>1.1<", "<version>2.0<"))
    with pytest.raises(DataError, match=r"has version '2.0', not 1.1; export the annotations again as CVAT"):
        read_annotations(path, "cvat")


def test_two_classes_of_one_name_are_refused_in_yolo_and_merged_with_a_note_in_slicer(tmp_path):
    path = yolo(tmp_path)
    path.write_text("names: [hook, hook]")
    with pytest.raises(DataError, match="has 'names' with two classes 'hook'; give one of them another name"):
        read_annotations(path, "yolo")
    path = nrrd(tmp_path / "a.seg.nrrd", canonical(1).T[None, ..., None], packed=False)
    path.write_bytes(path.read_bytes().replace(b"=bulldog clamp", b"=irrigator"))
    content = read_annotations(path, "seg-nrrd")
    assert (content.classes, content.notes) == (["irrigator"], {"segments of equal names": 1})
    assert len(content.frames[0].shapes) == 2


def test_a_label_without_a_segment_is_refused(tmp_path):
    path = nrrd(tmp_path / "a.seg.nrrd", 2 * canonical(1).T[None, ..., None])
    with pytest.raises(DataError, match="has the label 4 without a segment"):
        read_annotations(path, "seg-nrrd")


def test_every_format_has_a_writer_here():
    assert {name.partition("_")[0] for name in WRITERS} == {name.partition("-")[0] for name in FORMATS}
    assert corners(canonical(0) == 2) == [[4, 0], [10, 0], [10, 8], [4, 8]]
    assert writers.NAMES == ("bulldog clamp", "irrigator")
