"""Scoring inside MONAI's SupervisedEvaluator: quickly between rounds, at the original resolution at the end."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Events
from ignite.metrics import Metric
from monai.engines import Workflow

from shared_components.bundle_config import Training
from shared_components.bundle_engines.options import ConfigError
from shared_components.data.check import readable_samples
from shared_components.data.dataset import SampleDataset
from shared_components.data.sites import Sample, Site, SiteError, read_sample
from shared_components.inference import enlarge, network_input
from shared_components.metrics import (
    DISTANCE_METRICS,
    POLICIES,
    REGION_METRICS,
    FrameScores,
    frame_scores,
    region_scores,
    summarise,
)

logger = logging.getLogger(__name__)

DEFINITIONS = {
    "dice": "per frame and class twice the overlap over the sum of both areas, then the mean over frames",
    "iou": "per frame and class the overlap over the union, then the mean over frames",
    "assd": "medpy 0.5 and MONAI: mean of both directions' surface distances pooled, in pixels",
    "hd95": "medpy: 95th percentile of both directions' surface distances pooled, in pixels",
    "hd95_monai": "MONAI: larger of the two directions' 95th percentiles, in pixels",
    "mean": "mean over the classes without background",
    "resolution": "of the mask: the logits' argmax enlarged with nearest neighbours",
    "empty, policy diagonal": "empty in both: not counted; in one: Dice and IoU 0, distances the image diagonal",
    "empty, policy paper": "as released by PFedSIS: an empty mask becomes the pixel [0, 0]",
}


class ValidationBatches:
    """A dataset in order, in batches {"image": float32 (B, 3, H, W), "label": uint8 (B, H, W)}."""

    def __init__(self, dataset: SampleDataset, *, batch_size: int = 8) -> None:
        self.dataset = dataset
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for start in range(0, len(self.dataset), self.batch_size):
            chosen = range(start, min(start + self.batch_size, len(self.dataset)))
            items = [self.dataset[index] for index in chosen]
            yield {
                "image": torch.stack([item["image"] for item in items]).float() / 255,
                "label": torch.stack([item["label"] for item in items]),
            }


class MeanDice(Metric):
    """Mean Dice over a site's classes at the network's size: what decides which weights are best."""

    def __init__(self, site: Site) -> None:
        self._names = site.classes[1:]
        self._scores: list[FrameScores] = []
        super().__init__(output_transform=lambda output: (output["pred"], output["label"]))

    def reset(self) -> None:
        """Forget the last validation."""
        self._scores = []

    def update(self, output: Sequence[torch.Tensor]) -> None:
        """Add a batch: logits (B, C, H, W) and label (B, H, W)."""
        logits, label = output
        ids = logits.argmax(1).to(torch.uint8)
        self._scores += region_scores(ids, label, classes=range(1, len(self._names) + 1))

    def compute(self) -> float:
        """Return the mean, or -1 where no class was to be scored (so that nothing is the best yet)."""
        mean = summarise(self._scores, self._names)["dice"]["mean"]
        return -1.0 if mean is None else mean


@dataclass(frozen=True)
class NativeFrames:
    """A split's frames one by one: {"image": (1, 3, h, w) at the network's size, "truth": (H, W), "frame"}."""

    site: Site
    split: str
    settings: Training

    def __len__(self) -> int:
        return len(self._frames())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for frame in self._frames():
            item = read_sample(frame)
            small = network_input(item.images[-1], self.settings.height, self.settings.width)
            yield {"image": small, "truth": item.targets["label"], "frame": frame}

    def _frames(self) -> list[Sample]:
        if self.split not in self.site.split:
            raise SiteError(
                f"{self.site.path}: site {self.site.name} has no split {self.split!r}; "
                f"use one of {', '.join(self.site.split)}"
            )
        return readable_samples(self.site, self.split)[0]


class ScoreWriter:
    """A handler that scores every frame at its mask's resolution and writes metrics.json and metrics.csv.

    Args:
        data: the evaluator's data.
        output_dir: folder of both files, made where it does not exist.
        checkpoint: the weights evaluated; their name and SHA-256 are written down.
        empty_policy: what a class counts that is empty in a frame: "diagonal", or "paper" for comparison.

    Raises:
        ConfigError: the policy is unknown.
    """

    def __init__(
        self, data: NativeFrames, output_dir: str, *, checkpoint: str, empty_policy: str = "diagonal"
    ) -> None:
        if empty_policy not in POLICIES:
            raise ConfigError(f"empty_policy is {empty_policy!r}; use one of {', '.join(POLICIES)}")
        self._data = data
        self._folder = Path(output_dir)
        self._checkpoint = Path(checkpoint)
        self._policy = empty_policy
        self._scores: list[tuple[Sample, FrameScores]] = []

    def attach(self, engine: Workflow) -> None:
        """Follow an evaluator whose batches come from `NativeFrames`; attach before what prints the metrics."""
        engine.add_event_handler(Events.STARTED, lambda: self._scores.clear())
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._score)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def _score(self, engine: Workflow) -> None:
        batch = engine.state.batch
        prediction = enlarge(engine.state.output["pred"], batch["truth"].shape)
        classes = range(1, len(self._data.site.classes))
        scores = frame_scores(prediction, batch["truth"], classes=classes, policy=self._policy)
        self._scores.append((batch["frame"], scores))

    def _write(self, engine: Workflow) -> None:
        names = self._data.site.classes[1:]
        summary = {
            "site": self._data.site.name,
            "split": self._data.split,
            "checkpoint": self._checkpoint.name,
            "checkpoint_sha256": hashlib.sha256(self._checkpoint.read_bytes()).hexdigest(),
            **summarise([scores for _, scores in self._scores], names),
            "definitions": DEFINITIONS,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "metrics.json").write_text(json.dumps(summary, indent=2) + "\n")
        (self._folder / "metrics.csv").write_text(_table(self._scores, names))
        logger.info("%s: wrote metrics.json and metrics.csv of %d frames", self._folder, summary["frames"])
        means = {metric: summary[metric]["mean"] for metric in REGION_METRICS + DISTANCE_METRICS}
        engine.state.metrics.update({metric: mean for metric, mean in means.items() if mean is not None})


def _table(scored: Sequence[tuple[Sample, FrameScores]], names: Sequence[str]) -> str:
    """One row per frame and class; a value that is not counted is left empty."""
    metrics = REGION_METRICS + DISTANCE_METRICS
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["video", "frame", "class", *metrics, "empty_prediction", "empty_truth"])
    for frame, scores in scored:
        for column, name in enumerate(names):
            values = [getattr(scores, metric)[column] for metric in metrics]
            cells = ["" if np.isnan(value) else f"{value:.6g}" for value in values]
            flags = [int(scores.empty_prediction[column]), int(scores.empty_truth[column])]
            writer.writerow([frame.video, frame.index, name, *cells, *flags])
    return text.getvalue()
