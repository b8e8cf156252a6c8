"""SAM2 in our loop over frames: propagation, batches, streams, gradients, shapes, depth, text, errors."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers.models.sam2_video import modeling_sam2_video as library

from shared_components.networks.bundle_config import weightless
from shared_components.networks.channel_selection import ChannelSelection
from shared_components.networks.parts import fixed_tensors, inside, resolve, trained_parameters
from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration
from shared_components.networks.sam2_frames import EMPTY
from shared_components.networks.sam2_memory import POINTERS, PROMPTED
from shared_components.networks.sam2_steps import enlarged, whole_frame
from shared_components.networks.sam2_video import Sam2Clips

SIDE = 64
FIRST, SECOND = [4.0, 6.0, 40.0, 33.0], [20.0, 10.0, 60.0, 50.0]
SAM2 = "shared_components.networks.sam2_video.Sam2Clips"


def trained(**arguments) -> Sam2Clips:
    """Return a network whose layers all affect the output, as after training."""
    torch.manual_seed(0)
    network = Sam2Clips(**{"architecture": "toy", "size": SIDE, "indicator": 8} | arguments)
    for layer in network.memory_encoder.memory_fuser.layers:
        nn.init.constant_(layer.scale, 0.5)
    if network.selection is not None:
        for weight in (module.weight for module in network.selection.children()):
            nn.init.normal_(weight)
        network.set_indicator(torch.linspace(-1, 1, 8))
    return network.eval()


def clip(frames: int, clips: int = 1) -> Tensor:
    return torch.rand(clips, frames, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def prompts(frames: int, *objects: dict[int, list[float]]) -> Tensor:
    """Return boxes (1, frames, objects, 4) from a mapping of frame indices to boxes for each object."""
    boxes = torch.full((1, frames, len(objects), 4), torch.nan)
    for n, given in enumerate(objects):
        for t, box in given.items():
            boxes[0, t, n] = torch.tensor(box)
    return boxes


def of_the_library(network: Sam2Clips, monkeypatch) -> nn.Module:
    """Return `transformers`' model with the same weights, open gates and float32 memories."""
    config = configuration(ARCHITECTURES["toy"], side=SIDE, dropout=0.1)
    config.multimask_output_in_sam = config.mask_decoder_config.dynamic_multimask_via_stability = False
    model = library.Sam2VideoModel(config)
    model.load_state_dict(network.state_dict(), strict=False)
    model.shared_image_embedding = model.prompt_encoder.shared_embedding
    nn.init.constant_(model.mask_decoder.pred_obj_score_head.proj_out.bias, 100.0)
    exact = {name: getattr(torch, name) for name in dir(torch)} | {"bfloat16": torch.float32}
    monkeypatch.setattr(library, "torch", SimpleNamespace(**exact))
    return model.eval()


def propagated(model: nn.Module, frames: Tensor, boxes: Tensor) -> Tensor:
    """Return the library's masks (T, N, H, W) of a stream (T, 3, H, W) with boxes (N, 4) on its first frame."""
    session = library.Sam2VideoInferenceSession(dtype=torch.float32)
    for n, box in enumerate(boxes):
        place = session.obj_id_to_idx(n)
        labels = torch.tensor([[[2, 3]]])
        session.add_point_inputs(place, 0, {"point_coords": box.reshape(1, 1, 2, 2), "point_labels": labels})
        session.obj_with_new_inputs.append(n)
    masks = [model(session, frame=frame).pred_masks for frame in frames]
    return torch.stack([enlarged(one, SIDE)[:, 0] for one in masks])


@pytest.mark.parametrize("boxes", [[FIRST], [FIRST, SECOND]])
def test_six_frames_equal_the_librarys_propagation(monkeypatch, boxes):
    network, frames = trained(text="none"), clip(6)
    with torch.no_grad():
        result = network(frames, prompts(6, *({0: box} for box in boxes)))
    frames = (frames[0] - network.mean) / network.deviation
    expected = propagated(of_the_library(network, monkeypatch), frames, torch.tensor(boxes))
    assert expected[1:].std() > 0.05 and (expected[1] - expected[5]).abs().max() > 1e-2  # memories count
    torch.testing.assert_close(result[0, :, 1:], expected, atol=1e-5, rtol=1e-5)
    assert not result[:, :, 0].any()


