"""One frame of all objects: which are computed at once, and in which order their numbers come back."""

import torch

from shared_components.networks.sam2_frames import EMPTY, PROMPT, _groups, _placed
from shared_components.networks.sam2_memory import Remembered, Track

SEEN = Track().with_frame(Remembered(0, torch.zeros(64, 1, 1), torch.zeros(64)), prompted=True)
LATE = Track().with_frame(Remembered(1, torch.zeros(64, 1, 1), torch.zeros(64)), prompted=True)


def test_objects_of_one_history_are_computed_at_once_and_those_never_seen_not_at_all():
    tracks = [SEEN, Track(), LATE, SEEN, Track(), SEEN]
    prompted = [False, False, False, False, True, True]
    assert _groups(prompted, tracks, 2) == {((2,), ()): [0, 3], ((1,), ()): [2], PROMPT: [4, 5]}


def test_numbers_come_back_in_the_order_of_objects_and_empty_for_others():
    pieces = [torch.tensor([30.0, 10.0]).reshape(2, 1, 1, 1), torch.tensor([0.0]).reshape(1, 1, 1, 1)]
    assert _placed(pieces, [3, 1, 0], 5).flatten().tolist() == [0, 10, EMPTY, 30, EMPTY]
    assert _placed(pieces[:1], [0, 1], 2).flatten().tolist() == [30, 10]
