"""Federations of real processes, see `deployment.py`."""

from itertools import cycle

import pytest

from evidence.production.deployment import Deployment
from tests.federation.conftest import scenes  # noqa: F401 (a fixture)

SITES = ("hospital-a", "hospital-b", "hospital-c")


@pytest.fixture
def deploy(tmp_path, scenes):  # noqa: F811
    """Return a function that provisions a federation of these sites, which ends with the test."""
    made = []

    def make(*names, **options):
        sites = dict(zip(names or SITES, cycle(scenes), strict=False))
        made.append(Deployment(tmp_path / f"deployment-{len(made)}", sites, **options))
        return made[-1]

    yield make
    for deployment in made:
        deployment.kill()
