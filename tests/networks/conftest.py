"""A SAM2 of half a million parameters, so that its tests take milliseconds."""

import pytest

from shared_components.networks.sam2_architectures import ARCHITECTURES, Architecture

TOY = Architecture(
    (8, 16, 32, 64), (1, 1, 2, 1), (1, 1, 1, 1), windows=(8, 4, 8, 4), everywhere=(3,), width=128, layers=2, hidden=64
)


@pytest.fixture(scope="module", autouse=True)
def toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "toy", TOY)
        yield
