"""Time the training steps and rounds of FedAvg and PFedSIS, and a plain PyTorch loop, at several sizes and precisions.

Federations' own steps take batches from the frame cache of a rendered site. A step's time is the difference
between many and few steps on one batch that stays on the device, so that recordings and compilations do not count. A
round reads its batches; it waits for data for the time that it takes beyond the same steps on one batch. The share of
the arithmetic limit counts a step as three forward passes of its loss.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Any

import torch

from evidence.benchmarks import gpu
from evidence.benchmarks.pretraining_cost import counted
from shared_components.common import machine
from shared_components.core.method import Batch, Context
from shared_components.core.training import TrainingSteps, make_context, make_optimizer, training_batches, why_eager
from shared_components.data.frame_cache import FrameCache
from shared_components.data.profile_items import ITEMS
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site
from shared_components.scenes.site import write_site

BUNDLES = {"fedavg": "pvt_fpn", "pfedsis": "pfedsis"}
LARGE, SMALL = (512, 640), (96, 128)
FRAMES = 48  # of the rendered site
FEW, ROUND = 5, 40  # steps of a short run, and of a round
SITES = 3  # whose styles PFedSIS mixes
GOALS = {"step": 15e-3, "ratio": 1.6, "busy": 0.9}  # seconds, PFedSIS / FedAvg, share of a round


@dataclass(frozen=True)
class Case:
    """Steps of a method, or of a "plain" PyTorch loop, at a size and precision, in one way."""

    method: str
    size: tuple[int, int]  # (height, width)
    precision: str
    way: str  # eager, recorded (as a CUDA graph), compiled, or max-autotune

    def __str__(self) -> str:
        height, width = self.size
        return f"{self.method}, {height}x{width}, {self.precision}, {self.way}"

    @property
    def compiled(self) -> bool:
        return self.way in ("compiled", "max-autotune")


CASES = tuple(
    Case(method, size, precision, way)
    for size, precision in product((LARGE, SMALL), ("bf16", "float32"))
    for method, way in (
        *product(("plain",), ("eager", "max-autotune")), *product(BUNDLES, ("eager", "recorded", "compiled")),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Seconds of a step, of `ROUND` steps on one batch, and of a round; largest memory of the device in bytes."""

    step: float
    steps: float
    round: float
    memory: int

    @property
    def busy(self) -> float:
        """Share of a round without waiting for data."""
        return min(1.0, self.steps / self.round)


