"""The one-model methods that differ in the server's step: arguments, limits and refusals."""

import json
from pathlib import Path

import pytest
import torch

from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from tests.methods.toys import SITES, shared, step, updates

JOBS = Path(__file__).parents[2] / "nvflare_jobs"
METHODS = ["fedavgm", "fedadam", "fedmedian", "trimmed_mean", "krum", "multi_krum", "norm_bound", "qfedavg"]
MIN_SITES = {"fedmedian": 3, "trimmed_mean": 3, "krum": 3, "multi_krum": 3}


@pytest.mark.parametrize("name", METHODS)
def test_each_says_what_it_is_and_shares_everything(name):
    method = load_method(name)
    assert (
        method.name == name
        and method.about.label
        and method.about.paper
        and method.requires.min_sites == MIN_SITES.get(name, 1)
    )
    texts = method.about
    assert texts.partition and texts.objective and texts.aggregator and texts.secure_sums[:3] in ("yes", "no:")
    roles = partition_network(torch.nn.BatchNorm2d(2), method.partition).roles
    assert roles == {Role.GLOBAL}


@pytest.mark.parametrize("name", METHODS)
def test_each_has_a_job_that_builds_and_a_card(name):
    config = json.loads((JOBS / name / "app/config/config_fed_server.json").read_text())
    settings = config["workflows"][0]["args"]
    assert settings["name"] == settings["method"] == name
    load_method(name, **settings["arguments"])
    assert json.loads((JOBS / name / "meta.json").read_text())["name"] == name
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


def test_more_faults_take_more_sites():
    assert [load_method("krum", faults=f).requires.min_sites for f in (0, 1, 2)] == [3, 5, 7]
    assert load_method("multi_krum", faults=1, keep=6).requires.min_sites == 7
    assert load_method("trimmed_mean", trim=2).requires.min_sites == 5


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("fedavgm", {"momentum": 1}, "momentum is 1"),
        ("fedavgm", {"learning_rate": 0}, "learning_rate is 0"),
        ("fedadam", {"mode": "paper"}, "'paper'"),
        ("fedadam", {"beta_1": -0.1}, "beta_1 is -0.1"),
        ("fedadam", {"beta_2": 1.0}, "beta_2 is 1.0"),
        ("fedadam", {"tau": 0}, "tau is 0"),
        ("trimmed_mean", {"trim": -1}, "trim is -1"),
        ("trimmed_mean", {"trim": 0.2}, "trim is 0.2"),
        ("krum", {"faults": -1}, "faults is -1"),
        ("krum", {"neighbours": "n-f"}, "'n-f'"),
        ("multi_krum", {"keep": 0}, "keep is 0"),
        ("multi_krum", {"faults": 1.5}, "faults is 1.5"),
        ("multi_krum", {"neighbours": "n"}, "'n'"),
        ("qfedavg", {"q": -1}, "q is -1"),
        ("qfedavg", {"mode": "flower"}, "'flower'"),
        ("qfedavg", {"learning_rate": -0.1}, "learning_rate is -0.1"),
        ("qfedavg", {"loss_images": 0}, "loss_images is 0"),
    ],
)
def test_wrong_arguments_are_named(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        load_method(name, **arguments)
