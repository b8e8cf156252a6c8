"""Read CVAT's XML, "CVAT for images 1.1" and "CVAT for video 1.1".

Format: https://docs.cvat.ai/docs/other/xml_format. Points are in pixels; run lengths are by row. CVAT lists every frame
of a track; for a file with only its keyframes, polygons with equal numbers of points are interpolated, as CVAT does.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, XMLParser  # nosec B405 # a document type is refused before

import numpy as np

from shared_components.data.annotations.shapes import (
    AGAIN,
    Annotations,
    Draw,
    Frame,
    Polygons,
    Shape,
    ellipse,
    has_area,
    number_of,
    pixels_of_runs,
    placed_at,
)
from shared_components.data.files.images import DataError, Size, read_text, reading

TITLE = "CVAT XML"
_MOST_BYTES = 1 << 29
_AREAS = ("polygon", "mask", "ellipse")
_OTHERS = {
    "box": "boxes", "points": "points", "polyline": "lines", "skeleton": "skeletons", "cuboid": "cuboids",
    "tag": "tags",
}  # fmt: skip
_MOST_FRAMES = 1 << 20  # of a video
_BETWEEN = "shapes between keyframes that cannot be interpolated"


def recognises(head: str) -> bool:
    return "<annotations>" in head and any(f"<{tag}" in head for tag in ("meta>", "image ", "track "))


def read(path: Path) -> Annotations:
    """Read a file; DataError if it is damaged, declares a document type, or lacks a value."""
    root = _parse(path)
    names = [label.findtext("name") or "" for label in root.iterfind("meta//labels/label")]
    result = Annotations(path, names)
    for image in root.iterfind("image"):
        result.frames.append(_image(image, result))
    tracks = list(root.iterfind("track"))
    for video in _videos(root, path).values() if tracks else ():
        video.add([track for track in tracks if track.get("task_id", video.key) == video.key], result)
        result.frames += video.frames()
    result.classes = list(dict.fromkeys([*names, *(s.name for frame in result.frames for s in frame.shapes)]))
    return result


def _parse(path: Path) -> Element:
    text = read_text(path, _MOST_BYTES)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DataError(path, "declares a document type or entities, which CVAT never writes", f"{AGAIN} from CVAT")
    parser = XMLParser()  # nosec B314 # without entities, see above
    with reading(path, "is not readable XML ({})", f"{AGAIN} from CVAT", ParseError):
        parser.feed(text)
        root = parser.close()
    if root.tag != "annotations":
        raise DataError(path, f"begins with <{root.tag}>, not <annotations>", f"{AGAIN} as CVAT for images or video")
    if (version := root.findtext("version")) not in (None, "1.0", "1.1"):
        raise DataError(path, f"has version {version!r:.20}, not 1.1", f"{AGAIN} as CVAT for images or video 1.1")
    return root


def _image(image: Element, result: Annotations) -> Frame:
    drawn: list[tuple[float, Shape]] = []
    others = 0
    for element in image:
        if element.tag in _AREAS:
            shape = _shape(element, element.get("label", ""), result)
            drawn += [(float(element.get("z_order", 0)), shape)] if shape else []
        if element.tag in _OTHERS:
            result.left_out[_OTHERS[element.tag]] += 1
            others += element.tag != "tag"
    name = image.get("name", "")
    return Frame((name,), _in_order(drawn), _size(image, result.path, name), others=others)


def _in_order(drawn: list[tuple[float, Shape]]) -> tuple[Shape, ...]:
    return tuple(shape for _, shape in sorted(drawn, key=lambda pair: pair[0]))


def _size(element: Element, path: Path, name: str) -> Size:
    try:
        return int(element.get("height", "")), int(element.get("width", ""))
    except ValueError as error:
        raise DataError(path, f"has no width and height of {name!r}", AGAIN) from error


def _shape(element: Element, label: str, result: Annotations) -> Shape | None:
    try:
        draw = _area(element)
    except ValueError as error:
        raise DataError(result.path, f"has a {element.tag} of {label!r} that is damaged ({error})", AGAIN) from error
    if draw is None:
        result.left_out["polygons with fewer than three points"] += 1
        return None
    result.notes["occluded shapes"] += element.get("occluded") == "1"
    return Shape(label, draw)


def _area(element: Element) -> Draw | None:
    if element.tag == "mask":
        left, top, width, height = (int(element.get(key, "")) for key in ("left", "top", "width", "height"))
        runs = np.array([int(number) for number in element.get("rle", "").split(",")], np.int64)
        return lambda size: placed_at(pixels_of_runs(runs, (height, width), by_column=False), left, top)(size)
    if element.tag == "ellipse":
        x, y, across, down = (number_of(element.attrib, key) for key in ("cx", "cy", "rx", "ry"))
        return Polygons([ellipse((x, y), (across, down), float(element.get("rotation", 0)))])
    ring = _ring(element)
    return Polygons([ring]) if has_area(ring) else None


def _ring(element: Element) -> list[float]:
    pairs = [pair.split(",") for pair in element.get("points", "").split(";")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"its points are {element.get('points', '')!r:.60}")
    return [float(number) for pair in pairs for number in pair]


@dataclass
class _Video:
    """A video of a task: its tracks' shapes by frame."""

    key: str  # id of the task in a project, or ""
    name: str
    size: Size | None
    length: int | None
    last: int | None  # frame
    step: int  # from a frame to the next
    shapes: defaultdict[int, list[tuple[float, Shape]]] = field(default_factory=lambda: defaultdict(list))
    others: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    broken: set[int] = field(default_factory=set)  # frames with a shape that is not known

    def frames(self) -> Iterator[Frame]:
        for place in sorted({*self.shapes, *self.others} - self.broken):
            shapes = _in_order(self.shapes[place])
            yield Frame((self.name,), shapes, self.size, place, self.length, self.others[place])

    def add(self, tracks: list[Element], result: Annotations) -> None:
        for track in tracks:
            label = track.get("label", "")
            listed = sorted(track, key=_place)
            for element, following in zip(listed, [*listed[1:], None], strict=True):
                if element.get("outside") == "1":
                    continue
                place = _place(element)
                stop = place + 1 if self.last is None else self.last + 1
                self._draw(element, place, label, result)
                between = range(place + self.step, stop if following is None else _place(following), self.step)
                self._interpolate(element, following, between, label, result)

    def _draw(self, element: Element, place: int, label: str, result: Annotations) -> None:
        if element.tag not in _AREAS:
            result.left_out[_OTHERS.get(element.tag, "shapes of an unknown kind")] += 1
            self.others[place] += 1
        elif shape := _shape(element, label, result):
            self.shapes[place].append((float(element.get("z_order", 0)), shape))

    def _interpolate(
        self, before: Element, after: Element | None, places: range, label: str, result: Annotations
    ) -> None:
        """Draw a track between two listed frames; without a visible shape afterwards, the earlier shape stays."""
        if not places or before.tag not in _AREAS:
            return
        held = after is None or after.get("outside") == "1"
        if not held and not _can_interpolate(before, after):
            self.broken.update(places)
            result.left_out[_BETWEEN] += len(places)
            return
        start = _place(before)
        for place in places:
            element = before
            if not held:
                assert after is not None
                share = (place - start) / (_place(after) - start)
                ring = [a + share * (b - a) for a, b in zip(_ring(before), _ring(after), strict=True)]
                points = ";".join(f"{x},{y}" for x, y in zip(ring[::2], ring[1::2], strict=True))
                element = Element("polygon", before.attrib | {"points": points})
            self._draw(element, place, label, result)


