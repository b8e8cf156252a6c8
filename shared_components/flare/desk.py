"""What a running job in production is told beside the answers to its tasks: which sites are lost."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_context import FLContext

from shared_components.flare import lost_sites


class Desk:
    """Takes FLARE's application commands for a controller; FLARE's threads write, the controller reads."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}  # sites that do not work on this job, or no longer, and why

    def open(self, fl_ctx: FLContext) -> None:
        """Take commands from now on, and who did not even take the job; a process of FLARE's runs one job."""
        self.lost |= lost_sites.not_given(fl_ctx)
        fl_ctx.get_engine().register_app_command(lost_sites.TOPIC, self._note_lost)

    def _note_lost(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self.lost.setdefault(str(data["site"]), str(data["reason"]))
        return {}
