"""Federations of real processes, see `deployment.py`."""

from itertools import cycle

import pytest

from evidence.production.at_start import PYTHON
from evidence.production.deployment import Deployment
from tests.federation.conftest import scenes  # noqa: F401 (a fixture)
from tests.narrow import narrow_library

SITES = ("hospital-a", "hospital-b", "hospital-c")


@pytest.fixture
def deploy(tmp_path, scenes):  # noqa: F811
    """Return a function that provisions a federation of these sites, of narrow networks, which ends with the test."""
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
    """Return `deploy` whose jobs' processes are forks of `tests/warm.py`, at a third of the time.

    For what only needs a job to run, or a whole party to be killed. Tests of what dies with a process, of what one
    holds, and of the way itself have real ones.
    """

    def make(*names, variables=None, **options):
        return deploy(*names, variables={PYTHON: str(programs / "python"), **(variables or {})}, **options)

    return make
