"""In a simulator, notice that a site's process has died; FLARE itself would wait for the task's timeout."""

from __future__ import annotations

from pathlib import Path

from shared_components.federation.store import write_text

FILE = "process"


def announce(folder: Path, process: int) -> None:
    """Say in the site's folder which process works on its task."""
    write_text(folder / FILE, str(process))


def forget(folder: Path) -> None:
    """Remove what an earlier task of the site has announced."""
    (folder / FILE).unlink(missing_ok=True)


def died(folder: Path) -> bool:
    """Say whether a process has been announced and lives no more."""
    import psutil  # nvflare depends on it

    try:
        process = psutil.Process(int((folder / FILE).read_text()))
        return process.status() == psutil.STATUS_ZOMBIE
    except FileNotFoundError:
        return False
    except psutil.NoSuchProcess:
        return True
