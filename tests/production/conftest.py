"""Federations of real processes, see `deployment.py`."""

from itertools import cycle

import pytest

from evidence.production.at_start import PYTHON
from evidence.production.deployment import Deployment
from tests.federation.conftest import scenes, toy_bundle  # noqa: F401 (fixtures)
from tests.narrow import narrow_library

SITES = ("hospital-a", "hospital-b", "hospital-c")


@pytest.fixture
def deploy(tmp_path, scenes):  # noqa: F811
    """Return a function that provisions a federation with narrow networks, which ends with the test."""
    made = []

    def make(*names, **options):
        sites = dict(zip(names or SITES, cycle(scenes), strict=False))
        made.append(Deployment(tmp_path / f"deployment-{len(made)}", sites, **options))
        narrow_library(made[-1].root)
        return made[-1]

    yield make
    for deployment in made:
        deployment.kill()


@pytest.fixture
def deploy_quick(deploy, programs):
    """Return `deploy` with forks of `tests/warm.py` as job processes, which takes a third of the time.

    Tests that kill or inspect single processes need real processes.
    """

    def make(*names, variables=None, **options):
        return deploy(*names, variables={PYTHON: str(programs / "python"), **(variables or {})}, **options)

    return make
