"""Fine-tune a bundle's weights on one site's labelled frames, and score the model before and after on its test frames.

OUT/model.safetensors     the model that was best on the validation frames
OUT/before-after.png      test frames: frame, truth, prediction before and after
OUT/training.json         the record: scores, frames, settings, hardware

They appear together when all of them are complete (`inference.folder.ResultFolder`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared_components import __version__
from shared_components.common import machine
from shared_components.common.counted import counted
from shared_components.common.progress import Step, changed, duration, report_progress
from shared_components.core import evaluation
from shared_components.core.best_checkpoint import TrainedToBest, train_to_best
from shared_components.core.bundle import load_bundle
from shared_components.core.card import Metric
from shared_components.core.initial_weights import parse_start, source_of
from shared_components.core.task import Scores, Task, choose_task
from shared_components.core.trained_model import input_size, load_trained, with_wanted_classes
from shared_components.core.training import make_context
from shared_components.data.classes import coarser_ids
from shared_components.data.samples import Sample, read_sample
from shared_components.data.site import Site
from shared_components.federation.messages import Job
from shared_components.federation.setup.local_round import LocalRound
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site
from shared_components.inference.folder import ResultFolder
from shared_components.networks.checkpoints import header_of
from shared_components.weights.fine_tuning.frames import frames_of, remarks
from shared_components.weights.fine_tuning.pictures import before_and_after, score_text
from shared_components.weights.fine_tuning.plan import PATIENCE, Counts, Plan, Settings, Speed, batch_of, choose_plan

MODEL, PICTURE, RECORD = "model.safetensors", "before-after.png", "training.json"
KINDS = ("segmentation", "depth")
_SIZE_OF_RANDOM = (192, 256)  # of a network without weights
_MEASURED, _LONG = 3, 2.0  # steps at most, after a first one that reads files; seconds after which one is enough

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """Result of a fine-tuning.

    Attributes:
        folder: Holds `model`, `picture` and the record.
        metric: Metric that chose the model; the first one in ``before`` and ``after``.
        before, after: Test scores of the initial and of the new model, see `evaluation.score_fully`.
        steps: Number of steps. chosen: Whether the new model is better than the initial one on the validation frames.
        remarks: Limits of the scores, a sentence each.
    """

    folder: Path
    metric: Metric
    before: Scores
    after: Scores
    steps: int
    chosen: bool
    remarks: tuple[str, ...]

    @property
    def model(self) -> Path:
        """The new model's checkpoint."""
        return self.folder / MODEL

    @property
    def picture(self) -> Path:
        """Test frames before and after."""
        return self.folder / PICTURE


def fine_tune(site: Site, out: Path, settings: Settings | None = None, *, say: Say = lambda text: None) -> Outcome:
    """Train a model for a site and write it with its scores and a picture; an earlier result is replaced at the end.

    Args:
        site: Has videos, or parts of them, to train, to validate and to test.
        out: Folder of the results, outside of the site's data.
        settings: What is asked for; None: the defaults.
        say: Is given lines to be shown, such as how long it will take.

    Raises:
        ValueError: The site, its frames, the start or a setting cannot be used; nothing was written.
        OSError: The disk refuses a file; an earlier result stays.
    """
    settings = settings or Settings()
    folder = ResultFolder(out, RECORD)
    folder.refuse_foreign()
    _refuse_inside(out, site)
    began = time.monotonic()
    training = _Training.of(site, settings)
    plan = training.plan()
    said_of_site = tuple(remarks(site, training.frames))
    for line in (*_announced(training, plan), *said_of_site):
        say(line)
    folder.begin()
    try:
        outcome = training.carried_out(plan, folder, said_of_site, began)
    except BaseException:
        folder.abandon()
        raise
    return outcome


def _refuse_inside(out: Path, site: Site) -> None:
    if out.resolve().is_relative_to(site.root.resolve()):
        raise ValueError(
            f"the results' folder {out} lies in the data of site {site.name}, whose images they would join; give --out "
            f"a folder outside of {site.root}"
        )


