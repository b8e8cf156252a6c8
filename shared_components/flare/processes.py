"""In a simulator, detect that a site's process has died, and kill a process that hangs.

FLARE itself would wait for the task's timeout in the first case, and forever in the second.
"""

from pathlib import Path

import psutil

from shared_components.common.atomic import write_text

FILE = "process"


def announce(folder: Path, process: int) -> None:
    """Write the id of the process that works on a site's task to the site's folder."""
    write_text(folder / FILE, str(process))


def forget(folder: Path) -> None:
    """Remove the process id of an earlier task."""
    (folder / FILE).unlink(missing_ok=True)


def died(folder: Path) -> bool:
    """Return whether the announced process is no longer alive; False if there is none."""
    return (folder / FILE).is_file() and _living(folder) is None


def end(folder: Path) -> None:
    """Kill the announced process; it writes all files under a temporary name first, so that none is incomplete."""
    if process := _living(folder):
        process.kill()


def _living(folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int((folder / FILE).read_text("utf-8")))
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
