"""What a running job in production is told beside the answers to its tasks: which sites are lost."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_context import FLContext

from shared_components.flare.patches.lost_sites import read_lost


class LostSitePoll:
    """Finds what the server's own process has left for a job's controller, see `lost_sites`."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}  # sites that do not work on this job, or no longer, and why
        self._folder: Path | None = None

    def open(self, fl_ctx: FLContext) -> None:
        """Look from now on; a process of FLARE's runs one job."""
        self._folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        self.look()

    def look(self) -> None:
        """Look who is lost by now."""
        if self._folder is not None:
            self.lost |= read_lost(self._folder)
