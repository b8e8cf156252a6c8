"""Deterministic, single-threaded torch for every test, and a browser for those that ask for one."""

import pytest
import torch

from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
