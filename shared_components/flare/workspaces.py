"""A simulator's workspace: one that FLARE cannot use is refused at once, and two launches in one are noticed."""

from __future__ import annotations

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


class Unusable(FederationError):
    """A launch that can come to nothing; FLARE would go on looking for its workers for a minute."""


class Workspace:
    """The folder of one launch, to be asked now and then whether it is still this launch's.

    Args:
        folder: The simulator's ``-w``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = _number(folder)

    def refuse_if_emptied(self) -> None:
        """Notice that another launch has emptied the folder, which FLARE does before it asks anybody.

        Raises:
            FederationError: It has; what the run has done is kept in its state.
        """
        if _number(self.folder) != self._number:
            raise FederationError(
                f"{self.folder} was emptied while this job ran in it, as another launch with the same -w does; give "
                "each launch a workspace of its own"
            )


def _number(folder: Path) -> int | None:
    """Return what the disk knows a folder by, which a new one of its name does not share; None without a folder."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


@contextmanager
def held(folder: Path, command: Sequence[str] = (), *, patience: float = 15.0) -> Iterator[Workspace]:
    """Hold a workspace for one launch, by a lock beside it that ends with the process.

    A launch that works there already is about to notice that FLARE has emptied its workspace for this one, and ends.

    Args:
        folder: The simulator's ``-w``.
        command: What started the simulator.
        patience: How many seconds another launch has for its end.

    Raises:
        Unusable: FLARE cannot work in the folder or with these arguments, or another launch works there.
    """
    refuse_unusable(folder)
    refuse_no_sites(command)
    with lock_file(folder).open("a") as file:
        end = time.monotonic() + patience
        while not try_lock(file):
            if time.monotonic() > end:
                raise Unusable(
                    f"another launch works in {folder}, which FLARE has emptied for this one; give each launch a "
                    "workspace of its own"
                )
            time.sleep(0.1)
        yield Workspace(folder)


def is_held(folder: Path) -> bool:
    """Say whether a launch works in a workspace now."""
    if not lock_file(folder).is_file():
        return False
    with lock_file(folder).open("a") as file:
        return not try_lock(file)


def lock_file(folder: Path) -> Path:
    """Return the file beside a workspace that is locked while a launch works there; FLARE empties the folder itself."""
    return folder.with_name(f".{folder.name}.lock")


def refuse_unusable(folder: Path) -> None:
    """Refuse a path that FLARE's simulator would take apart: it starts its workers by a line of text.

    Raises:
        Unusable: The path has a space, a quote, a backslash or a `#` that does so.
    """
    text = os.fspath(folder)
    if not is_one_word(text):
        raise Unusable(
            f"the workspace's path {text!r} has a space, a quote, a backslash or a '#' in it, with which FLARE's "
            "simulator starts no site; give another folder with -w"
        )


def refuse_no_sites(command: Sequence[str]) -> None:
    """Refuse ``nvflare simulator -n 0``, which FLARE takes for no number and runs two sites.

    Raises:
        Unusable: The command asks for less than one site.
    """
    if list(command[1:2]) != ["simulator"]:
        return
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-n", "--n_clients", type=int, default=1)  # FLARE has refused what is no number
    sites = parser.parse_known_args(command[2:])[0].n_clients
    if sites < 1:
        raise Unusable(f"-n is {sites}; a federation has at least one site")


def leave() -> None:
    """End the simulator's own process with FLARE's code for a failed job, if this is it: a child of the command's."""
    if multiprocessing.parent_process() is not None:
        os._exit(2)
