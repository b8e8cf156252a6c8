"""Kits of a federation of one site, made once and copied for each test."""

import copy
import shutil

import pytest

from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.provision import provision

DESCRIBED = {
    "name": "small",
    "server": {"host": "localhost", "organisation": "consortium"},
    "sites": [{"name": "hospital-a", "organisation": "hospital_a"}],
    "administrators": [{"email": "anna@example.org", "organisation": "consortium", "role": "project_admin"}],
    "certificates": {"days": 40, "root_days": 100},
}
NAMES = ("localhost", "hospital-a", "anna@example.org")


@pytest.fixture
def described():
    """Return a description that a test may change."""
    return copy.deepcopy(DESCRIBED)


@pytest.fixture
def larger(described):
    """Return a federation with a second site."""
    described["sites"].append({"name": "hospital-b", "organisation": "hospital_b"})
    return parse_federation(described)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "kits"
    provision(parse_federation(DESCRIBED), out)
    return out


@pytest.fixture
def kits(made, tmp_path):
    """Return a folder of kits that a test may change."""
    return shutil.copytree(made, tmp_path / "kits")
