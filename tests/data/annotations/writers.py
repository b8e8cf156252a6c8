"""Write small annotation files as other programs do, by their documented formats.

Every writer annotates the frames of `tests.data.custom.conftest.canonical`: a clamp and an irrigator, two rectangles.
"""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from tests.data.custom.conftest import FRAMES, H, W, canonical, lay, photograph

NAMES = ("bulldog clamp", "irrigator")
"""Names of the ids 1 and 2 in `canonical`."""
VIDEOS = ("op_1", "op_2", "op_3")


def areas(index: int) -> list[tuple[str, np.ndarray]]:
    """Return the name and the pixels of each class in a frame, bool (H, W)."""
    return [(name, canonical(index) == place) for place, name in enumerate(NAMES, 1)]


def corners(pixels: np.ndarray) -> list[list[int]]:
    """Return the corners of a rectangle, [[x, y], ...]; the pixel in column x covers x to x + 1."""
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return [[int(x), int(y)] for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))]


def flat(points: Sequence[Sequence[float]]) -> list[float]:
    return [number for point in points for number in point]


def runs(pixels: np.ndarray) -> list[int]:
    """Count equal neighbours of a flat mask one by one, beginning with background."""
    counts, value = [0], False
    for pixel in pixels.ravel():
        if bool(pixel) != value:
            counts.append(0)
            value = not value
        counts[-1] += 1
    return counts


def frames(template: str) -> Iterable[tuple[str, str, int]]:
    """Yield path, video and number of each frame."""
    for video in VIDEOS:
        yield from ((template.format(v=video, n=index), video, index) for index in range(FRAMES))


def lay_images(root: Path, template: str = "images/{v}/f_{n}.png") -> None:
    lay(root, template, "unused/{v}_{n}.txt.png", videos=VIDEOS, pictured=photograph)
    for path in (root / "unused").iterdir():
        path.unlink()
    (root / "unused").rmdir()


def coco(root: Path) -> Path:
    """https://cocodataset.org/#format-data: a polygon, run lengths of a crowd, and packed run lengths."""
    lay_images(root)
    images, annotations = [], []
    for name, _, index in frames("{v}/f_{n}.png"):
        images.append({"id": len(images), "file_name": name, "height": H, "width": W})
        for category, (_, pixels) in enumerate(areas(index), 1):
            counts: object = runs(pixels.T)
            if index == 1:
                counts = coco_mask.encode(np.asfortranarray(pixels.astype(np.uint8)))["counts"].decode()
            shape: object = [flat(corners(pixels))] if index % 2 == 0 else {"size": [H, W], "counts": counts}
            annotations.append({
                "id": len(annotations), "image_id": images[-1]["id"], "category_id": category, "segmentation": shape,
                "area": int(pixels.sum()), "iscrowd": int(index == 3),
            })  # fmt: skip
    categories = [{"id": 0, "name": "instruments"}, *({"id": n, "name": name} for n, name in enumerate(NAMES, 1))]
    path = root / "_annotations.coco.json"
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    return path


def labelme(root: Path) -> Path:
    """https://github.com/wkentaro/labelme: one JSON beside each image; a polygon, or a mask of labelme 5."""
    lay_images(root)
    for name, _, index in frames("images/{v}/f_{n}.png"):
        shapes = []
        for label, pixels in areas(index):
            points = corners(pixels)
            shape = {"label": label, "points": points, "group_id": None, "shape_type": "polygon", "flags": {}}
            if index == 1:
                (left, top), (right, bottom) = points[0], points[2]
                png = cv2.imencode(".png", pixels[top:bottom, left:right].astype(np.uint8) * 255)[1]
                box = [points[0], [right - 1, bottom - 1]]
                shape |= {"shape_type": "mask", "points": box, "mask": base64.b64encode(png.tobytes()).decode()}
            shapes.append(shape)
        path = (root / name).with_suffix(".json")
        content = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imagePath": path.with_suffix(".png").name}
        path.write_text(json.dumps(content | {"imageData": "A" * 200_000, "imageHeight": H, "imageWidth": W}))
    return root / "images"


