"""SAM2's memory of an object: kept frames and tokens."""

from types import SimpleNamespace

import torch
from torch import nn
from transformers.models.sam2_video.modeling_sam2_video import get_1d_sine_pe

from shared_components.networks.sam2_memory import MAPS, Remembered, Track, bank_of


def frame(time: int) -> Remembered:
    return Remembered(time, torch.full((64, 1, 2), float(time)), torch.full((128,), 100.0 + time))


def history(prompted: list[int], last: int) -> Track:
    track = Track()
    for time in range(last + 1):
        track = track.with_frame(frame(time), prompted=time in prompted)
    return track


def test_the_last_four_prompted_frames_and_fifteen_frames_back_are_kept():
    track = history([0, 1, 2, 3, 5], 30)
    assert [one.time for one in track.prompted] == [1, 2, 3, 5]
    assert track.ages(31)[1] == tuple(range(15, 0, -1))


def test_the_bank_holds_prompted_maps_six_tracked_ones_and_all_pointers_in_two_tokens_each():
    torch.manual_seed(0)
    temporal, projection = torch.rand(MAPS, 1, 1, 64), nn.Linear(128, 64)
    sam2 = SimpleNamespace(
        memory_temporal_positional_encoding=temporal, temporal_positional_encoding_projection_layer=projection
    )
    grid = torch.rand(2, 64)
    bank = bank_of([history([0], 8)] * 3, 9, grid, sam2)
    frames, pointers = [0, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert bank.memory.shape == (3, 7 * 2 + 9 * 2, 64) and bank.pointers == 18
    expected = [*frames, *(100 + time for time in pointers)]
    assert bank.memory[1, :, 0].tolist() == [value for value in expected for _ in range(2)]
    for n, place in enumerate([6, 5, 4, 3, 2, 1, 0]):  # the last for a prompted frame; one frame ago the first
        torch.testing.assert_close(bank.places[2 * n : 2 * n + 2], grid + temporal[place, 0])
    for n, time in enumerate(pointers):
        expected = projection(get_1d_sine_pe(torch.tensor([(9 - time) / 15]), 128))[0]
        torch.testing.assert_close(bank.places[14 + 2 * n], expected)
        torch.testing.assert_close(bank.places[15 + 2 * n], expected)