@dataclass(frozen=True)
class _Training:
    site: Site
    settings: Settings
    task: Task
    frames: Mapping[str, Sequence[Sample]]
    start: str
    file: Path | None  # that the network begins from; None: from the seed

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
    def batch(self) -> int:
        return batch_of(self.settings, len(self.frames["train"]), gpu=self.device.type != "cpu")

    def set_up(self, size: tuple[int, int], steps: int) -> tuple[SiteSetup, LocalRound]:
        """Build the network, as it begins, and what trains it."""
        numbers = {"height": size[0], "width": size[1], "batch_size": self.batch, "iterations": steps}
        precision = machine.fast_precision(self.device)
        job = Job(
            name="train", bundle=self.settings.bundle, method="local", rounds=1,
            training={**numbers, "seed": self.settings.seed, "start": self.start, "precision": precision},
        )  # fmt: skip
        setup = set_up_site(job, self.site, start_weights=self.file if self.start == "file" else None)
        setup.network.to(self.device)
        training = setup.bundle.training
        work = LocalRound(
            setup.network, setup.partition, make_context(training, setup.task, round=0, site=0, rounds=1),
            setup.method, setup.dataset(self.frames["train"]), training,
            validation=setup.dataset(self.frames["validation"]),
        )  # fmt: skip
        return setup, work

    def plan(self) -> Plan:
        """Measure a few steps and choose; what was trained by them is dropped."""
        notes = header_of(self.file)
        size = self.settings.size or input_size(notes, *_SIZE_OF_RANDOM)
        setup, work = self.set_up(size, 1)
        first = read_sample(self.frames["train"][0]).images[-1]
        return choose_plan(
            self.settings,
            Counts(*(len(self.frames[split]) for split in ("train", "validation", "test"))),
            _measured(setup, work, self.frames),
            measured_at=size,
            native=first.shape[:2],
            batch=self.batch,
            stride=int(getattr(setup.network, "stride", 1)),
        )

    def carried_out(self, plan: Plan, folder: ResultFolder, remarks: tuple[str, ...], began: float) -> Outcome:
        """Score, train, score, draw and write; the files appear last."""
        setup, work = self.set_up(plan.size, plan.steps)
        task, test, metric = setup.task, self.frames["test"], setup.task.metrics[0]
        received = self._received(copy.deepcopy(setup.network))
        before = evaluation.score_fully(received, task, test, size=plan.size, split="test", by_sample=True)
        limit = math.inf if self.settings.steps else 60 * self.settings.minutes - plan.seconds_of_scoring
        stopped = _train(work, plan, metric, seconds=limit)
        after = evaluation.score_fully(setup.network, task, test, size=plan.size, split="test", by_sample=True)
        shown = _shown(after, task)
        old, new = (_sheets(one, task, test, shown, plan.size) for one in (received, setup.network))
        notes = [
            (score_text(metric, _value(before, n, task)), score_text(metric, _value(after, n, task))) for n in shown
        ]
        evaluation.write_picture(folder.part / PICTURE, before_and_after(list(zip(old, new, strict=True)), notes))
        scores: Scores = {metric.name: {"mean": stopped.best}}
        setup.save_model(folder.part / MODEL, name=self.site.name, round=1, scores=scores)
        chosen = metric.better(stopped.best or 0.0, stopped.before or 0.0)
        facts = self._facts(plan, setup) | {"steps": stopped.steps, "remarks": list(remarks)}
        facts |= {"before": before, "after": after, "seconds": round(time.monotonic() - began, 1)}
        folder.appear(facts)
        return Outcome(folder.path, metric, before, after, stopped.steps, chosen, remarks)

    def _received(self, network: nn.Module) -> nn.Module:
        """Return the model before: where the site's classes are coarser than the weights', their classes merged.

        Else it is the given network, which the training begins from; its layers for other classes are untrained.
        """
        if self.file is None or self.task.card.kind != "segmentation":
            return network
        try:
            trained = load_trained(self.file, bundle=self.settings.bundle)
        except ValueError:  # of an encoder alone, or of another network
            return network
        learnt, wanted = trained.task.card, self.task.card
        if learnt.kind != wanted.kind or coarser_ids(learnt.outputs, wanted.outputs) is None:
            return network
        return with_wanted_classes(trained.network.to(self.device), learnt.outputs, wanted.outputs)

    def _facts(self, plan: Plan, setup: SiteSetup) -> dict[str, Any]:
        return {
            "surgfl": __version__,
            "site": self.site.name,
            "site_yaml": str(self.site.path.resolve()),
            "task": self.task.card.to_json(),
            "frames": {split: len(listed) for split, listed in self.frames.items()},
            "start": setup.start,
            "bundle": self.settings.bundle,
            "seed": self.settings.seed,
            "minutes": self.settings.minutes,
            "precision": setup.bundle.training.precision,
            "hardware": machine.hardware(),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            **plan.facts(),
        }


