"""Blocks cover every element once, and change no bit of a sum."""

import random

import pytest
import torch

from shared_components.aggregators.blocks import BLOCK, in_blocks, squared_distance, stacked_blocks
from shared_components.aggregators.mean import weighted_sum

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


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("elementwise", [False, True])
def test_weighted_sum_is_bit_equal_to_whole_tensors(shape, elementwise):
    torch.manual_seed(3)
    tensors = [torch.randn(shape) for _ in range(5)]
    weights = [torch.rand(shape, dtype=torch.float64) if elementwise else random.random() for _ in tensors]
    total = tensors[0].double() * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total = total + tensor.double() * weight
    assert torch.equal(weighted_sum(tensors, weights), total.float())


def test_weighted_sum_of_a_transposed_view_keeps_its_places():
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(weighted_sum([tensor, tensor], [0.5, 0.5]), tensor)


def test_squared_distance_is_a_sum_over_elements():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    assert squared_distance(a, b) == 0 + 4 + 9 + 1
