"""At the server: an answer that cannot be decoded costs one site its update, and does not end the job's process.

FLARE 2.9 ends the server's whole process of a job, by `os._exit`, when the tensors of one site's answer do not arrive
or cannot be decoded: a site that dies during its upload would end the job for all, even after the last round. So would
an answer of the server that one site rejects as too large. Without that exit FLARE raises and logs the same error, the
site is informed and tries again, and a dead site counts as absent after the job's waiting times.
"""

from typing import Any

from nvflare.fuel.f3.cellnet import cell

from shared_components.flare.patches.replace import replace

SHA256 = "7c83ed82f0c43a8dc9e8a92c5979d02711a571683a7c412a884fc5ae958277ec"


def stay_alive() -> None:
    """Keep this process alive when a message fails."""
    replace(cell, "_is_server_job_cell", lambda _: _ends_with_a_message, sha256=SHA256)


def _ends_with_a_message(my_info: Any) -> bool:
    return False