def _announced(training: _Training, plan: Plan) -> tuple[str, str]:
    """Say on what, how and how long it trains."""
    frames, begun = training.frames, training.settings.start
    height, width = plan.size
    return (
        f"{training.site.name}: {counted(len(frames['train']), 'frame')} to train on, "
        f"{len(frames['validation'])} to validate, "
        f"{len(frames['test'])} to test; {', '.join(training.site.classes[1:]) or training.task.card.kind}",
        f"from {begun if begun != 'rendered' else f'the shipped weights of {training.settings.bundle}'}, at "
        f"{height}x{width}, in batches of {plan.batch_size}, at most {counted(plan.steps, 'step')}: about "
        f"{duration(plan.seconds)} on this machine",
    )


def _measured(setup: SiteSetup, work: LocalRound, frames: Mapping[str, Sequence[Sample]]) -> Speed:
    """Measure steps, a validated frame and a tested one; what reads files for the first time is too slow, if at all."""

    def timed(action: Callable[[], object]) -> float:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began

    with changed(lambda step: Step("measuring")):
        report_progress("measuring")
        work.train(iterations=1)
        steps = [timed(lambda: work.train(iterations=1))]
        while len(steps) < _MEASURED and sum(steps) < _LONG:
            steps.append(timed(lambda: work.train(iterations=1)))
        few = replace(work, validation=setup.dataset(frames["validation"][:2]))
        validation = timed(lambda: few.validate(setup.network)) / len(frames["validation"][:2])
        one = frames["test"][:1]
        test = timed(lambda: evaluation.score_fully(setup.network, setup.task, one, size=setup.size, split="test"))
    return Speed(sum(steps) / len(steps), validation, test)


def _train(work: LocalRound, plan: Plan, metric: Metric, *, seconds: float) -> TrainedToBest:
    """Take the plan's steps until they bring nothing more, or so many seconds are over."""
    began, done = time.monotonic(), 0

    def train(steps: int) -> dict[str, float]:
        nonlocal done

        def of_all(step: Step) -> Step:
            if step.what != "training":
                return step
            taken = done + step.done
            rate = (time.monotonic() - began) / taken if taken else plan.seconds_of_training / plan.steps
            left = f"about {duration(rate * (plan.steps - taken))} left"
            return replace(step, done=taken, total=plan.steps, note=f"{step.note}  {left}".strip())

        with changed(of_all):
            losses = work.train(iterations=steps)
        done += steps
        return losses

    return train_to_best(
        work.network, train, lambda: work.validate(work.network), metric=metric, budget=plan.steps,
        every=plan.every, accumulate=work.context.accumulate, patience=PATIENCE,
        stop=lambda: time.monotonic() - began > seconds,
    )  # fmt: skip


def _value(scores: Scores, number: int, task: Task) -> float | None:
    return scores["samples"][number]["values"].get(task.metrics[0].name)


def _shown(scores: Scores, task: Task) -> list[int]:
    """Return which test frames are drawn: the best, a typical and the worst one."""
    values = [_value(scores, number, task) for number in range(len(scores["samples"]))]
    known = [float("nan") if value is None else value for value in values]
    return sorted(evaluation.exemplars(known, task.metrics[0]))


def _sheets(
    network: nn.Module, task: Task, test: Sequence[Sample], shown: Sequence[int], size: tuple[int, int]
) -> list[Any]:
    return [task.sheet(answer, item) for _, answer, item in evaluation.predicted(network, task, test, shown, size=size)]
