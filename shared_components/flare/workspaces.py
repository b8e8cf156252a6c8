"""Check a simulator's workspace: FLARE must be able to use it, and two launches must not share it."""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared_components.common.atomic import try_lock
from shared_components.common.sanitise import is_one_word
from shared_components.federation.messages import FederationError

FLARES_FOLDERS = {"local", "startup", "server"}  # in a workspace as soon as FLARE has begun one


class Unusable(FederationError):
    """A launch that cannot succeed; FLARE would wait for its workers for a minute."""


class Workspace:
    """The folder of one launch (the simulator's ``-w``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inode = self._read_inode()

    def refuse_if_emptied(self) -> None:
        """Raise FederationError if another launch has emptied the folder, as FLARE does at every start.

        The run's state is kept.
        """
        if self._read_inode() != self._inode:
            raise FederationError(
                f"{self.folder} was emptied while this job ran in it, by another launch with the same -w; give each "
                "launch its own workspace"
            )

    def _read_inode(self) -> int | None:
        """Return the folder's inode number, which a new folder of the same name does not share."""
        try:
            return self.folder.stat().st_ino
        except FileNotFoundError:
            return None


@contextmanager
def lock_workspace(folder: Path, command: Sequence[str] = (), *, patience: float = 15.0) -> Iterator[Workspace]:
    """Lock a workspace, the simulator's ``-w``, for the launch by this command line, until its process ends.

    An earlier launch in the same folder soon detects that FLARE has emptied the folder for this launch, and ends.

    Unusable: FLARE cannot work in the folder or with this command line, or another launch works there for longer than
    ``patience`` seconds.
    """
    refuse_unusable(folder)
    refuse_no_sites(command)
    with lock_file(folder).open("a", encoding="utf-8") as file:
        end = time.monotonic() + patience
        while not try_lock(file):
            if time.monotonic() > end:
                raise Unusable(f"another launch works in {folder}; give each launch its own workspace")
            time.sleep(0.1)
        yield Workspace(folder)


def is_held(folder: Path) -> bool:
    """Return whether a launch works in a workspace now."""
    if not lock_file(folder).is_file():
        return False
    with lock_file(folder).open("a", encoding="utf-8") as file:
        return not try_lock(file)


def lock_file(folder: Path) -> Path:
    """Return a workspace's lock file, which is next to the workspace: FLARE empties the folder itself."""
    return folder.with_name(f".{folder.name}.lock")


def refuse_unusable(folder: Path) -> None:
    """Raise Unusable for a path that FLARE would split: its simulator starts workers with a line of text."""
    text = os.fspath(folder)
    if not is_one_word(text):
        raise Unusable(
            f"the workspace's path {text!r} has a space, a quote, a backslash or a '#' in it, so FLARE's simulator "
            "starts no site; give another folder with -w"
        )


def refuse_foreign(folder: Path) -> None:
    """Raise Unusable for a workspace that FLARE cannot use, or that contains files which FLARE would remove."""
    refuse_unusable(folder)
    if is_held(folder):
        raise Unusable(f"another launch works in {folder}; wait for its end, or give another folder")
    if not folder.exists() or (folder / "server" / "simulate_job").is_dir():
        return
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} <= FLARES_FOLDERS:
        raise Unusable(
            f"{folder} is no workspace of FLARE's simulator, and FLARE would empty it; move it away or give another"
        )


def refuse_no_sites(command: Sequence[str]) -> None:
    """Raise Unusable for ``nvflare simulator -n 0``: FLARE would run two sites."""
    if list(command[1:2]) != ["simulator"]:
        return
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-n", "--n_clients", type=int, default=1)  # FLARE has checked that it is a number
    sites = parser.parse_known_args(command[2:])[0].n_clients
    if sites < 1:
        raise Unusable(f"-n is {sites}; a federation has at least one site")


def exit_simulator() -> None:
    """Exit the simulator's server, a child process of the command, with FLARE's status of a failed job."""
    if multiprocessing.parent_process() is not None:
        os._exit(2)