def test_clips_of_different_numbers_of_objects_equal_each_alone():
    network, frames = trained(), clip(3, clips=3)
    boxes = torch.cat(
        [
            prompts(3, {}, {0: FIRST}, {}),
            prompts(3, {0: SECOND}, {0: FIRST}, {1: SECOND}),  # the third appears later
            prompts(3, {0: FIRST, 1: SECOND}, {}, {0: SECOND, 2: FIRST}),  # prompted twice
        ]
    )
    with torch.no_grad():
        result = network(frames, boxes)
        for b, objects in enumerate([[1], [0, 1, 2], [0, 2]]):
            for n in objects:
                alone = network(frames[b : b + 1], boxes[b : b + 1, :, n : n + 1])
                torch.testing.assert_close(result[b, :, n + 1], alone[0, :, 1], atol=1e-5, rtol=1e-5)
    assert (result[0, :, [1, 3]] == EMPTY).all() and (result[2, :, 2] == EMPTY).all()
    assert (result[1, 0, 3] == EMPTY).all() and not (result[1, 1:, 3] == EMPTY).any()


@pytest.mark.parametrize("channels", [3, 1])
def test_a_stream_equals_its_clip(channels):
    network, frames = trained(out_channels=channels), clip(9)
    objects = [{0: FIRST, 4: SECOND}, {3: SECOND}] if channels == 3 else [{0: FIRST, 5: SECOND}]
    boxes = prompts(9, *objects)
    with torch.no_grad():
        expected = network(frames, boxes)
    memory = network.begin_stream(boxes[0, 0])
    for t in range(9):
        prompt = boxes[0, t] if 0 < t and boxes[0, t].isfinite().any() else None
        result, memory = network.remember(frames[:, t], memory, prompt)
        torch.testing.assert_close(result, expected[:, t], atol=1e-5, rtol=1e-5)


