"""MaT-FL's cosines from the soup, clusters against SciPy's and soft weights; FedAvg+Cluster's groups of one task."""

import math

import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from shared_components.core.aggregators.clustering import average_linkage, cosines, from_the_soup
from shared_components.core.method import Models, Profile, Update, load_method
from shared_components.core.partition import Role
from tests.federation.conftest import TINY, Federation, make_job, narrow, same  # noqa: F401
from tests.methods.toys import SAMPLES, SITES, card, mixed, names, partition, step, tensor, updates

FOUR = [[4.0, 1.0], [-3.0, 0.5], [5.0, -1.0], [-2.0, -1.0]]  # 1 and 3 go right, 2 and 4 left


def run(values, **arguments):
    start = mixed([[0.0, 0.0]] * len(values))
    return step(load_method("mat_fl", **arguments).server.aggregator, start, updates(values), role=Role.MIXED)


def cosines_by_hand(values):
    soup = [sum(column) / len(values) for column in zip(*values, strict=True)]
    deltas = [[a - b for a, b in zip(value, soup, strict=True)] for value in values]

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    return [[dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)) for b in deltas] for a in deltas]


def test_cosines_equal_plain_loops_over_several_tensors():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, 7, generator=generator).double()
    pieces = [{"a": v[:5].reshape(1, 5), "b": v[5:], "steps": torch.tensor(i)} for i, v in enumerate(values)]
    found = cosines(*from_the_soup(pieces, ["a", "b", "steps"]))
    for row, expected in zip(found.tolist(), cosines_by_hand(values.tolist()), strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_clusters_are_scipys(seed):
    generator = torch.Generator().manual_seed(seed)
    count, clusters = 3 + seed % 6, 1 + seed % 4
    points = torch.randn(count, 3, generator=generator).double()
    unit = points / points.norm(dim=1, keepdim=True)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0)
    tree = hierarchy.linkage(squareform(distances.numpy(), checks=False), method="average")
    theirs = hierarchy.fcluster(tree, t=clusters, criterion="maxclust").tolist()
    ours = average_linkage(distances, clusters)
    assert len(set(ours)) == min(clusters, count)
    for i in range(count):
        assert [k == ours[i] for k in ours] == [k == theirs[i] for k in theirs]


@pytest.mark.parametrize("values, clusters, groups, expected", [
    (FOUR, 2, [0, 1, 0, 1], [[4.5, 0.0], [-2.5, -0.25], [4.5, 0.0], [-2.5, -0.25]]),
    (FOUR[:3], 2, [0, 1, 0], [[4.5, 0.0], FOUR[1], [4.5, 0.0]]),  # one is alone
    (FOUR[:2], 2, [0, 1], FOUR[:2]), (FOUR, 1, [0] * 4, [[1.0, -0.125]] * 4),
])  # fmt: skip
def test_sites_that_move_alike_get_their_plain_mean(values, clusters, groups, expected):
    result = run(values, clusters=clusters)
    sites = names(len(values))
    assert result.report["groups"] == dict(zip(sites, groups, strict=True))
    assert [result.models.mixed[site]["w"].tolist() for site in sites] == [pytest.approx(v) for v in expected]


def test_soft_weights_equal_plain_loops():
    result = run(FOUR, soft=True, threshold=0.2)
    for i, row in enumerate(cosines_by_hand(FOUR)):
        raised = [max(cosine + 0.2, 0) for cosine in row]
        weights = [value / sum(raised) for value in raised]
        assert list(result.report["mixing"][names(4)[i]]["shared"].values()) == pytest.approx(weights, abs=1e-12)
        expected = [sum(w * v[j] for w, v in zip(weights, FOUR, strict=True)) for j in (0, 1)]
        assert result.models.mixed[names(4)[i]]["w"].tolist() == pytest.approx(expected, abs=1e-12)
    assert "groups" not in result.report


