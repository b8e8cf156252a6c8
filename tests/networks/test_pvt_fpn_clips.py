"""The network of FedST: channel selection, clips, streams, single frames, the text, parts, counts, errors, export."""

import pytest
import torch
from torch import nn

from shared_components.networks import pvt_v2
from shared_components.networks.channel_selection import ChannelSelection, Prompt
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import Memory, PvtFpnClips

SINGLE = {"temporal": False, "text": "none"}


def trained(**arguments) -> PvtFpnClips:
    """Return a network whose output depends on earlier frames and text, as after training."""
    torch.manual_seed(0)
    network = PvtFpnClips(indicator=8, **arguments).eval()
    for module in (network.temporal, network.selection):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.2)
    if arguments.get("text") != "none":
        network.set_indicator(torch.linspace(-1, 1, 8))
    return network


@pytest.fixture(scope="module")
def network() -> PvtFpnClips:
    return trained()


def count(network: nn.Module, *names: str) -> int:
    state = network.state_dict()
    return sum(state[name].numel() for name in state if name.startswith(names))


def test_the_number_of_parameters_is_what_is_counted_by_hand():
    assert count(ChannelSelection(160, 384), "") == (160 + 384) * 160 + 160 == 87_200
    assert count(Prompt(160, 384), "") == 384 * 160 == 61_440
    network = PvtFpnClips(out_channels=4)
    lateral = (32 + 64 + 160 + 256) * 256 + 4 * 256
    branches = 4 * 256 * 128 * 9 + 3 * 128 * 128 * 9 + 7 * 2 * 128  # P5 has three convolutions, P4 two
    own, house = ({n for n in made.state_dict() if n.startswith("encoder.")} for made in (network, PvtFpn()))
    assert own == house and count(network, "encoder.") == 3_409_760  # published
    assert count(network, "decoder.") == lateral + branches == 1_755_904
    assert count(network, "head.") == 128 * 4 + 4
    # refine and q: C^2 + C each, kv 2C^2 + 2C, proj C^2 + C, three norms 2C each, feed-forward 4C^2 + 3C, and a bias
    # per head and distance: 49^2 + 23^2 + 11^2 + 13^2
    temporal = sum(9 * width**2 + 14 * width + heads * 3220 for width, heads in ((160, 5), (256, 8)))
    assert count(network, "temporal.") == temporal == 248_740 + 619_168
    assert count(network, "selection.") == (160 + 384) * 160 + 160 + (256 + 384) * 256 + 256
    assert sum(parameter.numel() for parameter in network.parameters()) == 6_285_384
    single = PvtFpnClips(out_channels=4, **SINGLE)
    parameters = sum(parameter.numel() for parameter in single.parameters())
    assert parameters == 5_166_180 and round(parameters * 4 / 2**20, 2) == 19.71  # Table 9: FedAvg sends 19.71 MB
    assert not list(single.buffers())


def test_a_picture_is_a_clip_that_repeats_it_and_is_encoded_once(network):
    image, shown = torch.rand(2, 3, 64, 96), []
    expected = network(image[:, None].expand(-1, 4, -1, -1, -1))
    hook = network.encoder.register_forward_hook(lambda _, inputs, __: shown.append(len(inputs[0])))
    torch.testing.assert_close(network(image), expected)
    hook.remove()
    assert shown == [2]


@pytest.mark.parametrize("text", ["none", "prompt"])
def test_a_fresh_network_predicts_what_its_weights_predict_of_the_frame_alone(text):
    torch.manual_seed(0)
    network = PvtFpnClips(text=text).eval()
    single = PvtFpnClips(**SINGLE).eval()
    single.load_state_dict({name: value for name, value in network.state_dict().items() if name in single.state_dict()})
    clip = torch.rand(2, 4, 3, 64, 96)
    torch.testing.assert_close(network(clip), single(clip[:, -1]))
    assert torch.equal(network(clip[:, -1]), single(clip[:, -1]))
    assert torch.equal(single.decode(single.encoder(clip[:, -1])), single(clip[:, -1]))


def test_networks_of_one_seed_share_encoder_decoder_and_head():
    states = []
    for arguments in ({}, {"text": "prompt"}, {"temporal": False}, SINGLE):
        torch.manual_seed(3)
        states.append(PvtFpnClips(**arguments).state_dict())
    assert all(torch.equal(state[name], value) for state in states for name, value in states[-1].items())


def clip_at(video: list[torch.Tensor], number: int, stride: int) -> torch.Tensor:
    """Return the clip (1, 4, 3, H, W) of a frame, padded with the video's first frame."""
    return torch.stack([video[max(0, number - back * stride)] for back in (3, 2, 1, 0)], 1)


@pytest.mark.parametrize(("stride", "frames"), [(1, 7), (3, 13)])
def test_streaming_equals_the_clip_of_every_frame(network, stride, frames):
    video, memory, shown = [torch.rand(1, 3, 32, 64) for _ in range(frames)], Memory(stride), []
    hook = network.encoder.register_forward_hook(lambda _, inputs, __: shown.append(len(inputs[0])))
    result = []
    with torch.no_grad():
        for image in video:
            logits, memory = network.remember(image, memory)
            result.append(logits)
            assert len(memory.frames) <= 3 * stride
    hook.remove()
    assert shown == [1] * frames and len(memory.frames) == 3 * stride < frames
    with torch.no_grad():
        for number, logits in enumerate(result):
            torch.testing.assert_close(logits, network(clip_at(video, number, stride)), atol=2e-5, rtol=1e-4)
    assert not torch.allclose(result[-1], network(video[-1]), atol=1e-3)  # the past does count


