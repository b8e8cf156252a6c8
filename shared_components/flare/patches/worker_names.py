"""In a simulator with `-t` above 1, give no worker the name of another site.

FLARE 2.9 sends each worker process its site's name in a dictionary that its threads share: one thread writes a name,
another overwrites it before the first has sent it, and two processes work as the same site. The server then drops the
connection of either whenever the other sends, and the site that never answers ends the run.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

from shared_components.flare.patches.replace import replace

SHA256 = "698a6dd1a4c18c2e0442a2cea36cbc00b6901778616f72969feec2e6a3c8fc9e"
RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"


def keep_apart() -> None:
    """Give every task of FLARE's simulator its own dictionary, if this is the process that starts the tasks."""
    if RUNNER not in sys.modules:
        return
    replace(sys.modules[RUNNER].SimulatorClientRunner, "do_one_task", _with_its_own, sha256=SHA256)


def _with_its_own(shared: Callable[..., Any]) -> Callable[..., Any]:
    def do_one_task(runner: Any, *arguments: Any, **options: Any) -> Any:
        own = copy.copy(runner)
        own.build_ctx = dict(runner.build_ctx)
        own.get_next_run_client = runner.get_next_run_client  # all threads share one queue of sites
        return shared(own, *arguments, **options)

    return do_one_task
