"""Close a connection that is established while its process closes all of them.

When a session or a process ends, FLARE 2.9 closes its connections and waits for the thread of each. A connection that
is just being established, as after the server has refused the last one, is never closed, and the wait has no end.
"""

from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.drivers.base_driver import BaseDriver

from shared_components.flare.patches.replace import replace

SHA256 = "a7d4533bdd483bdf567a1ee092ac55c6f4a20637ee479d40d2e2a2750d704f5c"


def close_late_connections() -> None:
    """Close each connection of this process whose connector has stopped before it was established."""
    replace(BaseDriver, "add_connection", _closed_if_late, sha256=SHA256)


def _closed_if_late(add: Callable[..., None]) -> Callable[..., None]:
    def added(driver: Any, connection: Any) -> None:
        add(driver, connection)
        if connection.connector.stopped.is_set():  # set before the known connections are closed
            connection.close()

    return added
