"""Scoring and inference inside MONAI's SupervisedEvaluator, with the shared `Scorer` and `Predictor`."""

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, Workflow

from shared_components import __version__
from shared_components.common.atomic import write_text
from shared_components.common.progress import follow
from shared_components.common.sanitise import table_cells
from shared_components.core import evaluation
from shared_components.core.best_checkpoint import is_best
from shared_components.core.evaluation import BATCH, Scorer
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import Task
from shared_components.core.trained_model import MergedClasses
from shared_components.core.training_settings import Training
from shared_components.data.check import readable_samples
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import Sample
from shared_components.data.site import Site, SiteError
from shared_components.inference.frames import FrameStream
from shared_components.inference.objects import Objects, recorded
from shared_components.inference.predict import FrameCount, Predictor, missed
from shared_components.inference.results import PredictionFolder

logger = logging.getLogger(__name__)


class ValidationBatches:
    """Batches of a dataset in order: {"image": float32 (B, 3, H, W), "items": samples at the network's size}."""

    def __init__(self, dataset: SampleDataset, task: Task, *, batch_size: int = BATCH) -> None:
        self.dataset, self.task, self.batch_size = dataset, task, batch_size

    def __len__(self) -> int:
        return evaluation.batch_count(self.dataset, self.task, batch_size=self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = evaluation.small_batches(self.dataset, self.task, batch_size=self.batch_size)
        for batch, items in follow(batches, "validating", len(self)):
            yield {**batch, "items": items}


@dataclass(frozen=True)
class NativeSamples:
    """Samples of a split one by one: {"image": (1, 3, h, w) at the network's size, "items": [the sample]}."""

    site: Site
    split: str
    task: Task
    settings: Training

    def __len__(self) -> int:
        return len(self.samples())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = evaluation.native_batches(self.samples(), (self.settings.height, self.settings.width), self.task)
        for batch, items in follow(batches, "scoring", len(self)):
            yield {**batch, "items": items}

    def samples(self) -> list[Sample]:
        if self.split not in self.site.split:
            raise SiteError(
                f"{self.site.path}: site {self.site.name} has no split {self.split!r}; "
                f"use one of {', '.join(self.site.split)}"
            )
        return readable_samples(self.site, self.split, spec=self.task.spec)[0]


class EvaluationStep:
    """The `iteration_update` of SupervisedEvaluator: predict and score, without slow metrics if `quick`.

    `scorer` contains the scores of the current run.
    """

    def __init__(self, task: Task, *, quick: bool) -> None:
        self.task, self._quick = task, quick
        self.scorer = Scorer(task, quick=quick)

    def __call__(self, engine: SupervisedEvaluator, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Score one batch and return {"pred": the task's outputs}."""
        if engine.state.iteration == 1:
            self.scorer = Scorer(self.task, quick=self._quick)
        engine.network.eval()
        moved = {key: value.to(engine.state.device) for key, value in batch.items() if key != "items"}
        tensors = self.scorer.add_randomness(moved)
        with torch.no_grad():
            outputs = self.scorer.predict(engine.network, tensors)
        self.scorer.add(outputs, tensors, batch["items"])
        return {"pred": outputs}


class FirstMetric(Metric):
    """Mean of the metric that selects the best weights; NaN without scores."""

    required_output_keys = ("pred",)  # keys of the engine's output; ignite's default also needs labels

    def __init__(self, step: EvaluationStep) -> None:
        self._step = step
        super().__init__()

    def reset(self) -> None:
        """Do nothing, since the step resets its scorer."""

    def update(self, output: Any) -> None:
        """Do nothing, since the step has scored the batch."""

    def compute(self) -> float:
        return evaluation.first_value(self._step.task, self._step.scorer.summary())


def key_metric(step: EvaluationStep) -> dict[str, FirstMetric]:
    """Return the evaluator's key metric by name."""
    return {step.task.metrics[0].name: FirstMetric(step)}


def better(task: Task) -> Callable[[float, float], bool]:
    """Return the comparison of (current, best) in the direction of the task's first metric."""
    return partial(is_best, task.metrics[0])


class ScoreWriter:
    """Handler that writes metrics.json and metrics.csv after all samples of a split are scored.

    Some tasks also have videos.csv, with a row per video, and charts/<name>.png. The evaluated checkpoint is recorded
    by name and SHA-256.
    """

    def __init__(self, step: EvaluationStep, data: NativeSamples, output_dir: str, *, checkpoint: str) -> None:
        self._step, self._data = step, data
        self._folder, self._checkpoint = Path(output_dir), Path(checkpoint)

    def attach(self, engine: Workflow) -> None:
        """Attach to an evaluator, before handlers that print the metrics."""
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def _write(self, engine: SupervisedEvaluator) -> None:
        task, scores = self._step.task, self._step.scorer.summary()
        summary = {
            "site": self._data.site.name,
            "split": self._data.split,
            "task": task.card.to_json(),
            "metrics": [metric.to_json() for metric in task.metrics],
            "checkpoint": self._checkpoint.name,
            "checkpoint_sha256": sha256_of(self._checkpoint),
            **({"merged_classes": engine.network.merges} if isinstance(engine.network, MergedClasses) else {}),
            **scores,
            "definitions": dict(task.definitions),
        }
        write_text(self._folder / "metrics.json", json.dumps(summary, indent=2) + "\n")
        write_text(self._folder / "metrics.csv", self._table())
        self._write_videos()
        logger.info("%s: wrote metrics.json and metrics.csv of %d samples", self._folder, scores["frames"])
        means = {metric.name: scores[metric.name]["mean"] for metric in task.metrics}
        engine.state.metrics.update({name: mean for name, mean in means.items() if mean is not None})

    def _write_videos(self) -> None:
        """Write the task's metrics and charts of whole videos."""
        task, scores = self._step.task, self._step.scorer.scores
        if videos := task.per_video(scores):
            text = io.StringIO()
            rows = [[video, *map(_cell, numbers.values())] for video, numbers in videos.items()]
            head = ["video", *next(iter(videos.values()))]
            csv.writer(text, lineterminator="\n").writerows(map(table_cells, [head, *rows]))
            write_text(self._folder / "videos.csv", text.getvalue())
        for name, picture in task.charts(scores).items():
            evaluation.write_picture(self._folder / "charts" / f"{name}.png", picture)

    def _table(self) -> str:
        """Return the table of the task's rows per sample; NaN values are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        scorer = self._step.scorer
        for sample, score in zip(self._data.samples(), scorer.scores, strict=True):
            for row in self._step.task.rows(score):
                if not text.tell():
                    writer.writerow(table_cells(["video", "frame", *row]))
                writer.writerow(table_cells([sample.video, sample.index, *map(_cell, row.values())]))
        return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


class PredictionStep:
    """The `iteration_update` of SupervisedEvaluator: predict one frame at its original size, see `Predictor`."""

    def __init__(self, task: Task, *, precision: str = "float32") -> None:
        self._task, self._precision = task, precision
        self._predictor: Predictor | None = None

    def __call__(self, engine: SupervisedEvaluator, batch: dict[str, Any]) -> dict[str, Any]:
        """Return {"pred": the task's outputs, "answer": the prediction}."""
        if self._predictor is None:
            self._predictor = Predictor(engine.network, self._task, precision=self._precision)
        shot = batch["shot"]
        outputs, answer = self._predictor(batch["image"], shot.image.shape[:2], sequence=shot.sequence)
        return {"pred": outputs, "answer": answer}


class PredictionWriter:
    """Handler that writes the prediction of every frame of a `FrameStream`, the evaluator's data.

    Args and files as in `PredictionFolder`. The model's path `checkpoint` and the tracked `objects` are written to the
    record; objects that were not found are logged as warnings.
    """

    def __init__(
        self,
        stream: FrameStream,
        task: Task,
        output_dir: str,
        *,
        masks: str = "png",
        pictures: bool | None = None,
        checkpoint: str | None = None,
        objects: Objects | None = None,
    ) -> None:
        facts = {"surgfl": __version__, "model": checkpoint, "height": stream.height, "width": stream.width}
        facts |= recorded(objects)
        self._folder = PredictionFolder(output_dir, stream, task, masks=masks, pictures=pictures, facts=facts)
        self._total, self._output_dir = stream.total, output_dir
        self._left_out = () if stream.inventory is None else stream.inventory.left_out

    def attach(self, engine: Workflow) -> None:
        """Attach to an evaluator."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._write)
        engine.add_event_handler(Events.COMPLETED, self._finish)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._abandon)

    def _start(self) -> None:
        self._frames = FrameCount(self._total)
        for entry in self._left_out:
            logger.warning("left out: %s", entry)

    def _write(self, engine: Workflow) -> None:
        self._folder.add(engine.state.batch["shot"], engine.state.output["answer"])
        self._frames.step()

    def _finish(self, engine: SupervisedEvaluator) -> None:
        self._folder.close()
        for sentence in missed(engine.network):
            logger.warning("%s", sentence)
        logger.info("%s: wrote the predictions of %d frames", self._output_dir, self._folder.count)

    def _abandon(self, engine: Engine, error: Exception) -> None:
        self._folder.abandon()
        raise error  # ignite does not raise an error that has a handler
