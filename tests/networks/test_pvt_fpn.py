"""The decoder against the paper written out; the whole network: counts, shapes, both paths, errors, export."""

import pytest
import torch
from torch.nn import functional as F

from shared_components.networks.pvt_fpn import FpnDecoder, PvtFpn


def features(*channels: int) -> list[torch.Tensor]:
    return [torch.rand(2, width, 16 // 2**level, 24 // 2**level) for level, width in enumerate(channels)]


def reference(decoder: FpnDecoder, maps: list[torch.Tensor]) -> torch.Tensor:
    """Kirillov et al. 2019, Fig. 3, with functional calls and a loop from the coarsest map to the finest."""
    state = decoder.state_dict()
    merged, above = torch.zeros(()), None
    for level, x in enumerate(reversed(maps)):
        x = F.conv2d(x, state[f"lateral.{level}.weight"], state[f"lateral.{level}.bias"])
        above = x if above is None else x + above.repeat_interleave(2, -1).repeat_interleave(2, -2)
        y = above
        doublings = 3 - level
        for step in range(max(1, doublings)):
            prefix = f"segmentation.{level}.{step * 4}"
            norm = f"segmentation.{level}.{step * 4 + 1}"
            y = F.conv2d(y, state[f"{prefix}.weight"], padding=1)
            y = F.relu(F.group_norm(y, 32, state[f"{norm}.weight"], state[f"{norm}.bias"]))
            if doublings:
                size = (y.shape[-2] * 2, y.shape[-1] * 2)
                y = F.interpolate(y, size=size, mode="bilinear", align_corners=True)
        merged = merged + y
    return merged


def test_the_decoder_equals_the_paper_written_out_and_has_the_published_number_of_parameters():
    torch.manual_seed(0)
    decoder = FpnDecoder((16, 32, 80, 128)).eval()
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 1_690_368
    maps = features(16, 32, 80, 128)
    with torch.no_grad():
        assert torch.allclose(decoder(maps), reference(decoder, maps), atol=1e-5)


def test_dropout_zeroes_whole_channels_in_training_only():
    torch.manual_seed(0)
    decoder = FpnDecoder((2, 2, 2, 2), dropout=0.5)
    maps = features(2, 2, 2, 2)
    assert 0.3 < float((decoder(maps).abs().sum((2, 3)) == 0).float().mean()) < 0.7
    assert not bool((decoder.eval()(maps).abs().sum((2, 3)) == 0).any())


@pytest.fixture(scope="module")
def network() -> PvtFpn:
    torch.manual_seed(0)
    return PvtFpn(out_channels=4, appearance_head=True).eval()


@pytest.mark.parametrize(
    ("appearance_head", "published"),
    [(False, 6_791_270), (True, 6_791_657)],  # 6791.27 K and 6791.657 K, Table II of the paper
)
def test_parameter_counts_match_the_paper_at_three_classes(appearance_head, published):
    network = PvtFpn(out_channels=3, appearance_head=appearance_head)
    assert sum(parameter.numel() for parameter in network.parameters()) == published
    assert not list(network.buffers())


def test_parts_are_prediction_global_path_and_with_an_appearance_head_the_restored_image(network):
    parts = network.forward_parts(torch.rand(2, 3, 64, 96))
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    assert shapes == {"pred": (2, 4, 64, 96), "global": (2, 4, 64, 96), "restored": (2, 3, 64, 96)}
    plain = PvtFpn()
    assert set(plain.forward_parts(torch.rand(1, 3, 32, 32))) == {"pred", "global"}
    assert "head_appearance" not in plain.parts and "head_appearance" in network.parts


def test_prediction_is_the_sum_of_both_paths_and_leaves_the_appearance_head_out(network):
    image, calls = torch.rand(2, 3, 64, 96), []
    hook = network.head_appearance.register_forward_hook(lambda *_: calls.append(1))
    prediction = network(image)
    hook.remove()
    assert torch.equal(prediction, network.forward_parts(image)["pred"]) and not calls
    features = network.encoder(image)
    personal = network.head_personal(network.decoder_personal([x[:, x.shape[1] // 2 :] for x in features]))
    personal = F.interpolate(personal, scale_factor=4, mode="bilinear")
    assert torch.allclose(prediction, network.forward_global(image) + personal, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_global_path_alone_equals_the_global_part_in_training_at_the_same_seed(training):
    network, image = PvtFpn().train(training), torch.rand(2, 3, 32, 64)
    torch.manual_seed(5)
    part = network.forward_parts(image)["global"]
    torch.manual_seed(5)
    assert torch.equal(network.forward_global(image), part)


def test_global_path_does_not_depend_on_personal_weights(network):
    loss = network.forward_global(torch.rand(1, 3, 32, 32)).square().mean()
    personal = [p for name, p in network.named_parameters() if name.startswith(("decoder_personal", "head_personal"))]
    assert all(g is None for g in torch.autograd.grad(loss, personal, allow_unused=True))


@pytest.mark.parametrize(("shape", "sentence"), [
    ((1, 3, 100, 160), "got 3 channels of 100x160; use 96x160"), ((1, 3, 64, 17), "got 3 channels of 64x17; use 64x32"),
    ((1, 3, 1, 1), "got 3 channels of 1x1; use 32x32"),
    ((1, 3, 1080, 1920), "got 3 channels of 1080x1920; use 1088x1920"), ((1, 4, 64, 64), "got 4 channels"),
])  # fmt: skip
def test_other_channels_and_a_size_that_is_no_multiple_of_32_are_refused(network, shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        network(torch.rand(shape))


def test_training_step_reaches_every_weight():
    torch.manual_seed(0)
    network = PvtFpn(appearance_head=True, drop_path=0.0, dropout=0.0)
    parts = network.forward_parts(torch.rand(2, 3, 64, 64))
    (parts["pred"].square().mean() + parts["restored"].square().mean()).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []
