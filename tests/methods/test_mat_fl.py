"""MaT-FL: cosines from the soup, clusters against SciPy's, soft weights, and what happens without a direction."""

import math
from functools import partial

import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from shared_components.core.aggregators.clustering import average_linkage, cosines, from_the_soup
from shared_components.core.method import load_method
from shared_components.core.partition import Role
from tests.methods.toys import mixed, names, step, tensor, updates

build = partial(load_method, "mat_fl")
FOUR = [[4.0, 1.0], [-3.0, 0.5], [5.0, -1.0], [-2.0, -1.0]]  # 1 and 3 go right, 2 and 4 left


def run(values, **arguments):
    start = mixed([[0.0, 0.0]] * len(values))
    return step(build(**arguments).server.aggregator, start, updates(values), role=Role.MIXED)


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


def test_sites_that_move_alike_get_their_plain_mean():
    result = run(FOUR)
    assert result.report["groups"] == dict(zip(names(4), (0, 1, 0, 1), strict=True))
    right, left = [4.5, 0.0], [-2.5, -0.25]
    found = [result.models.mixed[site]["w"].tolist() for site in names(4)]
    assert found == [pytest.approx(v) for v in (right, left, right, left)]


def test_with_three_sites_and_two_clusters_one_is_alone():
    result = run(FOUR[:3])
    assert sorted(result.report["groups"].values()) == [0, 0, 1]
    assert result.models.mixed["site-2"]["w"].tolist() == FOUR[1]


def test_two_sites_train_alone_and_one_cluster_is_the_mean():
    assert [run(FOUR[:2]).models.mixed[s]["w"].tolist() for s in names(2)] == FOUR[:2]
    assert run(FOUR, clusters=1).models.mixed["site-4"]["w"].tolist() == pytest.approx([1.0, -0.125])


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


def test_rounding_is_no_direction():
    """float32 sites that are equal but for the last bit lie on the soup."""
    first = torch.full((1000,), 0.1)
    pieces = [{"w": first}, {"w": torch.nextafter(first, tensor(1.0).float())}, {"w": first.clone()}]
    assert cosines(*from_the_soup(pieces, ["w"])) is None


def test_an_absent_site_keeps_its_encoder():
    aggregator, start = build().server.aggregator, mixed([[7.0, 7.0]] * 3)
    result = step(aggregator, start, updates(FOUR[:2]), state={}, role=Role.MIXED)
    assert result.models.mixed["site-3"]["w"].tolist() == [7.0, 7.0]