@pytest.mark.parametrize("values", [[[2.0, 3.0]] * 3, [[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]], [[1.0, 2.0]]])
@pytest.mark.parametrize("soft", [False, True])
def test_without_a_direction_there_is_the_plain_mean(values, soft):
    """Equal sites, a site on the soup, one site alone."""
    result = run(values, soft=soft)
    mean = [sum(column) / len(values) for column in zip(*values, strict=True)]
    assert all(result.models.mixed[s]["w"].tolist() == pytest.approx(mean) for s in result.models.mixed)


def test_equal_sites_have_no_direction_and_an_absent_site_keeps_its_encoder():
    first = torch.full((1000,), 0.1)
    pieces = [{"w": first}, {"w": torch.nextafter(first, tensor(1.0).float())}, {"w": first.clone()}]
    assert cosines(*from_the_soup(pieces, ["w"])) is None
    aggregator, start = load_method("mat_fl").server.aggregator, mixed([[7.0, 7.0]] * 3)
    result = step(aggregator, start, updates(FOUR[:2]), state={}, role=Role.MIXED)
    assert result.models.mixed["site-3"]["w"].tolist() == [7.0, 7.0]


MAPS = {"parts": ("background", "shaft", "wrist"), "whole": ("background", "tool")}


def profiles(kinds):
    return [Profile(site, 10, card(*MAPS[kind])) for site, kind in zip(names(len(kinds)), kinds, strict=True)]


def grouped(kinds, sent, models=None):
    aggregator, part = load_method("fedavg_cluster").server.aggregator, partition(Role.MIXED)
    models = models or mixed([[0.0, 0.0]] * len(kinds))
    return aggregator.apply(aggregator.init(part, models, profiles(kinds)), part, models, sent)


def test_the_mean_of_each_group_equals_plain_loops():
    kinds = ["parts", "whole", "parts", "whole", "parts"]
    result = grouped(kinds, updates())
    assert result.report["groups"] == dict(zip(names(5), (0, 1, 0, 1, 0), strict=True))
    for i, site in enumerate(names(5)):
        own = [k for k in range(5) if kinds[k] == kinds[i]]
        total = sum(SAMPLES[k] for k in own)
        expected = [sum(SAMPLES[k] * SITES[k][j] for k in own) / total for j in (0, 1)]
        assert result.models.mixed[site]["w"].tolist() == pytest.approx(expected, abs=1e-12)


def test_sites_of_one_group_have_one_shape_and_other_groups_may_differ():
    models = Models({}, {"site-1": {"w": tensor([0.0] * 3)}, "site-2": {"w": tensor([0.0] * 2)}})
    sent = [Update("site-1", 0, {"w": tensor([1.0, 2, 3])}), Update("site-2", 0, {"w": tensor([4.0, 5])})]
    result = grouped(["parts", "whole"], sent, models)
    assert [result.models.mixed[site]["w"].tolist() for site in names(2)] == [[1, 2, 3], [4, 5]]
    with pytest.raises(ValueError, match=r"site-1 and site-2 share a group, but their w differ in shape"):
        grouped(["parts", "parts"], [], models)


def test_groups_are_class_maps_whose_mean_an_absent_site_gets():
    models = mixed([[9.0, 9.0]] * 3)
    result = grouped(["parts", "parts", "whole"], updates(SITES[:1]), models)
    found = [result.models.mixed[site]["w"].tolist() for site in names(3)]
    assert found == [SITES[0], SITES[0], [9.0, 9.0]]
    maps = {"site-1": card("a", "b"), "site-10": card("a", "b"), "site-2": card("b", "a")}
    profiles = [Profile(site, 1, classes) for site, classes in maps.items()]
    models = Models({}, {site: {"w": tensor([0.0])} for site in maps})
    state = load_method("fedavg_cluster").server.aggregator.init(partition(Role.MIXED), models, profiles)
    assert {n: int(v) for n, v in state.items()} == {"group/site-1": 0, "group/site-2": 1, "group/site-10": 0}
