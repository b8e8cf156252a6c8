"""Measure the server's cost of a round's records as a run gets longer (aim: at most 5 ms, the same in every round).

    python -m evidence.benchmarks.records

Sites are simulated and their model is tiny, so that a round is little more than its records. Bytes are all that the
process writes in a round: records, state and run.json.
"""

import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from evidence.benchmarks.server_memory import opened
from shared_components.federation.messages import Reply
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.federation.server.runner import ServerRunner

SITES, ROUNDS = 64, (10, 100, 1000)


@dataclass(frozen=True)
class Cost:
    """Cost of one round of a server."""

    round: int  # from 1
    records: float  # processor seconds for noting, closing and writing the records
    whole: float  # processor seconds of the server's part of the round
    written: int  # bytes


def small_server(folder: Path, *, sites: int, rounds: int) -> ServerRunner:
    """Return a server of FedAvg with a model of four numbers."""
    server = opened("fedavg", {}, rounds, 1, folder, sites=sites)
    server.state.models = replace(server.state.models, shared={"layer0.weight": torch.zeros(2, 2)})
    return server


def play(server: ServerRunner, rounds: int, *, costs_of: Collection[int] = ()) -> Iterator[Cost]:
    """Play rounds up to number ``rounds`` with generated replies; yield the costs of the chosen rounds."""
    process, spent = psutil.Process(), [0.0]
    for name in ("note", "about", "close", "write"):
        _time(server.round_log, name, spent)
    while (number := server.state.round + 1) <= rounds:
        spent[0], began, before = 0.0, time.process_time(), process.io_counters().write_chars
        replies = {}
        for site, sent in server.round_messages().items():
            header = {"round": server.state.round, "samples": 10, "loss": {"total": 0.5}, "metrics": {"dice": 0.7}}
            replies[site] = Reply(header, {name: value + 1e-3 for name, value in sent.pieces.items()})
        server.finish_round(replies, {})
        if number in costs_of:
            written = process.io_counters().write_chars - before
            yield Cost(number, spent[0], time.process_time() - began, written)


def _time(log: object, name: str, spent: list[float]) -> None:
    work = getattr(log, name)

    def timed(*args: object, **options: object) -> object:
        began = time.process_time()
        try:
            return work(*args, **options)
        finally:
            spent[0] += time.process_time() - began

    setattr(log, name, timed)


def main() -> None:
    torch.set_num_threads(1)
    print(f"commit {commit()}, {hardware()}, {SITES} sites")
    with tempfile.TemporaryDirectory() as folder:
        server = small_server(Path(folder), sites=SITES, rounds=ROUNDS[-1])
        for cost in play(server, ROUNDS[-1], costs_of=ROUNDS):
            times = f"records {cost.records * 1e3:.1f} ms, whole round {cost.whole * 1e3:.1f} ms"
            print(f"  round {cost.round}: {times}, {cost.written} bytes written", flush=True)


if __name__ == "__main__":
    main()
