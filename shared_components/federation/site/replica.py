"""A process that trains beside a site's own process on a further GPU; `replica_processes` starts it.

It reads the paths of `ReplicaTask` files from standard input, one a line, and writes only its error and its log.
"""

import logging
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
from torch import distributed

from shared_components.common.atomic import write_text
from shared_components.common.sanitise import one_line
from shared_components.core import replicas
from shared_components.core.partition import Pieces
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Message
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.runs.store import groups_of, load_tensors
from shared_components.federation.site.replica_processes import OWNER, PIECES
from shared_components.federation.site.runner import SiteRunner


def main(folder: Path, rank: int, size: int, threads: int) -> None:
    """Train the rounds that come, until the parent process ends; an error ends this process."""
    tasks: queue.Queue[str] = queue.Queue()
    for watch in (_read, _end_with):
        threading.Thread(target=watch, args=(tasks, os.getppid()), daemon=True).start()
    torch.set_num_threads(threads)
    try:
        write_text(folder / f"ready-{rank}", "")
        replicas.join(folder, rank=rank, size=size)
        while True:
            path = Path(tasks.get())
            with replicas.training_in(rank=rank, size=size):
                train(path)
                distributed.barrier()
    except Exception as error:
        write_text(folder / f"error-{rank}", f"{type(error).__name__}: {one_line(error)}")
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not through the end of the group, which may wait for others


def train(path: Path) -> None:
    """Train the round in a `ReplicaTask` file; the result is in the first replica."""
    tensors, values = load_tensors(path, of=OWNER)
    groups: dict[str, Pieces] = {name: {} for name in (PIECES, *values["groups"])} | groups_of(tensors)
    message = Message(values["header"], groups.pop(PIECES), groups)
    sites = {number: (name, Path(file)) for number, name, file in values["sites"]}
    start = values["start_weights"]
    runner = SiteRunner(
        values["name"], folder=Path(values["folder"]), start_weights=None if start is None else Path(start),
        find_site=lambda job, number: load_site(sites[number][1], name=sites[number][0]), without_gpus=True,
    )  # fmt: skip
    runner.train_beside(parse_request("round", message))


def _read(tasks: queue.Queue[str], parent: int) -> None:
    for line in sys.stdin:
        tasks.put(line.rstrip("\n"))
    os._exit(1)


def _end_with(tasks: queue.Queue[str], parent: int) -> None:
    """End when the parent ends, also if another process has inherited its end of the pipe."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
