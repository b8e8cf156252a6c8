"""Measure training on a GPU in at most eight minutes: `make bench-gpu`.

Each measurement prints its line when it is done, so that a lost connection keeps all lines before it. A measurement
that fails prints its reason. A measurement that does not fit into the time left is named at the end.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType

import torch

from evidence.benchmarks import gpu, gpu_steps
from shared_components.common import machine
from shared_components.federation.runs.provenance import commit

SECONDS = 450.0  # since the process began
BATCH, PRODUCT = 8, 8192  # frames of a step, rows of the large matrices


@dataclass(frozen=True)
class Measurement:
    """A measurement that yields lines, and the seconds that it needs at least."""

    name: str
    seconds: float
    lines: Callable[[], Iterable[str]]


class OutOfTime(BaseException):
    """The time of all measurements is over; no measurement catches it."""


def main() -> int:
    """Print all measurements, or the reason why there is none; return the exit status."""
    if not torch.cuda.is_available():
        print("bench-gpu needs an NVIDIA GPU that PyTorch sees, and torch.cuda.is_available() is False; "
              "make bench measures a machine without one")  # fmt: skip
        return 1
    end = machine.process_start() + SECONDS
    print(f"{torch.cuda.get_device_name()}, {machine.cores()} cores, PyTorch {torch.__version__}, commit {commit()}; "
          "TF32 off", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        bench = gpu_steps.Bench(torch.device("cuda"), Path(folder), batch=BATCH, product=PRODUCT)
        for line in chain(measured(measurements(bench), end), bench.goals()):
            print(line, flush=True)
    return 0


def measurements(bench: gpu_steps.Bench) -> list[Measurement]:
    """Return all measurements: first those without long compilations."""
    table = partial(gpu.table, bench.device, size=gpu_steps.LARGE, batch=BATCH, product=PRODUCT)
    steps = [
        (case.compiled, Measurement(str(case), 90 if case.compiled else 10, partial(bench.lines, case)))
        for case in gpu_steps.CASES
    ]
    return [
        Measurement("rendering of the site", 20, bench.prepare),
        *(one for compiled, one in steps if not compiled),
        Measurement("networks and predictions", 40, table),
        Measurement("steps of surgfl pretrain", 15, partial(gpu.pretraining_steps, bench.device)),
        *(one for compiled, one in steps if compiled),
    ]


def measured(chosen: Iterable[Measurement], end: float) -> Iterator[str]:
    """Yield the lines of measurements until a time of ``perf_counter``; then yield the names of the missing ones."""
    missing: list[str] = []
    for one in chosen:
        if time.perf_counter() + one.seconds > end:
            missing.append(one.name)
            continue
        try:
            lines = iter(one.lines())
            while (line := before(end, lines)) is not None:
                yield line
        except OutOfTime:
            missing.append(f"{one.name} (cut off)")
        except Exception as error:  # the other measurements go on
            yield f"{one.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if missing:
        yield f"left out for lack of time: {'; '.join(missing)}"


def before(end: float, lines: Iterator[str]) -> str | None:
    """Return the next line, or None after the last; raise OutOfTime at the end, also within a compilation."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, end - time.perf_counter()))
    try:
        return next(lines, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


if __name__ == "__main__":
    raise SystemExit(main())
