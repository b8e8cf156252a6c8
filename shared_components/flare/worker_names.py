"""In a simulator with `-t` above 1, let no worker get the name of another site.

FLARE 2.9 tells each worker process who it is in a dictionary that its threads share: one thread writes a name,
another writes its own before the first has sent it, and two processes work as the same site. The server then
drops the connection of either whenever the other speaks, and a site that never answers ends the run.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any

RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"


def keep_apart() -> None:
    """Give every task of FLARE's simulator a dictionary of its own, if this is the process that starts them."""
    if RUNNER not in sys.modules:
        return
    kind = sys.modules[RUNNER].SimulatorClientRunner
    shared = kind.do_one_task
    if hasattr(shared, "__wrapped__"):
        return

    @functools.wraps(shared)
    def do_one_task(runner: Any, *arguments: Any, **options: Any) -> Any:
        own = copy.copy(runner)
        own.build_ctx = dict(runner.build_ctx)
        own.get_next_run_client = runner.get_next_run_client  # whose turn it is stays common to all threads
        return shared(own, *arguments, **options)

    kind.do_one_task = do_one_task
