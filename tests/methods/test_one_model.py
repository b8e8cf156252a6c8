"""The one-model methods that differ in the server's step: what they share, limits, and how many sites they need."""

from pathlib import Path

import pytest
import torch

from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, partition_network
from tests.methods.toys import SITES, shared, step, updates

JOBS = Path(__file__).parents[2] / "nvflare_jobs"
METHODS = ["fedavgm", "fedadam", "fedmedian", "trimmed_mean", "krum", "multi_krum", "norm_bound", "qfedavg"]


@pytest.mark.parametrize("name", METHODS)
def test_each_shares_everything_and_has_a_card_of_a_page_at_most(name):
    assert partition_network(torch.nn.BatchNorm2d(2), load_method(name).partition).roles == {Role.GLOBAL}
    card = (JOBS / name / "README.md").read_text()
    assert f"nvflare simulator nvflare_jobs/{name} -w ws -n 3" in card and 25 <= len(card.splitlines()) <= 60


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("fedavgm", {"momentum": 0, "learning_rate": 1}),
        ("multi_krum", {"keep": 1}),
        ("trimmed_mean", {"trim": 0}),
        ("qfedavg", {"q": 0}),
    ],
)
def test_limits_are_the_parent_method(name, arguments):
    parents = {"fedavgm": "fedavg", "multi_krum": "krum", "trimmed_mean": "multi_krum", "qfedavg": "trimmed_mean"}
    parent = load_method(parents[name], **({"trim": 0} if name == "qfedavg" else {}))
    given = updates(SITES, extras={"loss": [1.0, 2.0, 3.0, 4.0, 5.0]})
    found, expected = (
        step(m.server.aggregator, shared(), given).models.shared["w"] for m in (load_method(name, **arguments), parent)
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_robust_rules_need_three_sites_and_more_for_more_faults():
    needed = {name: load_method(name).requires.min_sites for name in method_names()}
    assert {name for name, sites in needed.items() if sites == 3} == {"fedmedian", "trimmed_mean", "krum", "multi_krum"}
    assert set(needed.values()) == {1, 3}
    assert [load_method("krum", faults=f).requires.min_sites for f in (0, 1, 2)] == [3, 5, 7]
    assert load_method("multi_krum", faults=1, keep=6).requires.min_sites == 7
    assert load_method("trimmed_mean", trim=2).requires.min_sites == 5
