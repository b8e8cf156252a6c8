"""Fine-tune a bundle's weights on one site's labelled frames, and score the model before and after on its test frames.

OUT/model.safetensors     best checkpoint on the validation frames
OUT/before-after.png      test frames: frame, ground truth, prediction before and after
OUT/training.json         record: scores, frames, settings, hardware

All files appear together at the end (`inference.folder.ResultFolder`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shared_components import __version__
from shared_components.common import machine
from shared_components.common.counted import counted
from shared_components.common.drawing.sheets import Panel, Sheet
from shared_components.common.progress import Step, changed, duration, report_progress
from shared_components.core import evaluation
from shared_components.core.best_checkpoint import TrainedToBest, train_to_best
from shared_components.core.bundle import load_bundle
from shared_components.core.card import Metric
from shared_components.core.fastest_step import FastestStep
from shared_components.core.initial_weights import parse_start, source_of
from shared_components.core.recorded_steps import WARM_UP
from shared_components.core.task import Scores, Task, choose_task
from shared_components.core.trained_model import input_size, load_trained, with_wanted_classes
from shared_components.core.training import make_context
from shared_components.data.files.classes import coarser_ids
from shared_components.data.samples import Sample, read_sample
from shared_components.data.site import Site
from shared_components.federation.messages import Job
from shared_components.federation.setup.limits import limits_of, why_unrecorded
from shared_components.federation.setup.local_round import LocalRound
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site
from shared_components.inference.folder import ResultFolder
from shared_components.networks.checkpoints import header_of
from shared_components.weights.fine_tuning import plan as plans
from shared_components.weights.fine_tuning.frames import frames_of, remarks
from shared_components.weights.fine_tuning.plan import Counts, Plan, Settings, Speed

MODEL, PICTURE, RECORD = "model.safetensors", "before-after.png", "training.json"
BEFORE, AFTER = "before", "after"
KINDS = ("segmentation", "depth")
_RANDOM_SIZE = (192, 256)  # input size of a network without weights
_TIMED, _LONG = 3, 2.0  # maximum timed steps after a warm-up step; seconds after which one step is enough

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """Result of a fine-tuning."""

    folder: Path  # of `model`, `picture` and the record
    metric: Metric  # selected the model; the first metric in ``before`` and ``after``
    before: Scores  # test scores of the initial model, see `evaluation.score_fully`
    after: Scores  # of the new model
    steps: int
    chosen: bool  # whether the new model is better than the initial one on the validation frames
    remarks: tuple[str, ...]  # limits of the scores, one sentence each

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def picture(self) -> Path:
        return self.folder / PICTURE


def fine_tune(site: Site, out: Path, settings: Settings | None = None, *, say: Say = lambda text: None) -> Outcome:
    """Train a model for a site and write it with its scores and a picture; an earlier result is replaced at the end.

    Args:
        site: Site with training, validation and test videos, or parts of videos.
        out: Output folder, outside of the site's data.
        settings: Options; None for the defaults.
        say: Receives lines to print, such as the expected duration.

    Raises:
        ValueError: The site, its frames, the start or a setting cannot be used; nothing was written.
        OSError: A file cannot be written; an earlier result stays.
    """
    folder = ResultFolder(out, RECORD)
    folder.refuse_foreign()
    if out.resolve().is_relative_to(site.root.resolve()):
        raise ValueError(
            f"the output folder {out} is inside the data of site {site.name}; choose an --out outside of {site.root}"
        )
    began = time.monotonic()
    training = _Training.of(site, settings or Settings())
    plan = training.plan()
    site_remarks = tuple(remarks(site, training.frames))
    for line in (*_announcement(training, plan), *site_remarks):
        say(line)
    folder.begin()
    try:
        return training.carry_out(plan, folder, site_remarks, began)
    except BaseException:
        folder.abandon()
        raise


@dataclass(frozen=True)
class _Training:
    site: Site
    settings: Settings
    task: Task
    frames: Mapping[str, Sequence[Sample]]
    start: str
    file: Path | None  # initial weights; None: random

    @classmethod
    def of(cls, site: Site, settings: Settings) -> _Training:
        """Check the site and the start, and read the site's files."""
        task = choose_task(load_bundle(settings.bundle).tasks, site.task, classes=site.classes, who=str(site.path))
        if task.card.kind not in KINDS:
            raise ValueError(
                f"{site.path}: the task is {task.card.kind}, and `surgfl train` trains {' and '.join(KINDS)}; use "
                "`python -m monai.bundle run` and the bundle's train.yaml"
            )
        start, file = parse_start(settings.start)
        source = source_of(start, settings.bundle, file)
        return cls(site, settings, task, frames_of(site, task.spec), start, source[0] if source else None)

    @property
    def device(self) -> torch.device:
        return machine.device(self.settings.device)

    @property
    def batch_size(self) -> int:
        frames = len(self.frames["train"])
        return self.settings.batch_size or plans.automatic_batch_size(frames, gpu=self.device.type != "cpu")

    def set_up(self, size: tuple[int, int], steps: int) -> tuple[SiteSetup, LocalRound]:
        """Build the network with its initial weights, and the local round that trains it."""
        numbers = {"height": size[0], "width": size[1], "batch_size": self.batch_size, "iterations": steps}
        precision = machine.fast_precision(self.device)
        job = Job(
            name="train", bundle=self.settings.bundle, method="local", rounds=1,
            training={**numbers, "seed": self.settings.seed, "start": self.start, "precision": precision},
        )  # fmt: skip
        setup = set_up_site(job, self.site, start_weights=self.file if self.start == "file" else None)
        setup.network.to(self.device)
        training, eager = setup.bundle.training, why_unrecorded(limits_of(self.site), job)
        work = LocalRound(
            setup.network, setup.partition, make_context(training, setup.task, round=0, site=0, rounds=1, eager=eager),
            setup.method, setup.dataset(self.frames["train"]), training,
            validation=setup.dataset(self.frames["validation"]), workers=machine.frame_workers(),
            fastest=FastestStep().for_run(steps),
        )  # fmt: skip
        return setup, work

    def plan(self) -> Plan:
        size = self.settings.size or input_size(header_of(self.file), *_RANDOM_SIZE)
        setup, work = self.set_up(size, 1)
        counts = Counts(*(len(self.frames[split]) for split in ("train", "validation", "test")))
        native = read_sample(self.frames["train"][0]).images[-1].shape[:2]
        speed, stride = _measure(setup, work, self.frames), int(getattr(setup.network, "stride", 1))
        sizes: dict[str, Any] = {"measured_at": size, "native": native, "batch": self.batch_size, "stride": stride}
        return plans.choose_plan(self.settings, counts, speed, **sizes)

    def carry_out(self, plan: Plan, folder: ResultFolder, remarks: tuple[str, ...], began: float) -> Outcome:
        """Score, train, score again and draw; the files appear last."""
        setup, work = self.set_up(plan.size, plan.steps)
        task, test, metric = setup.task, self.frames["test"], setup.task.metrics[0]
        received = self._comparable(copy.deepcopy(setup.network))
        before = evaluation.score_fully(received, task, test, size=plan.size, split="test", by_sample=True)
        limit = math.inf if self.settings.steps else 60 * self.settings.minutes - plan.seconds_of_scoring
        trained = _train(work, plan, metric, seconds=limit)
        after = evaluation.score_fully(setup.network, task, test, size=plan.size, split="test", by_sample=True)
        numbers = _exemplars(after, task)
        sheets = [
            [task.sheet(a, item) for _, a, item in evaluation.predicted(network, task, test, numbers, size=plan.size)]
            for network in (received, setup.network)
        ]
        captions = [tuple(score_text(metric, _value(scores, n, task)) for scores in (before, after)) for n in numbers]
        picture = before_and_after(list(zip(*sheets, strict=True)), captions)
        evaluation.write_picture(folder.part / PICTURE, picture)
        best = {metric.name: {"mean": trained.best}}
        setup.save_model(folder.part / MODEL, name=self.site.name, round=1, scores=best)
        facts = self._facts(plan, setup) | {"steps": trained.steps, "remarks": list(remarks)}
        if work.fastest is not None and (measured := work.fastest.to_json()):
            facts["fastest_step"] = measured
        folder.appear(facts | {"before": before, "after": after, "seconds": round(time.monotonic() - began, 1)})
        chosen = metric.better(trained.best or 0.0, trained.before or 0.0)
        return Outcome(folder.path, metric, before, after, trained.steps, chosen, remarks)

    def _comparable(self, network: nn.Module) -> nn.Module:
        """Return the initial model, with classes merged to the site's; if that is impossible, the given network."""
        if self.file is None or self.task.card.kind != "segmentation":
            return network
        try:
            trained = load_trained(self.file, bundle=self.settings.bundle)
        except ValueError:  # the file contains only an encoder, or another network
            return network
        card, wanted = trained.task.card, self.task.card
        if card.kind != wanted.kind or coarser_ids(card.outputs, wanted.outputs) is None:
            return network
        return with_wanted_classes(trained.network.to(self.device), card.outputs, wanted.outputs)

    def _facts(self, plan: Plan, setup: SiteSetup) -> dict[str, Any]:
        return {
            "surgfl": __version__, "site": self.site.name, "site_yaml": str(self.site.path.resolve()),
            "task": self.task.card.to_json(),
            "frames": {split: len(samples) for split, samples in self.frames.items()},
            "start": setup.start, "bundle": self.settings.bundle, "seed": self.settings.seed,
            "minutes": self.settings.minutes, "precision": setup.bundle.training.precision,
            "hardware": machine.hardware(), "device": str(self.device), "threads": torch.get_num_threads(),
            **plan.facts(),
        }  # fmt: skip


