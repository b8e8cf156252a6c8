"""Clips by a ViT: single frames, cached features, and a frozen encoder."""

import pytest
import torch

from shared_components.networks.parts import fixed_tensors
from shared_components.networks.vit_clips import CHUNK, VitClips
from shared_components.networks.vit_frames import VitFrames

SIZES = {"lstm": (2, 4), "tcn": (2, 2, 3, 4)}


@pytest.mark.parametrize("sequence", SIZES)
def test_kept_features_are_those_of_single_frames_and_give_the_same(sequence):
    torch.manual_seed(0)
    network, clip = VitClips(sequence=sequence, size=32).eval(), torch.rand(2, 3, 3, 32, 32)
    (features,) = network.encode(clip)
    frames = VitFrames(pool="mean", size=32).eval()
    frames.load_state_dict(network.state_dict() | frames.head.state_dict(prefix="head."), strict=False)
    for b in range(2):
        for t in range(3):
            torch.testing.assert_close(features[b, t], frames.features(clip[b, t][None])[0])
    assert network(clip).shape == SIZES[sequence]
    torch.testing.assert_close(network(None, features=(features,)), network(clip))


def test_a_picture_is_a_clip_of_one_frame_whose_last_stage_counts():
    image = torch.rand(2, 3, 32, 32)
    lstm, tcn = (VitClips(sequence=sequence, size=32).eval() for sequence in SIZES)
    torch.testing.assert_close(lstm(image), lstm(image[:, None]))
    torch.testing.assert_close(tcn(image), tcn(image[:, None])[-1, :, 0])


def test_a_long_clip_is_encoded_a_few_frames_at_a_time():
    network, clip = VitClips(size=32).eval(), torch.rand(1, 2 * CHUNK + 1, 3, 32, 32)
    (features,) = network.encode(clip)
    torch.testing.assert_close(features[0, -2:], network.encode(clip[:, -2:])[0][0])


def test_a_fixed_encoder_is_fixed_whole_and_its_features_can_be_kept():
    network = VitClips(sequence="tcn", trained_encoders=False)
    fixed = fixed_tensors(network)
    assert set(network.state_dict()) - fixed == {n for n in network.state_dict() if n.startswith("sequence.")}
    assert set(network.parts["image_encoder"]) == {name.partition(".")[0] for name in fixed}
    assert not any(value.requires_grad for value in network.encode(torch.rand(1, 2, 3, 64, 64)))
    for clip in (None, torch.zeros(3, 64, 64)):
        with pytest.raises(ValueError, match=r"takes clips \(B, T, 3, H, W\) or images"):
            network(clip)