@dataclass
class Bench:
    """Measures cases on a device, in a folder for a site and its frame cache; `product` as in `gpu.table`."""

    device: torch.device
    folder: Path
    batch: int
    product: int
    times: dict[Case, Times] = field(default_factory=dict)
    _limits: dict[str, float] = field(default_factory=dict)
    _counts: dict[tuple[str, tuple[int, int]], int] = field(default_factory=dict)

    def prepare(self, *, size: tuple[int, int] = LARGE, frames: int = FRAMES) -> Iterator[str]:
        """Render the site and measure the arithmetic limits; yield the table's head."""
        height, width = size
        write_site(
            self.folder / "site", look="rose", seed=1, layout="endovis2018", height=height, width=width,
            frames_per_video=frames, videos={"train": 1},
        )  # fmt: skip
        for name, kind in gpu.PRECISIONS.items():
            self._limits[name] = gpu.limit(self.product, kind, self.device)
        limits = ", ".join(f"{name} {limit / 1e12:.3g} T" for name, limit in self._limits.items())
        yield f"limit: multiply-adds/s of a product of {self.product} rows: {limits}"
        yield f"| steps of {self.batch} frames | ms per step | of the limit | images/s | waiting for data | memory |"
        yield "|---|---:|---:|---:|---:|---:|"

    def lines(self, case: Case) -> Iterator[str]:
        """Measure a case; yield its row of the table."""
        if case.method == "plain":
            step, count = self._plain(case)
            yield f"| {case} | {step * 1e3:.2f} | {self._share(case, step, count):.1%} | | | |"
            return
        times, count = self._federated(case)
        self.times[case] = times
        images = self.batch * ROUND / times.round
        yield (
            f"| {case} | {times.step * 1e3:.2f} | {self._share(case, times.step, count):.1%} | {images:.0f} | "
            f"{1 - times.busy:.1%} | {times.memory / 1e9:.2f} GB |"
        )

    def goals(self) -> Iterator[str]:
        """Yield a line for each goal: bf16 steps at 512x640, by the fastest way of each method."""
        best: dict[str, Times] = {}
        for case, times in self.times.items():
            if (case.size, case.precision) == (LARGE, "bf16"):
                best[case.method] = min(times, best.get(case.method, times), key=lambda one: one.step)
        if "fedavg" not in best:
            yield "goals: no step of FedAvg was measured"
            return
        fedavg = best["fedavg"]
        yield f"goal: a step takes {GOALS['step'] * 1e3:.0f} ms at most: {fedavg.step * 1e3:.2f} ms"
        if "pfedsis" in best:
            ratio = best["pfedsis"].step / fedavg.step
            yield f"goal: PFedSIS / FedAvg is {GOALS['ratio']} at most: {ratio:.2f}"
        for method, times in best.items():
            yield f"goal: {method} computes for {GOALS['busy']:.0%} of a round at least: {times.busy:.1%}"

    def _share(self, case: Case, step: float, count: int) -> float:
        return count / step / self._limits[case.precision]

    def _federated(self, case: Case) -> tuple[Times, int]:
        """Return the times of a federation's steps and rounds, and the multiply-adds of a step."""
        site = Rounds.open(case, self.folder, batch=self.batch)
        resident = next(iter(site.stream(1)))
        key = (case.method, case.size)
        if key not in self._counts:
            self._counts[key] = 3 * counted(lambda: site.losses(resident))
        prepare_steps(site, case.way)

        def steps(count: int) -> None:
            site.train(repeat(resident, count), count)

        def whole_round(count: int = ROUND) -> None:
            site.train(site.stream(count), count)

        step, whole = self._step(steps)
        whole_round(-(-FRAMES // self.batch))  # fills the cache
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = min(self._seconds(whole_round) for _ in range(2))
        memory = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        return Times(step, whole, seconds, memory), self._counts[key]

    def _plain(self, case: Case) -> tuple[float, int]:
        """Return the seconds of a plain step of FedAvg's network on one of its batches, and its multiply-adds."""
        site = Rounds.open(Case("fedavg", case.size, case.precision, "eager"), self.folder, batch=self.batch)
        image = next(iter(site.stream(1)))["image"]
        network = copy.deepcopy(site.setup.network)
        kind = gpu.PRECISIONS[case.precision]
        count = 3 * counted(lambda: network(image))
        torch.compiler.reset()
        chosen = torch.compile(network, mode="max-autotune") if case.compiled else network
        take = gpu.step(chosen, image, kind)

        def steps(count: int) -> None:
            for _ in range(count):
                take()

        return self._step(steps)[0], count

    def _step(self, steps: Callable[[int], None]) -> tuple[float, float]:
        """Return the seconds of one step, without a run's start, and the seconds of a run of `ROUND` steps."""
        steps(FEW)
        short, long = (min(self._seconds(partial(steps, count)) for _ in range(2)) for count in (FEW, ROUND))
        return (long - short) / (ROUND - FEW), long

    def _seconds(self, work: Callable[[], object]) -> float:
        self._wait()
        began = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass
class Rounds:
    """A method's site, which trains without a server."""

    setup: SiteSetup
    optimizer: torch.optim.Optimizer
    known: dict[str, Any]  # of the method's context

    @classmethod
    def open(cls, case: Case, folder: Path, *, batch: int) -> "Rounds":
        height, width = case.size
        training = {"height": height, "width": width, "batch_size": batch, "precision": case.precision}
        job = Job(name="bench", bundle=BUNDLES[case.method], method=case.method, training=training)
        setup = set_up_site(job, load_site(folder / "site" / "site.yaml"))
        setup.cache, setup.workers = FrameCache(folder / "cache", limit=10**11), machine.frame_workers()
        style = ITEMS["style"].measure(cls._dataset(setup), "")
        known = {"site": 0, "sites": SITES, "items": {"style": [style] * SITES}}
        return cls(setup, make_optimizer(setup.network, setup.bundle.training), known)

    def stream(self, count: int) -> Iterator[Batch]:
        """Yield augmented batches of the site."""
        setup, device = self.setup, next(self.setup.network.parameters()).device
        return training_batches(
            self._dataset(setup), setup.bundle.training, setup.method, self._context(count), iterations=count,
            device=device, workers=setup.workers,
        )  # fmt: skip

    def train(self, batches: Iterable[Batch], count: int) -> None:
        """Take one step on each of ``count`` batches."""
        setup = self.setup
        context = self._context(count)
        TrainingSteps(setup.network, self.optimizer, setup.method, context, setup.partition).run(batches)

    def losses(self, batch: Batch) -> object:
        """Compute the loss of a batch, as in a step."""
        return self.setup.method.local.objective(self.setup.network, batch, self._context(1))

    def why_eager(self) -> str:
        """Return the reason why the steps are not recorded; empty: they are."""
        setup = self.setup
        return why_eager(
            setup.network, self.optimizer, setup.method, self._context(1), setup.method.local.objective
        )  # fmt: skip

    def _context(self, count: int) -> Context:
        return make_context(
            self.setup.bundle.training, self.setup.task, round=0, rounds=1, iterations=count, **self.known
        )

    @staticmethod
    def _dataset(setup: SiteSetup) -> Any:
        return setup.dataset(samples(setup.site, "train", setup.task.spec))


def prepare_steps(site: Rounds, way: str) -> None:
    """Let `train` take eager, recorded or compiled steps; ValueError if the site cannot record them."""
    site.known["eager"] = "" if way == "recorded" else f"bench-gpu times {way} steps"
    if way == "recorded" and (reason := site.why_eager()):
        raise ValueError(f"its steps are not recorded: {reason}")
    if way == "compiled":
        torch.compiler.reset()
        for part in site.setup.network.children():  # methods call the parts, not only `forward`
            part.compile()
