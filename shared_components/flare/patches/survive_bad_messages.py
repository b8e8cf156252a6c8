"""At the server: an answer that cannot be read ends one site's part, and not the job's process.

FLARE 2.9 ends the server's whole process of a job, by `os._exit`, when the tensors of one site's answer do not come or
cannot be decoded: a site that dies in its upload would take all others with it, even after the last round. So does an
answer of the server's own that one site finds too large. Without that end FLARE raises and logs the same error where
it belongs, the site is told and tries again, and a site that lives no more is counted as absent by the job's waiting
times.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.cellnet import cell

from shared_components.flare.patches.replace import replace


def stay_alive() -> None:
    """Let no message that fails end this process."""
    replace(
        cell,
        "_is_server_job_cell",
        lambda _: _ends_with_a_message,
        sha256="7c83ed82f0c43a8dc9e8a92c5979d02711a571683a7c412a884fc5ae958277ec",
    )


def _ends_with_a_message(my_info: Any) -> bool:
    return False
