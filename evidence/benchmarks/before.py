"""Compare a site's round in this checkout and in an older checkout.

    git worktree add /tmp/before <commit>
    make bench-before BEFORE=/tmp/before

Each checkout prepares the same site with its own `site_round`, in its own process. The processes take turns, and the
fastest round of each counts. A ratio above 1 means that this checkout is slower.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
ROUNDS = 6
METHODS = ("FedAvg", "PFedSIS")
WORKER = """
import sys, torch
from pathlib import Path
try:
    from evidence.benchmarks.site_round import Variant, render
except ModuleNotFoundError:  # a checkout from before there was evidence/
    from tests.benchmarks.site_round import Variant, render
torch.set_num_threads(1)
folder = Path(sys.argv[2])
variant = Variant.start(sys.argv[1], render(folder)[0], folder)
for _ in sys.stdin:
    print(variant.round()[0], flush=True)
"""


class Worker:
    """Process of one checkout, which runs rounds on request."""

    def __init__(self, checkout: Path, method: str, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WORKER, method, str(folder)]
        self._process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self) -> float:
        """Run a round and return its seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(before: Path, method: str, folder: Path) -> float:
    """Print the fastest round of both checkouts, and return their ratio."""
    checkouts = {"before": before, "here": HERE}
    workers = {name: Worker(path, method, folder / name) for name, path in checkouts.items()}
    fastest = dict.fromkeys(workers, float("inf"))
    for turn in range(ROUNDS):
        order = list(workers) if turn % 2 else list(reversed(workers))
        for name in order:
            fastest[name] = min(fastest[name], workers[name].round())
    for worker in workers.values():
        worker.end()
    ratio = fastest["here"] / fastest["before"]
    print(f"  {method:10} here {fastest['here']:.2f} s / before {fastest['before']:.2f} s = {ratio:.3f}")
    return ratio


def main() -> None:
    """Compare a round of each method."""
    from shared_components.common.machine import hardware
    from shared_components.federation.runs.provenance import commit

    before = Path(sys.argv[1]).resolve()
    print(f"commit {commit()} beside {before.name}, {hardware()}; fastest of {ROUNDS} rounds each")
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            compare(before, method, Path(folder) / method)


if __name__ == "__main__":
    main()
