"""Deterministic, single-threaded torch for every test, and a browser for those that ask for one."""

import os
import sys

import pytest
import torch

from tests.browser import browser, open_page
from tests.warm import warm_programs

__all__ = ["browser", "open_page"]


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
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
    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session")
def programs():
    """Return a folder of the commands `python`, `surgfl` and `nvflare`, which begin in a tenth of a second."""
    with warm_programs() as folder:
        yield folder


@pytest.fixture(scope="module")
def quick_python(programs):
    """Let what this module's tests start by `sys.executable` begin in a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(programs / "python"))
        yield
