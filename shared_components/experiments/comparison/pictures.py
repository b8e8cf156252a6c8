"""Write small pictures of a few test frames when a run is scored, and read them for the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
from torch import nn

from shared_components.common.atomic import write_bytes
from shared_components.common.drawing.pictures import encoded, resized
from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Metric
from shared_components.core.evaluation import first_value, json_values, predicted
from shared_components.core.task import Task
from shared_components.data.samples import Sample
from shared_components.experiments.comparison.plan import HELD_OUT
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.federation.setup.find_site import SERVER
from shared_components.reporting.galleries import Key
from shared_components.reporting.records import Group

TESTED = "tested"
"""The folder of the pictures beside a site's models."""
OUTSIDE = "out of federation"
FRAMES = 3  # of a site
WIDTH = 288  # pixels, somewhat more than a page gives them
_QUALITY = 80  # of WebP
_ANSWER = "prediction"  # what a task calls the picture of a model's answer, where it has another name the last one


def chosen(count: int) -> list[int]:
    """Return the numbers of the samples that are shown: the middles of equal stretches of them, whatever is seen."""
    shown = min(count, FRAMES)
    return [(2 * i + 1) * count // (2 * shown) for i in range(shown)]


def write_pictures(
    network: nn.Module, task: Task, samples: Sequence[Sample], *, size: tuple[int, int], folder: Path
) -> list[dict[str, Any]]:
    """Write pictures of a few samples of a split, of the truth and of a model's prediction.

    The network's input has the (height, width) `size`; the folder gets ``<number>-<name>.webp``.

    Returns:
        For each sample its name, the score by the task's first metric (None: not counted), the pictures' names and
        files, with the prediction last, and the meaning of the colours.
    """
    records = []
    for number, answer, item in predicted(network, task, samples, chosen(len(samples)), size=size):
        score = first_value(task, json_values(task.summarise([task.score(answer, item, quick=True)])))
        drawn = _write(task.sheet(answer, item), folder, f"{number:04d}")
        name = f"{samples[number].video}, frame {samples[number].index}"
        records.append({"sample": name, "value": json_values(score), **drawn})
    return records


def _write(sheet: Sheet, folder: Path, stem: str) -> dict[str, Any]:
    """Write the panels up to the prediction, without the errors."""
    names = [panel.name for panel in sheet.panels]
    last = names.index(_ANSWER) if _ANSWER in names else len(names) - 1
    panels = sheet.panels[: last + 1]
    files = [[panel.name, f"{stem}-{panel.name}.webp"] for panel in panels]
    for panel, (_, file) in zip(panels, files, strict=True):
        small = resized(panel.image, min(WIDTH, panel.image.shape[1]))
        write_bytes(folder / file, encoded(small, ".webp", (cv2.IMWRITE_WEBP_QUALITY, _QUALITY)))
    values, scale = sheet.to_json(), panels[-1].scale
    legend, hatched = values["legend"], values["hatched"]
    return {"files": files, "legend": legend, "scale": scale.to_json() if scale else None, "hatched": hatched}


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI, or none; `text` is its score."""

    name: str
    uri: str = ""
    text: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A test frame: the truth about it, and every method's prediction."""

    sample: str
    known: Sequence[Picture]
    answers: Sequence[Picture]
    scale: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Gallery:
    """The frames of one task's sites."""

    metric: Metric
    known: Sequence[str]  # names of the pictures beside the predictions, such as the truth
    labels: Sequence[str]  # of the tables' rows that have a run of the seed
    seed: int
    places: Sequence[tuple[str, Sequence[Row]]]  # a site's name with its rows
    legend: Sequence[Key]


@dataclass(frozen=True)
class _Shown:
    """A record of `pictures.write_pictures`, and where its files are."""

    folder: Path
    record: Mapping[str, Any]

    def uri(self, place: int) -> str:
        file = self.folder / self.record["files"][place][1]
        return "data:image/webp;base64," + base64.b64encode(file.read_bytes()).decode() if file.is_file() else ""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.record["files"]]

    @property
    def value(self) -> float:
        value = self.record["value"]
        return math.nan if value is None else float(value)


def gallery(comparison: Comparison, group: Group) -> Gallery | None:
    """Read the pictures of a task's sites, of the lowest seed that has any; None where no run has any."""
    seeds = sorted({r.run.seed for r in comparison.results if any(_pictures(r, site) for site in group.sites)})
    if not seeds:
        return None
    results = {r.run.variant.label: r for r in comparison.results if r.run.seed == seeds[0]}
    found = {site: _by_sample(results, site) for site in group.sites}
    if outside := {label: r for label, r in results.items() if r.out_of(group)}:
        found[OUTSIDE] = _by_sample(outside, OUTSIDE)
    every = [shown for samples in found.values() for by_label in samples.values() for shown in by_label.values()]
    labels = [label for label in comparison.labels if label in results]
    places = [
        (site, [_row(group.first, sample, by_label, labels) for sample, by_label in samples.items()])
        for site, samples in found.items()
        if samples
    ]
    legend = [Key(**entry) for entry in every[0].record["legend"]]
    if any(shown.record["hatched"] for shown in every):
        legend.append(Key("unknown", "hatched"))
    return Gallery(group.first, every[0].names[:-1], labels, seeds[0], places, legend)


def _by_sample(results: Mapping[str, Result], site: str) -> dict[str, dict[str, _Shown]]:
    """Return every row's picture of every sample of a site."""
    found: dict[str, dict[str, _Shown]] = {}
    for label, result in results.items():
        for shown in _pictures(result, site):
            found.setdefault(shown.record["sample"], {})[label] = shown
    return found


def _pictures(result: Result, site: str) -> list[_Shown]:
    """Return a run's records of a site; none where the run has no result, or is of an older version."""
    if result.folder is None or result.scores is None:
        return []
    scores = result.scores["held_out"] if site == OUTSIDE else result.scores["sites"].get(site)
    outside = HELD_OUT if result.run.variant.data.held_out_trains else SERVER  # whose model was tested there
    folder = result.folder / (outside if site == OUTSIDE else site) / TESTED
    return [_Shown(folder, record) for record in (scores or {}).get("pictures", [])]


def _row(metric: Metric, sample: str, by_label: Mapping[str, _Shown], labels: Sequence[str]) -> Row:
    shown = next(iter(by_label.values()))
    known = [
        Picture(name, next(filter(None, (one.uri(place) for one in by_label.values())), ""))
        for place, name in enumerate(shown.names[:-1])
    ]
    return Row(sample, known, list(_answers(metric, by_label, labels)), shown.record["scale"])


def _answers(metric: Metric, by_label: Mapping[str, _Shown], labels: Sequence[str]) -> Iterator[Picture]:
    values = [one.value for one in by_label.values() if not math.isnan(one.value)]
    different = len(set(map(metric.plain_text, values))) > 1  # else there is no best to mark
    best = metric.plain_text(metric.best(values)) if different else None  # of scores it is more than 0 then
    for label in labels:
        one = by_label.get(label)
        text = metric.plain_text(one.value) if one else ""
        yield Picture(label, one.uri(-1) if one else "", text, text == best)