def cvat_shape(kind: int, label: str, pixels: np.ndarray, attributes: str = "") -> str:
    """https://docs.cvat.ai/docs/other/xml_format: a polygon (0), or a mask (1)."""
    points = corners(pixels)
    if kind == 0:
        text = ";".join(f"{x:.2f},{y:.2f}" for x, y in points)
        return f'<polygon label="{label}" occluded="0" points="{text}" z_order="0"{attributes}></polygon>'
    (left, top), (right, bottom) = points[0], points[2]
    rle = ", ".join(map(str, runs(pixels[top:bottom, left:right])))
    place = f'left="{left}" top="{top}" width="{right - left}" height="{bottom - top}"'
    return f'<mask label="{label}" occluded="0" rle="{rle}" {place} z_order="0"{attributes}></mask>'


LABELS = "<labels>" + "".join(f"<label><name>{name}</name></label>" for name in (*NAMES, "trocar")) + "</labels>"


def cvat_images(root: Path) -> Path:
    lay_images(root)
    images = []
    for name, _, index in frames("{v}/f_{n}.png"):
        shapes = "".join(cvat_shape(index % 2, label, pixels) for label, pixels in areas(index))
        images.append(f'<image id="{len(images)}" name="{name}" width="{W}" height="{H}">{shapes}</image>')
    path = root / "annotations.xml"
    meta = f"<meta><task><id>1</id><size>12</size><mode>annotation</mode>{LABELS}</task></meta>"
    head = '<?xml version="1.0" encoding="utf-8"?>'
    path.write_text(f"{head}\n<annotations>\n<version>1.1</version>{meta}{''.join(images)}</annotations>")
    return path


def cvat_video(root: Path) -> Path:
    """Write a file for each video: the clamp's track with every frame, the irrigator's with keyframes only."""
    lay_images(root, "videos/{v}.mp4")
    for video in VIDEOS:
        tracks = []
        for place, label in enumerate(NAMES):
            every = range(FRAMES) if place == 0 else (0, FRAMES - 1)
            shapes = "".join(
                cvat_shape(0, label, areas(index)[place][1], f' frame="{index}" outside="0" keyframe="1"')
                for index in every
            )
            tracks.append(f'<track id="{place}" label="{label}" source="manual">{shapes}</track>')
        size = f"<original_size><width>{W}</width><height>{H}</height></original_size>"
        task = f"<task><size>{FRAMES}</size><mode>interpolation</mode>{LABELS}{size}<source>{video}.mp4</source></task>"
        path = root / "cvat" / f"{video}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<annotations>\n<version>1.1</version><meta>{task}</meta>{''.join(tracks)}</annotations>")
    return root / "cvat"


def packed_brush(pixels: np.ndarray) -> list[int]:
    """Pack the RGBA image of a brush bit by bit, by the description of thi.ng/rle-pack.

    Rows of the mask are repeated runs, its first pixel is a run of different values.
    """
    values = np.repeat(pixels.ravel().astype(int) * 255, 4).tolist()
    bits = f"{len(values):032b}" + f"{8 - 1:05b}" + "".join(f"{width - 1:04b}" for width in (3, 4, 8, 16))
    bits += "0" + "00" + f"{4 - 1:03b}" + "".join(f"{value:08b}" for value in values[:4])
    place = 4
    while place < len(values):
        stop = place
        while stop < len(values) and values[stop] == values[place] and stop - place < 1 << 16:
            stop += 1
        bits += "1" + "11" + f"{stop - place - 1:016b}" + f"{values[place]:08b}"
        place = stop
    bits += "0" * (-len(bits) % 8)
    return [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]


