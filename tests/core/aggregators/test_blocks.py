"""Blocks cover every element once."""

import pytest
import torch

from shared_components.core.aggregators.blocks import BLOCK, in_blocks, squared_distance, stacked_blocks

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
