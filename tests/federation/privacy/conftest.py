"""Jobs with noise, and sites in a folder per test."""

import pytest

from shared_components.federation.privacy.ledger import read_ledger
from tests.federation.conftest import make_job, rewritten

NOISE = {"clip": 0.5, "noise_multiplier": 1.0}


@pytest.fixture
def scenes(scenes, tmp_path):
    """Return the sites' files in folders of this test only: a ledger outlives a run, and would outlive a test."""
    return [rewritten(path, tmp_path / "sites" / str(number)) for number, path in enumerate(scenes)]


def plain_job(method="fedavg", **changes):
    return make_job(method, **{"bundle": "toy", "tasks": {}, **changes})


def private_job(method="fedavg", **changes):
    return plain_job(method, **{"privacy": NOISE, **changes})


def entries(path):
    return read_ledger(path.with_name("site.privacy.jsonl"))
