"""In a simulator, detect that a site's process has died, and kill one that hangs.

FLARE itself would wait for the task's timeout in the first case and for ever in the second.
"""

from pathlib import Path

import psutil

from shared_components.common.atomic import write_text

FILE = "process"


def announce(folder: Path, process: int) -> None:
    """Write the id of the process that works on a site's task into the site's folder."""
    write_text(folder / FILE, str(process))


def forget(folder: Path) -> None:
    """Remove what an earlier task of the site has announced."""
    (folder / FILE).unlink(missing_ok=True)


def died(folder: Path) -> bool:
    """Return whether a process was announced and is not alive any more."""
    return (folder / FILE).is_file() and _living(folder) is None


def end(folder: Path) -> None:
    """Kill the announced process; all its files are written to a temporary name and renamed."""
    if process := _living(folder):
        process.kill()


def _living(folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int((folder / FILE).read_text("utf-8")))
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
