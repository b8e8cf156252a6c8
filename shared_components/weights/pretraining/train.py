"""Pre-train a bundle's network on rendered scenes; a second run resumes the first."""

import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import torch
from torch import nn

from shared_components.common import machine
from shared_components.common.counted import counted
from shared_components.common.progress import follow, listening, report_progress, speed
from shared_components.common.progress_display import Board
from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import BATCH, score_batches
from shared_components.core.initial_weights import RANDOM
from shared_components.core.task import Batch, Scores, Task, checkpoint_header
from shared_components.data.collate import collate
from shared_components.data.samples import Item
from shared_components.data.splits import add_seen_videos
from shared_components.data.transforms import to_tensors
from shared_components.federation.runs.provenance import commit
from shared_components.scenes.looks import LOOKS, numbered
from shared_components.weights.pretraining.folder import RunFolder
from shared_components.weights.pretraining.learner import Learner
from shared_components.weights.pretraining.lessons import spec_of
from shared_components.weights.pretraining.plan import Settings, task_for
from shared_components.weights.pretraining.stream import ANY, RESERVED, batches, held_out
from shared_components.weights.pretraining.tracks import Tracks

LOGGED = 50  # steps between two losses in the log
WINDOW = 50  # number of steps to average the speed over
RANDOM_LOOKS, SAMPLES = 12, 2  # looks to score on, and frames per look


