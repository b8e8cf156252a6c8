"""Give each worker process of a simulator with `-t` above 1 its own site's name.

FLARE 2.9 sends each worker its site's name in a dictionary that its threads share. A thread may overwrite the name
before another thread has sent it, so that two processes work as the same site. The server then drops the connection of
either process when the other sends, and the site without a process ends the run.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

from shared_components.flare.patches.replace import replace

RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"


def separate_worker_names() -> None:
    """Give every task of FLARE's simulator its own dictionary, if this process starts the tasks."""
    if RUNNER in sys.modules:
        replace(sys.modules[RUNNER].SimulatorClientRunner, "do_one_task", _with_own_dictionary)


def _with_own_dictionary(do_one_task: Callable[..., Any], runner: Any, *arguments: Any, **options: Any) -> Any:
    own = copy.copy(runner)
    own.build_ctx = dict(runner.build_ctx)
    own.get_next_run_client = runner.get_next_run_client  # all threads share one queue of sites
    return do_one_task(own, *arguments, **options)