def _announcement(training: _Training, plan: Plan) -> tuple[str, str]:
    frames, start = training.frames, training.settings.start
    height, width = plan.size
    weights = start if start != "rendered" else f"the shipped weights of {training.settings.bundle}"
    return (
        f"{training.site.name}: {counted(len(frames['train']), 'frame')} to train on, "
        f"{len(frames['validation'])} to validate, "
        f"{len(frames['test'])} to test; {', '.join(training.site.classes[1:]) or training.task.card.kind}",
        f"from {weights}, at {height}x{width}, in batches of {plan.batch_size}, at most "
        f"{counted(plan.steps, 'step')}: about {duration(plan.seconds)} on this machine",
    )


def _measure(setup: SiteSetup, work: LocalRound, frames: Mapping[str, Sequence[Sample]]) -> Speed:
    """Measure the seconds of a step, a validated frame and a tested frame, without the first reading of files."""

    def timed(action: Callable[[], object]) -> float:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began

    with changed(lambda step: Step("measuring")):
        report_progress("measuring")
        on_gpu = next(setup.network.parameters()).device.type == "cuda"
        work.train(iterations=WARM_UP + 1 if on_gpu else 1)  # a GPU records the step after the warm-up
        steps = [timed(lambda: work.train(iterations=1))]
        while len(steps) < _TIMED and sum(steps) < _LONG:
            steps.append(timed(lambda: work.train(iterations=1)))
        few = replace(work, validation=setup.dataset(frames["validation"][:2]))
        validation = timed(lambda: few.validate(setup.network)) / len(frames["validation"][:2])
        first = frames["test"][:1]
        test = timed(lambda: evaluation.score_fully(setup.network, setup.task, first, size=setup.size, split="test"))
    return Speed(sum(steps) / len(steps), validation, test)