def test_streaming_without_a_temporal_layer_is_frame_by_frame_and_keeps_nothing():
    network, memory = trained(temporal=False), Memory(5)
    for image in torch.rand(3, 1, 3, 32, 32):
        logits, memory = network.remember(image, memory)
        assert torch.equal(logits, network(image)) and memory == Memory(5)


def test_a_memory_keeps_no_graph_and_is_of_one_size(network):
    _, memory = network.remember(torch.rand(1, 3, 32, 64), Memory())
    assert not any(x.requires_grad for frame in memory.frames for x in frame)
    assert [tuple(x.shape) for x in memory.frames[0]] == [(1, 160, 2, 4), (1, 256, 1, 2)]
    for call, sentence in (
        (lambda: network.remember(torch.rand(1, 3, 64, 64), memory), r"changed to \[1, 3, 64, 64\]; begin a new"),
        (lambda: network.remember(torch.rand(1, 4, 3, 32, 64), memory), "remembers frames"),
        (lambda: Memory(0), "stride of a stream is 0"),
        (lambda: network.set_indicator(torch.zeros(7)), r"indicator of shape \[8\], and got \[7\]"),
        (lambda: network.set_indicator(torch.full((8,), torch.nan)), "non-finite"),
        (lambda: PvtFpnClips(**SINGLE).set_indicator(torch.zeros(384)), "made with text 'none'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


@pytest.mark.parametrize("text", ["selection", "prompt"])
def test_what_a_network_is_told_changes_its_prediction_and_is_part_of_its_state(text):
    network = trained(text=text)
    image = torch.rand(1, 3, 32, 32)
    before, indicator = network(image), torch.linspace(3, -3, 8)
    network.set_indicator(indicator)
    assert torch.equal(network.state_dict()["indicator"], indicator)
    assert not torch.allclose(network(image), before, atol=1e-3)
    other = PvtFpnClips(text=text, indicator=8).eval()
    assert not other.indicator.any()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(image), network(image))


@pytest.mark.parametrize("text", ["selection", "prompt"])
def test_a_training_step_reaches_every_weight(text):
    torch.manual_seed(0)
    network = PvtFpnClips(text=text, drop_path=0.0, dropout=0.0)
    for name, parameter in network.temporal.named_parameters():
        if name.endswith(("proj.weight", "fc2.weight")):
            nn.init.normal_(parameter, std=0.1)  # as after the first step, see test_temporal
    network.set_indicator(torch.randn(384))
    network(torch.rand(2, 4, 3, 64, 64)).square().mean().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_earlier_frames_train_the_encoder(network):
    clip = torch.rand(1, 4, 3, 32, 32, requires_grad=True)
    network(clip).square().mean().backward()
    assert all(bool(clip.grad[0, t].any()) for t in range(4))


@pytest.mark.parametrize(("shape", "words"), [
    ((3, 64, 64), r"takes frames \(B, 3, H, W\) or clips \(B, 4, 3, H, W\), and got \[3, 64, 64\]"),
    ((1, 3, 3, 64, 64), r"and got \[1, 3, 3, 64, 64\]"), ((1, 4, 1, 64, 64), r"and got \[1, 4, 1, 64, 64\]"),
    ((1, 3, 100, 160), "multiples of 32, and got 100x160; use 96x160"), ((1, 4, 3, 64, 17), "got 64x17; use 64x32"),
    ((1, 3, 0, 32), "got 0x32; use 32x32"),
])  # fmt: skip
def test_a_wrong_size_is_refused_with_one_that_is_not(network, shape, words):
    with pytest.raises(ValueError, match=words):
        network(torch.zeros(shape))


def test_clips_for_a_network_of_single_frames_are_refused():
    with pytest.raises(ValueError, match=r"or clips \(B, 1, 3, H, W\), and got \[1, 4, 3, 32, 32\]"):
        PvtFpnClips(**SINGLE)(torch.zeros(1, 4, 3, 32, 32))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("arguments", [{}, {"text": "prompt"}, SINGLE])
def test_scripting_and_tracing_change_nothing(arguments):
    network, image = trained(**arguments), torch.rand(2, 3, 64, 96)
    scripted = torch.jit.script(network)
    assert torch.equal(scripted(image), network(image))
    assert torch.equal(torch.jit.trace(network, image)(image), network(image))
    if network.takes_clips:
        clip = torch.rand(1, 4, 3, 64, 96)
        assert torch.equal(scripted(clip), network(clip))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_told_network_is_exported_as_one_of_frames_alone_with_the_text_inside(tmp_path, monkeypatch):
    """A later indicator does not change the file; its only input is the clip."""
    monkeypatch.setattr(pvt_v2, "DEPTH", 1)
    network, clip = trained(levels=[16], receptive_fields=[20, 7], kernels=[4, 1]), torch.rand(1, 2, 3, 64, 96)
    network.set_indicator(torch.nn.functional.normalize(torch.arange(1.0, len(network.indicator) + 1), dim=0))
    with torch.no_grad():
        expected = network(clip)
    torch.export.save(torch.export.export(network, (clip,)), tmp_path / "told.pt2")
    torch.jit.trace(network, clip).save(tmp_path / "told.ts")
    network.set_indicator(-network.indicator)
    with torch.no_grad():
        assert not torch.equal(network(clip), expected)
        loaded = torch.export.load(tmp_path / "told.pt2")
        assert loaded.graph_signature.user_inputs == ("clip",)
        assert "indicator" in loaded.graph_signature.buffers
        torch.testing.assert_close(loaded.module()(clip), expected)
        torch.testing.assert_close(torch.jit.load(tmp_path / "told.ts")(clip), expected)
