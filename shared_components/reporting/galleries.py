"""Read a site's pictures for the page: separate panels, scores of each frame and legends."""

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from shared_components.common.counted import counted
from shared_components.reporting.many_sites import MOST, NAMED, are_many, worst_last_models
from shared_components.reporting.records import Group, RecordError, Run, read_json, score, site_folder

RANKS = ("best", "typical", "worst", "not scored")
_WIDEST = 480  # maximum pixels of an embedded panel, slightly wider than on the page
_EVERY_RANK = 6  # maximum sites with all ranks; with more sites, each shows only its worst frame
_COLOUR = re.compile("#[0-9a-f]{6}")


@dataclass(frozen=True)
class Key:
    """Legend entry: a name, and a colour if there is one."""

    name: str
    colour: str = ""
    text: str = ""


def gallery(run: Run, group: Group, site: str) -> dict[str, Any]:
    """Read the pictures of a site's best, typical and worst frame; with many sites, only of the worst frame.

    Return the site's name, its frames (`shots`), and a note on missing pictures. RecordError: a picture's record cannot
    be read.
    """
    folder = site_folder(run.folder, site) / "overlays"
    records = [(read_json(file), file.with_suffix(".png")) for file in sorted(folder.glob("*.json"))]
    every = len(run.sites) <= _EVERY_RANK or len(records) == 1
    chosen = [(record, file) for record, file in records if every or record.get("rank") == "worst"]
    chosen.sort(key=lambda pair: RANKS.index(pair[0]["rank"]) if pair[0].get("rank") in RANKS else len(RANKS))
    images = [(record, file, cv2.imread(str(file), cv2.IMREAD_COLOR)) for record, file in chosen]
    notes = [f"{file.name} cannot be read." for _, file, image in images if image is None]
    if not records:
        notes.append("No pictures, because they stay at the site and this folder contains none.")
    shots = [_shot(site, group, record, file, image) for record, file, image in images if image is not None]
    return {"name": site, "shots": shots, "note": " ".join(notes)}


def galleries(run: Run, group: Group) -> dict[str, Any]:
    """Read the pictures of a task's sites; with many sites in the run, only of the sites with the worst scores.

    Return `galleries` and `left_out`: the names of the sites that are not shown, by the reason.
    """
    if not are_many(run.sites):
        return {"galleries": [gallery(run, group, site) for site in group.sites], "left_out": {}}
    sites = worst_last_models(run, group)
    own = [site for site in sites if any((site_folder(run.folder, site) / "overlays").glob("*.json"))]
    shown = own[: max(1, min(NAMED, MOST // len(run.groups)))]
    none, more = [site for site in sites if site not in own], own[len(shown) :]
    left_out = {
        f"{counted(len(more), 'more site')} with pictures in the folder overlays": more,
        f"{counted(len(none), 'site')} without pictures in this folder, because they stay at the site": none,
    }
    return {
        "galleries": [gallery(run, group, site) for site in shown],
        "left_out": {text: ", ".join(names) for text, names in left_out.items() if names},
    }


def chosen_frames(run: Run) -> str:
    """Return which frames of each site are shown, for the page's text."""
    if len(run.sites) <= _EVERY_RANK:
        return "the best, a typical one (the median) and the worst"
    if are_many(run.sites):
        return "the worst frame of the sites with the worst validation scores, worst site first"
    return "the worst of every site (the best and a typical one are in the site's folder overlays)"


def _shot(site: str, group: Group, record: dict[str, Any], file: Path, image: np.ndarray) -> dict[str, Any]:
    """Return why a frame was chosen, its place, its score, its legend and its panels."""
    try:
        metric, place = group.first, f"{site}, {record['video']}, frame {record['frame']}"
        rank, of = str(record["rank"]), int(record["of"])
        frames = f"{of} {record['split']} frame{'s' if of > 1 else ''}"
        return {
            "title": f"{rank.capitalize()} of {frames}" if rank in RANKS[:3] else f"One of {frames}, not scored",
            "place": place,
            "score": f"{metric.label} {metric.with_unit(score(record['scores'], metric.name))}",
            "legend": _legend(record, group),
            "panels": [_picture(panel, image, place) for panel in record["panels"]],
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = file.with_suffix(".json")
        raise RecordError(f"{where}: is not a picture's record ({error!r}); remove the file and its picture") from error


def _legend(record: dict[str, Any], group: Group) -> list[Key]:
    """Return each class with its colour and score, then the hatching."""
    colours, metric = {entry["name"]: _colour(entry["colour"]) for entry in record["legend"]}, group.first
    texts = {name: metric.plain_text(score(record["scores"], metric.name, name)) for name in (*colours, *group.outputs)}
    keys = [Key(name, colours.get(name, ""), text) for name, text in texts.items()]
    return [*keys, *([Key("unknown: not compared", "hatched")] if record["hatched"] else [])]


def _picture(panel: dict[str, Any], image: np.ndarray, place: str) -> dict[str, Any]:
    x, y, width, height = map(int, panel["box"])
    cut = image[y : y + height, x : x + width]
    if min(x, y) < 0 or cut.shape[:2] != (height, width) or not cut.size:
        raise ValueError(f"box {panel['box']} is not on the picture of {image.shape[1]}x{image.shape[0]}")
    note, scale = str(panel["note"]), panel["scale"]
    return {
        "name": str(panel["name"]),
        "note": note,
        "alt": f"{place}: {panel['name']}" + (f", {note}" if note else ""),
        "uri": jpeg(cut),
        "size": (width, height),
        "legend": [Key(entry["name"], _colour(entry["colour"])) for entry in panel["legend"]],
        "bar": _bar(scale) if scale else None,
    }


def _bar(scale: dict[str, Any]) -> dict[str, str]:
    low, high = (f"{float(scale[end]):.3g} {scale['unit']}" for end in ("low", "high"))
    return {"low": low, "high": high, "colours": ", ".join(map(_colour, scale["colours"]))}


def _colour(text: str) -> str:
    if not _COLOUR.fullmatch(text):
        raise ValueError(f"{text!r} is not a colour such as #56b4e9")
    return text


def jpeg(image: np.ndarray) -> str:
    """Encode a BGR picture as a JPEG data URI, at most `_WIDEST` pixels wide."""
    height, width = image.shape[:2]
    if width > _WIDEST:
        image = cv2.resize(image, (_WIDEST, round(height * _WIDEST / width)), interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 86])
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode("ascii")
