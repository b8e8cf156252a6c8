"""In a simulator, notice that a site's process has died, and end one that hangs.

FLARE itself would wait for the task's timeout in the first case and for ever in the second.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shared_components.common.atomic import write_text

FILE = "process"


def announce(folder: Path, process: int) -> None:
    """Say in the site's folder which process works on its task."""
    write_text(folder / FILE, str(process))


def forget(folder: Path) -> None:
    """Remove what an earlier task of the site has announced."""
    (folder / FILE).unlink(missing_ok=True)


def died(folder: Path) -> bool:
    """Say whether a process has been announced and lives no more."""
    announced = _announced(folder)
    return announced is not None and not _lives(announced)


def end(folder: Path) -> None:
    """Kill the process that has been announced; all that it keeps is written beside and renamed."""
    announced = _announced(folder)
    if announced is not None and _lives(announced):
        os.kill(announced, signal.SIGKILL)


def _announced(folder: Path) -> int | None:
    try:
        return int((folder / FILE).read_text())
    except FileNotFoundError:
        return None


def _lives(process: int) -> bool:
    import psutil  # nvflare depends on it

    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
