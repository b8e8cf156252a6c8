"""Weighted mean against published golden values and hand-worked ones."""

import pytest
import torch

from shared_components.core.aggregators import mean
from shared_components.core.aggregators.mean import BLOCK, in_blocks
from shared_components.core.method import Update, site_order
from tests.methods.toys import SITES, tensor, updates


def test_golden_means_leave_inputs_unchanged_and_counters_take_the_maximum():
    assert mean.mean_pieces(updates(SITES[:3]), ["w"])["w"].tolist() == [2.75, 2.5]
    torch.testing.assert_close(mean.mean_pieces(updates(), ["w"])["w"], tensor([3.75, 2.5 / 6]))
    assert mean.weighted_sum([torch.tensor([3, 5]), torch.tensor([4, 1])], [0.5, 0.5]).tolist() == [4, 5]
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    assert mean.squared_distance(a, b) == 0 + 4 + 9 + 1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_sum_leaves_its_inputs_alone(kind):
    tensors = [torch.tensor([2.0, 3.0], dtype=kind), torch.tensor([4.0, 5.0], dtype=kind)]
    assert mean.weighted_sum(tensors, [0.5, 0.5]).tolist() == [3.0, 4.0]
    assert [t.tolist() for t in tensors] == [[2.0, 3.0], [4.0, 5.0]]


def test_sites_sort_by_number_and_two_updates_of_one_site_are_refused():
    assert site_order(["site-10", "site-2", "b", "7", "site-1"]) == ["7", "b", "site-1", "site-2", "site-10"]
    with pytest.raises(ValueError, match="several updates"):
        mean.in_site_order([Update("a", 0, {}), Update("a", 0, {})])
    with pytest.raises(ValueError):
        list(in_blocks(torch.zeros(BLOCK), torch.zeros(BLOCK + 1)))