def _train(work: LocalRound, plan: Plan, metric: Metric, *, seconds: float) -> TrainedToBest:
    """Train until early stopping, the last step or the time limit."""
    began, done = time.monotonic(), 0

    def train(steps: int) -> dict[str, float]:
        nonlocal done

        def with_total(step: Step) -> Step:
            if step.what != "training":
                return step
            taken = done + step.done
            rate = (time.monotonic() - began) / taken if taken else plan.seconds_of_training / plan.steps
            left = f"about {duration(rate * (plan.steps - taken))} left"
            return replace(step, done=taken, total=plan.steps, note=f"{step.note}  {left}".strip())

        with changed(with_total):
            losses = work.train(iterations=steps)
        done += steps
        return losses

    return train_to_best(
        work.network, train, lambda: work.validate(work.network), metric=metric, budget=plan.steps,
        every=plan.every, accumulate=work.context.accumulate, patience=plans.PATIENCE,
        stop=lambda: time.monotonic() - began > seconds,
    )  # fmt: skip


def _value(scores: Scores, number: int, task: Task) -> float | None:
    return scores["samples"][number]["values"].get(task.metrics[0].name)


def _exemplars(scores: Scores, task: Task) -> list[int]:
    """Return the test frames to draw: the best, a typical and the worst frame."""
    values = [_value(scores, number, task) for number in range(len(scores["samples"]))]
    known = [float("nan") if value is None else value for value in values]
    return sorted(evaluation.exemplars(known, task.metrics[0]))


def score_text(metric: Metric, value: float | None) -> str:
    """Return a score as the caption of a picture: ``Dice 0.384``."""
    return f"{metric.label} {metric.with_unit(float('nan') if value is None else value)}"


def before_and_after(sheets: Sequence[Sequence[Sheet]], captions: Sequence[Sequence[str]]) -> np.ndarray:
    """Draw frame, ground truth, prediction before and prediction after, one row per frame, as uint8 RGB (H, W, 3).

    `sheets` are the task's sheets before and after. Raise ValueError if a sheet has no panel "prediction".
    """
    rows = [_row(pair, texts) for pair, texts in zip(sheets, captions, strict=True)]
    legends = [sheet.legend for sheet, _ in sheets]
    images = [Sheet(row, legends[n] if n == len(rows) - 1 else ()).image() for n, row in enumerate(rows)]
    width = min(image.shape[1] for image in images)
    return np.concatenate([image[:, :width] for image in images])


def _row(pair: Sequence[Sheet], captions: Sequence[str]) -> tuple[Panel, ...]:
    earlier, panels = ({panel.name: panel for panel in sheet.panels} for sheet in pair)
    if "prediction" not in panels or "prediction" not in earlier:
        raise ValueError(f"a sheet with the panels {', '.join(panels)} has no prediction to compare; add this panel")
    return (
        *(panels[name] for name in ("frame", "truth") if name in panels),
        replace(earlier["prediction"], name=BEFORE, note=captions[0]),
        replace(panels["prediction"], name=AFTER, note=captions[1]),
    )