def label_studio(root: Path) -> Path:
    """https://labelstud.io/guide/export: a polygon in percent, or a brush."""
    lay_images(root)
    tasks = []
    for name, _, index in frames("images/{v}/f_{n}.png"):
        regions = []
        for label, pixels in areas(index):
            points = [[100 * x / W, 100 * y / H] for x, y in corners(pixels)]
            value: dict = {"points": points, "closed": True, "polygonlabels": [label]}
            if index % 2:
                value = {"format": "rle", "rle": packed_brush(pixels), "brushlabels": [label]}
            kind = "brushlabels" if index % 2 else "polygonlabels"
            region = {"id": "x", "from_name": "tag", "to_name": "image", "type": kind, "value": value}
            regions.append(region | {"original_width": W, "original_height": H, "image_rotation": 0})
        annotation = {"id": 1, "result": regions, "was_cancelled": False, "updated_at": "2026-01-01T00:00:00Z"}
        image = f"/data/local-files/?d={name.replace('/', '%2F')}"
        tasks.append({"id": len(tasks), "data": {"image": image}, "annotations": [annotation], "predictions": []})
    path = root / "project-1.json"
    path.write_text(json.dumps(tasks))
    return path


def yolo(root: Path) -> Path:
    """https://docs.ultralytics.com/datasets/segment: shares of width and height."""
    lay_images(root)
    for name, _, index in frames("labels/{v}/f_{n}.txt"):
        lines = []
        for number, (_, pixels) in enumerate(areas(index)):
            points = " ".join(f"{x / W:.6f} {y / H:.6f}" for x, y in corners(pixels))
            lines.append(f"{number} {points}\n")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines))
    path = root / "data.yaml"
    path.write_text(f"path: ../datasets/ours\ntrain: images/train\nnc: 2\nnames: {json.dumps(NAMES)}\n")
    return path


def nrrd(path: Path, labels: np.ndarray, *, offset: str = "0 0 0", more: str = "", packed: bool = True) -> Path:
    """Write labels (layers, W, H, frames) with the header of 3D Slicer's .seg.nrrd."""
    sizes = " ".join(map(str, labels.shape[labels.shape[0] == 1 :]))
    layered = labels.shape[0] > 1
    header = [
        "NRRD0004", "# Complete NRRD file format specification at:", "type: unsigned char",
        f"dimension: {3 + layered}", "space: left-posterior-superior", f"sizes: {sizes}",
        f"space directions: {'none ' * layered}(1,0,0) (0,1,0) (0,0,1)",
        f"kinds: {'list ' * layered}domain domain domain", f"encoding: {'gzip' if packed else 'raw'}",
        "space origin: (0,0,0)", f"Segmentation_ReferenceImageExtentOffset:={offset}",
    ]  # fmt: skip
    for number, name in enumerate(NAMES):
        layer = number if layered else 0
        value = 1 if layered else number + 1
        header += [f"Segment{number}_ID:=Segment_{number}", f"Segment{number}_Name:={name}",
                   f"Segment{number}_LabelValue:={value}", f"Segment{number}_Layer:={layer}"]  # fmt: skip
    data = labels.astype(np.uint8).tobytes(order="F")
    text = "\n".join(header) + f"\n{more}\n"
    path.write_bytes(text.encode() + (gzip.compress(data, mtime=0) if packed else data))
    return path


def seg_nrrd(root: Path) -> Path:
    """Write a cropped volume for each video, as 3D Slicer does: without the first rows and the last columns."""
    lay_images(root)
    for video in VIDEOS:
        volume = np.stack([canonical(index).T for index in range(FRAMES)], axis=-1)[None]  # (1, W, H, T)
        nrrd(root / f"{video}.seg.nrrd", volume[:, 3:31, 0:20], offset="3 0 0")
    return root


WRITERS: dict[str, Callable[[Path], Path]] = {
    writer.__name__: writer
    for writer in (coco, labelme, cvat_images, cvat_video, label_studio, yolo, seg_nrrd)
}  # fmt: skip
