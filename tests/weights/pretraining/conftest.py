"""A tiny pre-training of a tiny network: twelve steps in a second."""

import functools
import io

import pytest

from shared_components.weights.pretraining import train
from shared_components.weights.pretraining.plan import Phase, Settings
from shared_components.weights.pretraining.stream import held_out
from shared_components.weights.pretraining.train import Pretraining
from tests.federation.conftest import toy_bundle  # noqa: F401

TINY = {
    "bundle": "toy", "task": "segmentation", "phases": (Phase(64, 64, 7), Phase(64, 96, 5)), "seed": 5, "batch": 2,
    "frames": 3, "learning_rate": 1e-2, "looks": ("rose", "violet"),
}  # fmt: skip
once = functools.cache(held_out)


@pytest.fixture(autouse=True)
def held_out_videos_rendered_once(monkeypatch):
    """Let each run be scored on videos that an earlier one has rendered; test_stream renders each."""
    monkeypatch.setattr(train, "held_out", once)


def tiny(**changes) -> Settings:
    return Settings(**TINY | changes)


@pytest.fixture
def begin(toy_bundle, tmp_path):  # noqa: F811
    """Return a function that makes a pre-training of the toy, in a folder by its name."""

    def made(name="run", *, start="random", save_every=3, check_every=100, workers=0, say=None, **changes):
        return Pretraining(
            tiny(**changes), tmp_path / name, start=start, save_every=save_every, check_every=check_every,
            workers=workers, say=say or io.StringIO(),
        )  # fmt: skip

    return made
