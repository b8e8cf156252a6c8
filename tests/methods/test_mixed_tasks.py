"""Sites that segment and a site that estimates depth in one federation, of the methods that keep heads at the sites."""

import pytest
import torch

from shared_components.core.card import Card
from shared_components.core.method import Profile, load_method
from shared_components.core.partition import Role
from shared_components.federation.messages import FederationError
from tests.federation.conftest import SITES, Federation, make_job, narrow, render, rewritten, same, toy_bundle  # noqa: F401
from tests.methods.toys import mixed, names, partition, updates

HEADS = {"arguments": {"personal": ["head"]}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three parts, two parts, and depth."""
    folder = tmp_path_factory.mktemp("tasks")
    first, depth = render(folder / "scenes", sites=2, tasks=("segmentation", "depth"))
    return [first, rewritten(first, folder / "two", classes="shaft_manipulator"), depth]


@pytest.fixture
def mixture(toy_bundle, tmp_path, sites):  # noqa: F811
    def make(method, **changes):
        job = make_job(method, bundle="toy", training={"iterations": 1}, rounds=1, **changes)
        return Federation(job, tmp_path / "runs", sites, SITES)

    return make


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedrep", "local"])
def test_sites_of_other_tasks_share_all_but_their_heads(mixture, method):
    federation = mixture(method, **({} if method == "local" else HEADS)).run().finish()
    cards = [federation.server.state.profiles[site].card for site in SITES]
    assert [card.kind for card in cards] == ["segmentation", "segmentation", "depth"] and cards[0] != cards[1]
    shared = federation.server.state.models.shared
    assert bool(shared) == (method != "local") and not any(name.startswith("head") for name in shared)


@pytest.mark.parametrize("method, arguments", [("fedavg", {}), ("fedprox", {}), ("fedper", {})])
def test_without_a_word_about_heads_tasks_must_agree(mixture, method, arguments):
    with pytest.raises(FederationError, match="differ in their task"):
        mixture(method, arguments=arguments).enrol()


def test_heads_that_are_shared_do_not_fit_each_other(mixture):
    with pytest.raises(FederationError, match=r"differ in their shared pieces \(head.bias"):
        mixture("fedrep", arguments={"personal": ["decoder"]}).enrol()


def test_groups_of_one_kind_average_what_is_not_their_heads(mixture):
    federation = mixture("fedavg_cluster", arguments={"group": "kind", "personal": ["head"]}).run()
    (record,) = [r for r in federation.server.records if r["kind"] == "aggregation"]
    assert record["groups"] == dict(zip(SITES, (0, 0, 1), strict=True))
    models = federation.server.state.models.mixed
    assert same(models["site-1"], models["site-2"]) and not same(models["site-1"], models["site-3"])


def test_a_group_is_of_one_task_or_of_one_kind():
    cards = [Card("segmentation", ("background", "a")), Card("depth"), Card("segmentation", ("background", "b"))]
    profiles = [Profile(site, 1, card) for site, card in zip(names(3), cards, strict=True)]
    for group, due in (("task", [0, 1, 2]), ("kind", [0, 1, 0])):
        aggregator = load_method("fedavg_cluster", group=group).server.aggregator
        models, part = mixed([[0.0, 0.0]] * 3), partition(Role.MIXED)
        state = aggregator.init(part, models, profiles)
        result = aggregator.apply(state, part, models, updates([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [1, 1, 1]))
        assert list(result.report["groups"].values()) == due
    assert torch.equal(result.models.mixed["site-1"]["w"], torch.tensor([2.0, 2.0], dtype=torch.float64))
