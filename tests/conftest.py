"""Deterministic, single-threaded torch for every test, and a browser for those that ask for one."""

import os

import pytest
import torch

from tests.browser import browser, open_page

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
