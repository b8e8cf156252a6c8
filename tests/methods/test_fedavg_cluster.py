"""FedAvg+Cluster: who belongs together, the mean inside a group, and two tasks in one federation."""

from functools import partial

import pytest
import torch

from shared_components.core.method import Models, Profile, Update, load_method
from shared_components.core.partition import Role
from tests.federation.conftest import TINY, Federation, make_job, narrow  # noqa: F401
from tests.methods.toys import SAMPLES, SITES, card, mixed, names, partition, step, tensor, updates

build = partial(load_method, "fedavg_cluster")
MAPS = {"parts": ("background", "shaft", "wrist"), "whole": ("background", "tool")}


def profiles(kinds):
    return [Profile(site, 10, card(*MAPS[kind])) for site, kind in zip(names(len(kinds)), kinds, strict=True)]


def run(kinds, sent, models=None):
    aggregator, part = build().server.aggregator, partition(Role.MIXED)
    models = models or mixed([[0.0, 0.0]] * len(kinds))
    state = aggregator.init(part, models, profiles(kinds))
    return aggregator.apply(state, part, models, sent)


def test_the_mean_of_each_group_equals_plain_loops():
    kinds = ["parts", "whole", "parts", "whole", "parts"]
    result = run(kinds, updates())
    assert result.report["groups"] == dict(zip(names(5), (0, 1, 0, 1, 0), strict=True))
    for i, site in enumerate(names(5)):
        own = [k for k in range(5) if kinds[k] == kinds[i]]
        total = sum(SAMPLES[k] for k in own)
        expected = [sum(SAMPLES[k] * SITES[k][j] for k in own) / total for j in (0, 1)]
        assert result.models.mixed[site]["w"].tolist() == pytest.approx(expected, abs=1e-12)


def test_one_task_is_fedavg():
    clustered = run(["parts"] * 5, updates()).models.mixed
    fedavg = step(load_method("fedavg").server.aggregator, Models({"w": tensor([1.0, 2.0])}, {}), updates())
    assert all(torch.equal(clustered[site]["w"], fedavg.models.shared["w"]) for site in names(5))


def test_a_task_of_its_own_is_trained_alone_and_shapes_may_differ():
    models = Models({}, {"site-1": {"w": tensor([0.0] * 3)}, "site-2": {"w": tensor([0.0] * 2)}})
    sent = [Update("site-1", 0, {"w": tensor([1.0, 2, 3])}), Update("site-2", 0, {"w": tensor([4.0, 5])})]
    result = run(["parts", "whole"], sent, models)
    assert result.models.mixed["site-1"]["w"].tolist() == [1, 2, 3]
    assert result.models.mixed["site-2"]["w"].tolist() == [4, 5]


def test_an_absent_site_gets_its_groups_mean_and_an_absent_group_keeps_its_model():
    models = mixed([[9.0, 9.0]] * 3)
    result = run(["parts", "parts", "whole"], updates(SITES[:1]), models)
    found = [result.models.mixed[site]["w"].tolist() for site in names(3)]
    assert found == [SITES[0], SITES[0], [9.0, 9.0]]


def test_a_group_is_a_class_map_with_its_order():
    maps = {"site-1": card("a", "b"), "site-10": card("a", "b"), "site-2": card("b", "a")}
    profiles = [Profile(site, 1, classes) for site, classes in maps.items()]
    state = build().server.aggregator.init(partition(Role.MIXED), mixed([[0.0]] * 3), profiles)
    assert {n: int(v) for n, v in state.items()} == {"group/site-1": 0, "group/site-2": 1, "group/site-10": 0}


def test_two_tasks_and_three_sites_in_a_federation(sites_with, tmp_path):
    job = make_job("fedavg_cluster", rounds=1, training={**TINY, "iterations": 1})
    sites = sites_with("parts", "shaft_manipulator", "parts")
    federation = Federation(job, tmp_path / "runs", sites, ("a", "b", "c"))
    federation.enrol()
    start = federation.server.state.models
    assert all(torch.equal(v, start.mixed["c"][n]) for n, v in start.mixed["a"].items())
    replies = federation.replies()
    federation.send(replies)
    after = federation.server.state.models.mixed
    for name, value in after["a"].items():
        assert torch.equal(value, after["c"][name])
        sent = [replies[site].pieces[name].double() for site in ("a", "c")]
        torch.testing.assert_close(value.double(), (sent[0] + sent[1]) / 2)
    assert all(torch.equal(v, replies["b"].pieces[n]) for n, v in after["b"].items())