class Pace:
    """Reports steps with the current speed and the time left."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._times: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # seconds and pixels of each step
        self._last = time.monotonic()

    def step(self, done: int, loss: float) -> None:
        """Report step number `done`, from 1, which has just ended."""
        now = time.monotonic()
        phase = self._settings.phase_of(done - 1)
        self._times.append((now - self._last, phase.height * phase.width))
        self._last = now
        note = f"loss {loss:.3f}  {speed(self.pictures_per_second, 'pictures', self._seconds_left(done))}"
        report_progress("step", done, self._settings.steps, note)

    def pause(self) -> None:
        """Exclude the time since the last step from the speed."""
        self._last = time.monotonic()

    @property
    def pictures_per_second(self) -> float:
        return self._settings.batch * len(self._times) / max(sum(seconds for seconds, _ in self._times), 1e-9)

    def _seconds_left(self, done: int) -> float:
        """Estimate by pixels, since steps of later phases take longer."""
        pixels, first = 0, 0
        for phase in self._settings.phases:
            pixels += phase.height * phase.width * max(0, first + phase.steps - max(done, first))
            first += phase.steps
        return pixels * sum(s for s, _ in self._times) / max(sum(p for _, p in self._times), 1)


class Checks:
    """Held-out frames by group of looks, rendered once at the last phase's size."""

    def __init__(self, task: Task, settings: Settings) -> None:
        groups = {**look_groups(settings.looks), "named": LOOKS}
        self._task = task
        self._items = {name: _render(looks, task, settings) for name, looks in groups.items()}

    def scores(self, network: nn.Module) -> dict[str, Scores]:
        """Score a network on each group, in float32, without slow metrics."""
        return {
            name: score_batches(network, self._task, follow(_batches(items), "scoring", -(-len(items) // BATCH)))
            for name, items in self._items.items()
        }

    def summary(self, scores: dict[str, Any]) -> str:
        """Return each group's mean of the first metric as text."""
        metric = self._task.metrics[0]
        means = {name: (record.get(metric.name) or {}).get("mean") for name, record in scores.items()}
        texts = (f"{name} looks {metric.with_unit(value)}" for name, value in means.items() if value is not None)
        return f"{metric.label}: {', '.join(texts)}"


def look_groups(looks: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return looks to score on by group: reserved looks for each random family, and "trained" for other looks."""
    drawn = [look for look in dict.fromkeys(looks or (ANY,)) if look.endswith("-*")]
    groups: dict[str, Sequence[str]] = {
        look[:-2]: [numbered(look, RESERVED + number) for number in range(RANDOM_LOOKS)] for look in drawn
    }
    own = [look for look in dict.fromkeys(looks) if look not in drawn]
    return groups | ({"trained": own} if own else {})


def _render(looks: Sequence[str], task: Task, settings: Settings) -> list[Item]:
    items = []
    for number, look in enumerate(follow(looks, "rendering looks to score on,")):
        items += held_out(look, number, size=settings.size, spec=task.spec, count=SAMPLES)
    return items


def _batches(items: Sequence[Item]) -> Iterator[tuple[Batch, list[Item]]]:
    for start in range(0, len(items), BATCH):
        batch = list(items[start : start + BATCH])
        yield collate([to_tensors(item.images, {}) for item in batch]), batch


class Pretraining:
    """A pre-training with its folder, log and scores; a wrong setting raises ValueError."""

    def __init__(
        self,
        settings: Settings,
        out: Path,
        *,
        start: str | Path = RANDOM,  # ``random``, ``rendered`` or a path
        command: str = "",
        save_every: int = 500,  # steps between two saved states
        check_every: int = 1000,  # steps between two scores
        workers: int = 0,  # processes that render ahead
        say: TextIO,
    ) -> None:
        self.settings, self.command = settings, command
        self.save_every, self.check_every, self.workers = save_every, check_every, workers
        bundle = load_bundle(settings.bundle)
        self.task = task_for(bundle, settings.task, dict(settings.numbers))
        self.numbers = {**bundle.tasks[settings.task], **dict(settings.numbers)}
        self.spec = spec_of(bundle, self.task, clip=settings.clip)
        self.objects = None if self.task.prompting is None else settings.objects
        self.folder = RunFolder(out, settings)
        self.learner = Learner(bundle, self.task, settings, start)
        self._board, self._pace = Board(say), Pace(settings)
        self.scores: dict[str, Any] = {}
        self.done, self.seconds, self._saved = 0, 0.0, 0
        self._losses: list[float] = []  # since the last line of the log

    def run(self) -> bool:
        """Train until the last step, or resume from the folder's state; return False if interrupted.

        Raise ValueError if the folder contains another training, or if the loss is not finite; the last state remains.
        """
        with self.folder.locked(), _interruptions() as signals, self._board, listening(self._board.hear):
            return self._run(signals)

    def _run(self, signals: list[int]) -> bool:
        self._restore()
        if self.done == self.settings.steps:
            self._board.say(f"{self.folder.path}: all {counted(self.done, 'step')} are done")
            return True
        if self.done:
            self._board.say(f"{self.folder.path}: continues after step {self.done}")
        self._began = time.monotonic() - self.seconds
        self._checks: Checks | Tracks | None = None  # if only the image encoder trains, with a layer that is dropped
        if self.objects is None:
            self._checks = Checks(self.task, self.settings)
        elif self.objects:
            self._checks = Tracks(self.settings)
        if not self.done:
            self._save()
        self._train(signals)
        return self.done == self.settings.steps

    def _restore(self) -> None:
        if (state := self.folder.load()) is not None:
            tensors, values = state
            self.learner.restore(tensors)
            self.done, self.seconds, self._losses = values["step"], values["seconds"], values["losses"]
            self.scores, self._saved = self.folder.last_scores(), self.done

    def _train(self, signals: list[int]) -> None:
        stream = batches(
            self.settings, self.spec, begin=self.done, workers=self.workers, objects=self.objects,
            device=self.learner.device,
        )  # fmt: skip
        self._pace.pause()
        for batch in stream:
            self._losses.append(self._step(batch))
            self.done += 1
            self._pace.step(self.done, self._losses[-1])
            last = self.done == self.settings.steps
            if self.done % LOGGED == 0 or last:
                self._log()
            if self._checks is not None and (self.done % self.check_every == 0 or last):
                self._check()
            if self.done % self.save_every == 0 or last or signals:
                self._save()
            if signals:
                return

    def _step(self, batch: dict[str, torch.Tensor]) -> float:
        try:
            return self.learner.step(self.done, batch)
        except FloatingPointError as error:
            raise ValueError(
                f"{error}; {self.folder.path} keeps the weights of step {self._saved}: start again with another --out "
                "and a lower --learning-rate"
            ) from error

    def _log(self) -> None:
        self.folder.log({
            "step": self.done,
            "loss": sum(self._losses) / len(self._losses),
            "learning_rate": self.settings.rate(self.done - 1),
            "pictures_per_second": round(self._pace.pictures_per_second, 2),
            "seconds": round(time.monotonic() - self._began, 1),
        })  # fmt: skip
        self._losses.clear()

    def _check(self) -> None:
        assert self._checks is not None
        self.scores = self._checks.scores(self.learner.average)
        self.folder.log({"step": self.done, "scores": self.scores})
        self._board.say(f"step {self.done}  {self._checks.summary(self.scores)}")
        self._pace.pause()

    def _save(self) -> None:
        """Write the model, then the state; after a kill between both, a resume repeats the steps since the state."""
        self.seconds = time.monotonic() - self._began
        if self.done:
            self.folder.save_model(self.learner.average.state_dict(), self._notes(), self._facts())
        values = {"step": self.done, "seconds": self.seconds, "losses": self._losses}
        self.folder.save(self.learner.tensors(), values)
        self._saved = self.done
        self._pace.pause()

    def _notes(self) -> dict[str, str]:
        settings = self.settings
        notes = checkpoint_header(settings.bundle, "pretrain", self.task, self.numbers, size=settings.size)
        seen = add_seen_videos(self.learner.began.get("seen", ""), ())  # rendered frames add no videos
        return notes | seen | {"steps": f"{self.done} of {settings.steps}"}

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "bundle": settings.bundle,
            "task": settings.task,
            "command": self.command,
            "commit": commit(),
            "seed": settings.seed,
            "start": self.learner.began,
            "hardware": machine.hardware(),
            "torch": torch.__version__,
            "device": self.learner.device.type,
            "threads": torch.get_num_threads(),
            "workers": self.workers,
            "seconds": round(self.seconds, 1),
            "steps": self.done,
            "steps_planned": settings.steps,
            "frames": self.done * settings.batch,
            "sizes": [str(phase) for phase in settings.phases],
            "settings": settings.as_values(),
            "scores": self.scores,
        }


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, so that the step ends and its state is saved; a second signal ends at once."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
