"""What a running job in production is told and asked beside its tasks: which sites are lost, and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_context import FLContext

from shared_components.flare import lost_sites

PROGRESS = "surgfl.progress"  # an administrator's question by FLARE's `app_command`
LONGEST = 500  # lines in one answer


class Desk:
    """Takes FLARE's application commands for a controller; FLARE's threads write, the controller reads."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}  # sites whose process of this job has ended, and why
        self._lines: list[str] = []
        self._waiting: Callable[[], dict[str, Any]] = dict
        self._lock = threading.Lock()

    def open(self, fl_ctx: FLContext) -> None:
        """Answer commands from now on; a process of FLARE's runs one job."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(lost_sites.TOPIC, self._note_lost)
        engine.register_app_command(PROGRESS, self._progress)

    def say(self, text: str) -> None:
        """Keep lines for whoever watches."""
        with self._lock:
            self._lines += text.splitlines()

    def show(self, waiting: Callable[[], dict[str, Any]]) -> None:
        """Say from now on by this what is under way: a title, and the sites that are waited for."""
        self._waiting = waiting

    def _note_lost(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self.lost.setdefault(str(data["site"]), str(data["reason"]))
        return {}

    def _progress(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        """Answer with the lines from number ``since`` on, the number of the next one, and what is under way."""
        since = data.get("since", 0) if isinstance(data, dict) else 0
        since = since if type(since) is int and since >= 0 else 0
        with self._lock:
            lines = self._lines[since : since + LONGEST]
        return {"lines": lines, "next": since + len(lines), **self._waiting()}
