"""Deterministic, single-threaded torch for every test, and a browser for those that ask for one."""

import contextlib
import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.browser import browser, open_page
from tests.warm import warm_programs

__all__ = ["browser", "open_page"]

SLOW = "mark.slow"  # as every file writes it that has slow tests
LONGEST = ("test_docs.py", "test_onnx_file.py")  # begun first, that no worker is left alone with them at the end
OVERLOOKED = pytest.StashKey[list[str]]()
PROGRAMS = pytest.StashKey[Path]()
MEMORY = Path("/dev/shm")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, and start workers, too, as forks of the one process that has imported ahead."""
    if hasattr(config, "workerinput"):
        sys.executable = config.workerinput["python"]
        return
    if has_room(MEMORY):  # where a file is made in an eighth of the time
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if config.getoption("numprocesses", None):
        ahead = contextlib.ExitStack()
        config.add_cleanup(ahead.close)
        folder = config.stash[PROGRAMS] = ahead.enter_context(warm_programs())
        config.option.tx = [f"popen//python={folder / 'python'}"] * len(config.option.tx)


def has_room(folder: Path) -> bool:
    """Return whether a folder takes the files of all tests, of which some are executed."""
    if not folder.is_dir():
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize > 8 * 2**30 and not disk.f_flag & os.ST_NOEXEC


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tell a worker of xdist what it cannot know as a fork."""
    node.workerinput.update(python=sys.executable, programs=str(node.config.stash[PROGRAMS]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let `-m slow` leave out the files without slow tests: four of five, and with them most of the collection."""
    asked = config.option.markexpr == "slow" and collection_path.match("test_*.py")
    return True if asked and SLOW not in collection_path.read_text("utf-8") else None


@pytest.hookimpl(tryfirst=True)  # before those are gone that this run does not choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    config.stash[OVERLOOKED] = [str(path) for path in slow if SLOW not in path.read_text("utf-8")]
    if config.option.markexpr == "slow":
        items.sort(key=lambda item: (item.path.name not in LONGEST, slow[item.path]))


@pytest.fixture(scope="module", autouse=True)
def little_garbage_to_look_for():
    """Spare what was there before a module from garbage collection, with which every task of a job ends.

    A network exported to ONNX leaves a million objects in its exporter's caches: a second of each task that follows.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def overlooked(pytestconfig) -> list[str]:
    """Return which of the files that were collected have slow tests that `-m slow` does not find."""
    return pytestconfig.stash[OVERLOOKED]


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    import torch  # here: the process that distributes tests does without

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Let `fsync` do nothing in this process: no test cuts the power, and it is a sixth of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_seeds_for_accelerators_that_are_not_there():
    """For each kind of them `manual_seed` would write down where it is called from, in 1 ms and for ever."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session")
def programs(pytestconfig):
    """Return a folder of the commands `python`, `surgfl` and `nvflare`, which begin in a tenth of a second."""
    if hasattr(pytestconfig, "workerinput"):
        yield Path(pytestconfig.workerinput["programs"])
    else:
        with warm_programs() as folder:
            yield folder


@pytest.fixture(scope="module")
def quick_python(programs):
    """Let what this module's tests start by `sys.executable` begin in a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(programs / "python"))
        yield


@pytest.fixture
def real_data() -> Path:
    """Folder that holds endovis2015_rigid and endovis2017; real frames are never part of this repository."""
    if "SURGFL_REAL_DATA" not in os.environ:
        pytest.skip("SURGFL_REAL_DATA names no folder of real frames")
    return Path(os.environ["SURGFL_REAL_DATA"])
