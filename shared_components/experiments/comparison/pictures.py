"""Write small pictures of test frames when a run is scored, and read them for the page."""

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

TESTED = "tested"  # folder of the pictures beside a site's models
OUTSIDE = "out of federation"
OUTSIDE_PICTURES = "held-out pictures"
FRAMES = 3  # per site
WIDTH = 288  # pixels, slightly more than on the page
_QUALITY = 80  # of WebP
_PREDICTION = "prediction"  # last panel to save; tasks without it save all panels


def chosen(count: int) -> list[int]:
    """Return the indices of the samples to show: the middles of equal parts, independent of content."""
    shown = min(count, FRAMES)
    return [(2 * i + 1) * count // (2 * shown) for i in range(shown)]


def write_pictures(
    network: nn.Module, task: Task, samples: Sequence[Sample], *, size: tuple[int, int], folder: Path
) -> list[dict[str, Any]]:
    """Write ground truth and prediction of a few samples as ``<number>-<name>.webp``; `size` is (height, width).

    Return for each sample its name, its score by the task's first metric (None: not counted), the names and files of
    the pictures, the prediction last, and the legend.
    """
    records = []
    for number, answer, item in predicted(network, task, samples, chosen(len(samples)), size=size):
        score = first_value(task, json_values(task.summarise([task.score(answer, item, quick=True)])))
        files = _write(task.sheet(answer, item), folder, f"{number:04d}")
        name = f"{samples[number].video}, frame {samples[number].index}"
        records.append({"sample": name, "value": json_values(score), **files})
    return records


def _write(sheet: Sheet, folder: Path, stem: str) -> dict[str, Any]:
    """Write the panels up to the prediction, without the panel of errors."""
    names = [panel.name for panel in sheet.panels]
    panels = sheet.panels[: names.index(_PREDICTION) + 1] if _PREDICTION in names else sheet.panels
    files = [[panel.name, f"{stem}-{panel.name}.webp"] for panel in panels]
    for panel, (_, file) in zip(panels, files, strict=True):
        small = resized(panel.image, min(WIDTH, panel.image.shape[1]))
        write_bytes(folder / file, encoded(small, ".webp", (cv2.IMWRITE_WEBP_QUALITY, _QUALITY)))
    values, scale = sheet.to_json(), panels[-1].scale
    legend, hatched = values["legend"], values["hatched"]
    return {"files": files, "legend": legend, "scale": scale.to_json() if scale else None, "hatched": hatched}


@dataclass(frozen=True)
class Picture:
    """Picture as a data URI, or empty; `text` is the score."""

    name: str
    uri: str = ""
    text: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """Test frame with its ground truth and each method's prediction."""

    sample: str
    known: Sequence[Picture]
    answers: Sequence[Picture]
    scale: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Gallery:
    """Test frames of a task's sites."""

    metric: Metric
    known: Sequence[str]  # names of the pictures before the predictions, such as the ground truth
    labels: Sequence[str]  # rows of the tables that have a run with the seed
    seed: int
    places: Sequence[tuple[str, Sequence[Row]]]  # rows by site
    legend: Sequence[Key]


@dataclass(frozen=True)
class _Saved:
    """Record of `write_pictures`, and the folder of its files."""

    folder: Path
    record: Mapping[str, Any]

    def uri(self, number: int) -> str:
        file = self.folder / self.record["files"][number][1]
        return "data:image/webp;base64," + base64.b64encode(file.read_bytes()).decode() if file.is_file() else ""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.record["files"]]

    @property
    def value(self) -> float:
        return math.nan if self.record["value"] is None else float(self.record["value"])


def gallery(comparison: Comparison, group: Group) -> Gallery | None:
    """Read the pictures of a task's sites for the lowest seed with pictures; return None without pictures."""
    seeds = sorted({r.run.seed for r in comparison.results if any(_saved(r, site) for site in group.sites)})
    if not seeds:
        return None
    results = {r.run.variant.label: r for r in comparison.results if r.run.seed == seeds[0]}
    by_site = {site: _by_sample(results, site) for site in group.sites}
    if outside := {label: r for label, r in results.items() if r.out_of(group)}:
        by_site[OUTSIDE] = _by_sample(outside, OUTSIDE)
    pictures = [saved for samples in by_site.values() for by_label in samples.values() for saved in by_label.values()]
    labels = [label for label in comparison.labels if label in results]
    places = [
        (site, [_row(group.first, sample, by_label, labels) for sample, by_label in samples.items()])
        for site, samples in by_site.items()
        if samples
    ]
    legend = [Key(**entry) for entry in pictures[0].record["legend"]]
    if any(saved.record["hatched"] for saved in pictures):
        legend.append(Key("unknown", "hatched"))
    return Gallery(group.first, pictures[0].names[:-1], labels, seeds[0], places, legend)


def _by_sample(results: Mapping[str, Result], site: str) -> dict[str, dict[str, _Saved]]:
    by_sample: dict[str, dict[str, _Saved]] = {}
    for label, result in results.items():
        for saved in _saved(result, site):
            by_sample.setdefault(saved.record["sample"], {})[label] = saved
    return by_sample


def _saved(result: Result, site: str) -> list[_Saved]:
    """Return a run's pictures of a site; an empty list without scores or for runs of older versions."""
    if result.folder is None or result.scores is None:
        return []
    scores = result.scores["held_out"] if site == OUTSIDE else result.scores["sites"].get(site)
    tested = HELD_OUT if result.run.variant.data.held_out_trains else SERVER  # folder of the model for outside sites
    folder = result.folder / (tested if site == OUTSIDE else site) / TESTED
    return [_Saved(folder, record) for record in (scores or {}).get("pictures", [])]


def _row(metric: Metric, sample: str, by_label: Mapping[str, _Saved], labels: Sequence[str]) -> Row:
    first = next(iter(by_label.values()))
    known = []
    for number, name in enumerate(first.names[:-1]):
        known.append(Picture(name, next(filter(None, (saved.uri(number) for saved in by_label.values())), "")))
    return Row(sample, known, list(_answers(metric, by_label, labels)), first.record["scale"])


def _answers(metric: Metric, by_label: Mapping[str, _Saved], labels: Sequence[str]) -> Iterator[Picture]:
    values = [saved.value for saved in by_label.values() if not math.isnan(saved.value)]
    different = len(set(map(metric.plain_text, values))) > 1  # else no prediction is marked as the best
    best = metric.plain_text(metric.best(values)) if different else None
    for label in labels:
        saved = by_label.get(label)
        text = metric.plain_text(saved.value) if saved else ""
        yield Picture(label, saved.uri(-1) if saved else "", text, text == best)