def test_a_stream_of_stride_two_remembers_as_the_clip_of_every_second_frame():
    network, frames = trained(), clip(7)
    with torch.no_grad():
        expected = network(frames[:, ::2])
    memory = network.begin_stream(stride=2)
    for t in range(7):
        result, memory = network.remember(frames[:, t], memory)
        assert t % 2 or torch.allclose(result, expected[:, t // 2], atol=1e-5)


def test_the_memory_of_a_stream_stays_of_one_size():
    network, frames = trained(), clip(2)
    memory = network.begin_stream()
    for t in range(60):
        prompt = torch.tensor([FIRST] * 3) if t % 5 == 0 else None
        _, memory = network.remember(frames[:, t % 2], memory, prompt)
        assert all(len(one.prompted) <= PROMPTED and len(one.tracked) < POINTERS for one in memory.tracks)
    assert [len(one.prompted) for one in memory.tracks] == [PROMPTED] * 3
    assert all(one.map._base is None or one.map._base.shape[0] <= 3 for t in memory.tracks for one in t.tracked)


def test_a_stream_takes_up_training_where_inference_mode_was_before():
    network, frames = trained(), clip(2)
    with torch.inference_mode():
        network(frames)
    network.train()(frames).sum().backward()
    assert network.mask_decoder.conv_s0.weight.grad is not None


@pytest.mark.parametrize("channels", [4, 1])
@pytest.mark.parametrize("encoders", [False, True])
def test_gradients_reach_every_trained_tensor_and_no_other(channels, encoders):
    network = trained(out_channels=channels, trained_encoders=encoders, architecture="toy").train()
    (network(clip(2)) * torch.rand(SIDE, SIDE)).sum().backward()
    reached = {name for name, value in network.named_parameters() if value.grad is not None and value.grad.any()}
    expected = set(trained_parameters(network))
    if channels > 1:  # built everywhere, read for depth alone
        expected -= {"depth_head.weight", "depth_head.bias"}
    assert reached <= expected
    # a box uses neither the embeddings of clicks nor, here, all of the encoder
    missing = {name for name in expected - reached if not name.startswith(("vision_encoder", "prompt_encoder"))}
    assert not missing
    fixed = {name for name in fixed_tensors(network) if name != "indicator"}
    paths = resolve(network, ["image_encoder", "prompt_encoder"])
    assert fixed == (set() if encoders else {name for name in network.state_dict() if inside(name, paths)})
    assert ("vision_encoder.backbone.patch_embed.projection.weight" in reached) == encoders


def test_a_box_prompts_as_its_area_where_the_architecture_says_so(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "toy", replace(ARCHITECTURES["toy"], filled_boxes=True))
    network, frames = trained(trained_encoders=True).train(), clip(2)
    network(frames)[:, 0].sum().backward()
    assert network.prompt_encoder.mask_embed.conv1.weight.grad.any()
    assert not network.prompt_encoder.no_mask_embed.weight.grad.any()  # it is of frames without a box
    network(frames)[:, 1].sum().backward()
    assert network.prompt_encoder.no_mask_embed.weight.grad.any()


@pytest.mark.parametrize("frozen", [(), ("memory", "no_memory", "temporal", "object_pointer")])
def test_a_batch_that_shows_no_object_has_a_gradient_of_zero(frozen):
    network = trained().train()
    for name, value in network.named_parameters():
        value.requires_grad_(value.requires_grad and not name.startswith(frozen))
    result = network(clip(2), prompts(2, {}, {}, {}))
    assert (result[:, :, 1:] == EMPTY).all()
    result.sum().backward()
    assert not any(value.grad.any() for value in network.parameters() if value.grad is not None)


@pytest.mark.parametrize("text", ["selection", "released", "prompt"])
def test_names_and_shapes_are_the_same_whatever_is_learnt(text):
    states = [weightless({"_target_": SAM2, "architecture": "toy", "text": text}, out_channels=n) for n in (4, 12, 1)]
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in states]
    assert shapes[0] == shapes[1] == shapes[2]
    assert [one.objects for one in states] == [3, 11, 1]
    parts = resolve(states[0], list(states[0].parts))
    assert all(inside(name, parts) for name in shapes[0])


@pytest.mark.parametrize("stride", [16, 4])
def test_depth_is_a_convolution_of_the_decoders_map_and_enlarged(stride):
    network = trained(out_channels=1, depth_stride=stride)
    seen = []
    network.depth_head.register_forward_hook(lambda _, given, result: seen.append((given[0], result)))
    with torch.no_grad():
        result = network(clip(2))
    assert result.shape == (1, 2, 1, SIDE, SIDE)
    (given, cells), channels = seen[1], 128 if stride == 16 else 16
    assert given.shape == (1, channels, SIDE // stride, SIDE // stride)
    weight, bias = network.depth_head.weight[0, :, 0, 0], network.depth_head.bias
    torch.testing.assert_close(cells[0, 0], (given[0] * weight[:, None, None]).sum(0) + bias)
    torch.testing.assert_close(result[:, 1], enlarged(cells, SIDE))


def test_pictures_features_and_no_boxes_are_short_for_clips():
    network, frames = trained(), clip(2, clips=2)
    with torch.no_grad():
        expected = network(frames, whole_frame(2, 2, 3, SIDE))
        assert torch.equal(network(frames), expected)
        assert torch.equal(network(None, features=network.encode(frames)), expected)
        assert torch.equal(network(frames[:, 0]), network(frames[:, :1])[:, 0])
        boxes = torch.tensor([FIRST, SECOND]).expand(2, 2, 4)
        assert torch.equal(network(frames[:, 0], boxes), network(frames[:, :1], boxes[:, None])[:, 0])


def test_another_side_than_the_one_it_was_made_for_gives_what_a_network_made_for_it_gives():
    frames, network = clip(2), trained(size=96)
    other = trained(size=SIDE)
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(network(frames), other(frames), atol=1e-5, rtol=1e-5)


def test_the_text_selects_channels_before_the_decoder_and_not_what_is_remembered():
    network, frames = trained(), clip(1)
    maps = []
    network.memory_encoder.feature_projection.register_forward_hook(lambda _, given, result: maps.append(given[0]))
    with torch.no_grad():
        result = [network(frames)]
        network.set_indicator(torch.full((8,), 3.0))
        result.append(network(frames))
    assert not torch.allclose(*result) and torch.equal(*maps)
    assert isinstance(network.selection, ChannelSelection)
    with pytest.raises(ValueError, match="made with text 'none'"):
        trained(text="none").set_indicator(torch.zeros(8))


def test_a_prompt_adds_the_texts_embedding_before_the_decoder_and_selects_no_channel():
    network, plain, frames = trained(text="prompt"), trained(text="none"), clip(1)
    plain.load_state_dict({n: v for n, v in network.state_dict().items() if n in plain.state_dict()})
    seen = []
    network.selection.register_forward_hook(lambda _, given, result: seen.append((given[0], result)))
    with torch.no_grad():
        assert not torch.allclose(network(frames), plain(frames))
        (given, result), text = seen[0], torch.linspace(-1, 1, 8).tolist()
        added = [sum(w * x for w, x in zip(row, text, strict=True)) for row in network.selection.embedding.weight]
        torch.testing.assert_close(result, given + torch.tensor(added)[:, None, None], atol=1e-4, rtol=1e-4)
        network.set_indicator(torch.zeros(8))  # of no text
        assert torch.equal(network(frames), plain(frames))


@pytest.mark.parametrize(("arguments", "sentence"), [
    ({"size": 100}, "size is 100; give a multiple of 32, such as 96"),
    ({"architecture": "huge"}, "architecture 'huge' is unknown; use one of cpu, cpu_large, tiny, small"),
    ({"text": "words"}, "text 'words' is unknown"),
    ({"depth_stride": 8}, "depth_stride is 8; use 16, as released, or 4"), ({"dropout": 1.0}, "dropout is 1.0"),
    ({"trained_encoders": "no"}, "trained_encoders is 'no'; it is true or false"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sam2Clips(**arguments)


def test_frames_of_another_size_and_boxes_of_other_objects_are_refused():
    network = trained()
    _, memory = network.remember(clip(1)[:, 0], network.begin_stream(torch.tensor([FIRST])))
    for call, sentence in (
        (lambda: network(torch.zeros(1, 2, 3, 64, 96)), "64x96, but Sam2Clips takes squares of .* 32; use 64x64"),
        (lambda: network(torch.zeros(1, 2, 3, 72, 72)), "72x72, .* use 64x64"),
        (lambda: network(torch.zeros(1, 2, 1, 64, 64)), r"clips \(B, T, 3, H, W\), not \[1, 2, 1, 64, 64\]"),
        (
            lambda: network.remember(clip(1)[:, 0], memory, torch.tensor([FIRST, SECOND])),
            r"the stream takes boxes \(1, 4\), and got \[2, 4\]",
        ),
        (lambda: network.remember(torch.zeros(1, 3, 96, 96), memory), "changed from 64 to 96"),
        (lambda: network.begin_stream(stride=0), "stride is 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_a_network_that_shares_tensors_learns_another_task_with_them():
    network = trained(text="none")
    depth = network.sharing(1)
    assert depth.is_depth and not network.is_depth and depth(clip(2)).shape[2] == 1
    assert all(one is other for one, other in zip(network.parameters(), depth.parameters(), strict=True))
    depth(clip(2)).sum().backward()
    assert network.depth_head.weight.grad is not None and torch.equal(network(clip(2)), network.sharing(4)(clip(2)))
