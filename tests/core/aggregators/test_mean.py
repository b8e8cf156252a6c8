"""Weighted mean against published golden values and hand-worked ones; blocks cover every element once."""

from itertools import permutations

import pytest
import torch

from shared_components.core.aggregators.mean import (
    BLOCK,
    WeightedMean,
    in_blocks,
    in_site_order,
    mean_pieces,
    squared_distance,
    stacked_blocks,
    weighted_sum,
)
from shared_components.core.method import Models, Update, site_order
from shared_components.core.partition import Partition

SITES = [[2.0, 2.0], [1.0, 4.0], [4.0, 2.0], [1.5, 2.5], [10.0, -10.0]]
SAMPLES = [1, 1, 2, 1, 1]


def updates(count, values=SITES):
    return [
        Update(f"site-{i + 1}", 0, {"w": torch.tensor(values[i], dtype=torch.float64)}, samples=SAMPLES[i])
        for i in range(count)
    ]


def test_golden_vectors_of_three_and_five_sites():
    assert mean_pieces(updates(3), ["w"])["w"].tolist() == [2.75, 2.5]
    torch.testing.assert_close(mean_pieces(updates(5), ["w"])["w"], torch.tensor([3.75, 2.5 / 6], dtype=torch.float64))


def test_arrival_order_changes_no_bit():
    torch.manual_seed(1)
    given = [Update(f"site-{i}", 0, {"w": torch.randn(1000)}, samples=i + 1) for i in (1, 2, 10)]
    results = [mean_pieces(list(order), ["w"])["w"] for order in permutations(given)]
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_sum_leaves_its_inputs_alone(kind):
    tensors = [torch.tensor([2.0, 3.0], dtype=kind), torch.tensor([4.0, 5.0], dtype=kind)]
    assert weighted_sum(tensors, [0.5, 0.5]).tolist() == [3.0, 4.0]
    assert [t.tolist() for t in tensors] == [[2.0, 3.0], [4.0, 5.0]]


def test_one_site_is_returned_unchanged():
    given = Update("a", 0, {"w": torch.randn(100)}, samples=7)
    result = WeightedMean().apply({}, Partition(()), Models({"w": torch.zeros(100)}, {}), [given])
    assert torch.equal(result.models.shared["w"], given.pieces["w"])


def test_integer_counters_take_the_maximum():
    assert weighted_sum([torch.tensor([3, 5]), torch.tensor([4, 1])], [0.5, 0.5]).tolist() == [4, 5]


def test_two_updates_of_one_site_are_refused():
    with pytest.raises(ValueError, match="several updates"):
        in_site_order([Update("a", 0, {}), Update("a", 0, {})])


def test_sites_sort_by_number_and_mixed_names_compare():
    assert site_order(["site-10", "site-2", "b", "7", "site-1"]) == ["7", "b", "site-1", "site-2", "site-10"]


SIZES = [(), (0,), (5,), (BLOCK,), (BLOCK + 1,), (3, BLOCK // 2)]


@pytest.mark.parametrize("shape", SIZES)
def test_blocks_are_views_that_cover_a_tensor_once(shape):
    tensor = torch.zeros(shape)
    for (part,) in in_blocks(tensor):
        assert len(part) <= BLOCK
        part += 1
    assert torch.equal(tensor, torch.ones(shape))


@pytest.mark.parametrize("shape", SIZES)
def test_rows_are_the_tensors_in_float64(shape):
    tensors = [torch.randn(shape) for _ in range(3)]
    rows = torch.cat([rows.clone() for rows in stacked_blocks(tensors)], 1)
    assert rows.dtype == torch.float64
    assert torch.equal(rows, torch.stack([t.reshape(-1) for t in tensors]).double())


def test_tensors_of_unequal_length_are_refused():
    with pytest.raises(ValueError):
        list(in_blocks(torch.zeros(BLOCK), torch.zeros(BLOCK + 1)))


def test_squared_distance_is_a_sum_over_elements():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    assert squared_distance(a, b) == 0 + 4 + 9 + 1
