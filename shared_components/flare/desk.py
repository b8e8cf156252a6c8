"""What a running job in production is told beside the answers to its tasks: which sites are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from shared_components.flare import lost_sites


class Desk:
    """Takes FLARE's application commands for a controller; FLARE's threads write, the controller reads."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}  # sites that do not work on this job, or no longer, and why
        self._outside: Path | None = None

    def open(self, fl_ctx: FLContext) -> None:
        """Take commands from now on; a process of FLARE's runs one job."""
        self._outside = lost_sites.outside_file(fl_ctx)
        fl_ctx.get_engine().register_app_command(lost_sites.TOPIC, self._note_lost)
        self.look()

    def look(self) -> None:
        """Look which sites have not even begun the job; FLARE may learn it when this process already works."""
        if self._outside is not None:
            for site, reason in lost_sites.read_outside(self._outside).items():
                self.lost.setdefault(site, reason)

    def _note_lost(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self.lost.setdefault(str(data["site"]), str(data["reason"]))
        return {}
