"""Four frames a video that a tiny network learns in a second: tools of two colours."""

import pytest

from shared_components.data.site_file import load_site
from shared_components.weights.fine_tuning.plan import Settings
from shared_components.weights.fine_tuning.train import fine_tune
from tests.data.custom.conftest import own_site
from tests.federation.conftest import toy_bundle

__all__ = ["own_site", "toy_bundle"]


def settings(**changes):
    return Settings(**{"bundle": "toy", "start": "random", "size": (32, 32), "steps": 3, "batch_size": 2} | changes)


@pytest.fixture
def tune(toy_bundle, own_site, tmp_path):
    """Return a function that trains the toy at a small site into `tmp_path/<out>`."""

    def run(out="model", *, site=None, say=lambda text: None, **changes):
        site = site or load_site(own_site(root=str(tmp_path)))
        return fine_tune(site, tmp_path.parent / f"{tmp_path.name}-{out}", settings(**changes), say=say)

    return run
