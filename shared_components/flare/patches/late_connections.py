"""Close a connection that comes up while its process is letting go of all of them.

When a session or a process ends, FLARE 2.9 closes the connections that it has and waits for the thread of each. One
that was just being made, as after the server has refused the last, is closed by nobody, and the wait has no end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.drivers.base_driver import BaseDriver

from shared_components.flare.patches.replace import replace


def close_late_connections() -> None:
    """Let no connection of this process outlive the end of its connector from now on."""
    replace(
        BaseDriver,
        "add_connection",
        _closed_if_late,
        sha256="a7d4533bdd483bdf567a1ee092ac55c6f4a20637ee479d40d2e2a2750d704f5c",
    )


def _closed_if_late(add: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add)
    def added(driver: Any, connection: Any) -> None:
        add(driver, connection)
        if connection.connector.stopped.is_set():  # set before those that are known are closed
            connection.close()

    return added