def _place(element: Element) -> int:
    """Return the frame of a track's shape; ValueError if there is none, or a video cannot have it."""
    place = int(element.get("frame", ""))
    if not 0 <= place < _MOST_FRAMES:
        raise ValueError(f"frame {place}; a video has at most {_MOST_FRAMES}")
    return place


def _can_interpolate(before: Element, after: Element | None) -> bool:
    if after is None or not before.tag == after.tag == "polygon":
        return False
    return len(_ring(before)) == len(_ring(after))


def _videos(root: Element, path: Path) -> dict[str, _Video]:
    """Return the videos of a task, a job or a project by the task's id; "" for a single task."""
    tasks = root.findall("meta/project/tasks/task")
    single = next((found for kind in ("task", "job") if (found := root.find(f"meta/{kind}")) is not None), None)
    videos = {}
    for task in tasks or ([single] if single is not None else []):
        key = (task.findtext("id") or "") if tasks else ""
        # older files have the source beside the task
        name = task.findtext("source") or root.findtext("meta/source") or task.findtext("name") or path.stem
        given = task.find("original_size")
        original = given if given is not None else root.find("meta/original_size")
        size = None
        if original is not None:
            height, width = original.findtext("height") or "", original.findtext("width") or ""
            size = (int(height), int(width)) if height.isdecimal() and width.isdecimal() else None
        numbers = [task.findtext(tag) or "" for tag in ("size", "stop_frame")]
        length, last = (min(int(number), _MOST_FRAMES) if number.isdecimal() else None for number in numbers)
        step = re.fullmatch(r"step=(\d{1,6})", (task.findtext("frame_filter") or "").strip())
        videos[key] = _Video(key, name, size, length, last, max(1, int(step[1])) if step else 1)
    return videos or {"": _Video("", path.stem, None, None, None, 1)}
