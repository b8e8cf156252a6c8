"""SAM2 in a clip loop of ours: the library's propagation, batches, streams, gradients, shapes, depth, text, errors."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers.models.sam2_video import modeling_sam2_video as library

from shared_components.networks.bundle_config import weightless
from shared_components.networks.channel_selection import ChannelSelection
from shared_components.networks.parts import fixed_tensors, inside, resolve, trained_parameters
from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration
from shared_components.networks.sam2_boxes import whole_frame
from shared_components.networks.sam2_memory import POINTERS, PROMPTED
from shared_components.networks.sam2_steps import enlarged
from shared_components.networks.sam2_video import EMPTY, Sam2Clips

SIDE = 64
FIRST, SECOND = [4.0, 6.0, 40.0, 33.0], [20.0, 10.0, 60.0, 50.0]
SAM2 = "shared_components.networks.sam2_video.Sam2Clips"


def trained(**arguments) -> Sam2Clips:
    """Return a network in which everything counts, as after training."""
    torch.manual_seed(0)
    network = Sam2Clips(**{"architecture": "toy", "size": SIDE, "indicator": 8} | arguments)
    for layer in network.memory_encoder.memory_fuser.layers:
        nn.init.constant_(layer.scale, 0.5)
    if network.selection is not None:
        nn.init.normal_(network.selection.gate.weight)
        network.set_indicator(torch.linspace(-1, 1, 8))
    return network.eval()


def clip(frames: int, clips: int = 1) -> Tensor:
    return torch.rand(clips, frames, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def prompts(frames: int, *objects: dict[int, list[float]]) -> Tensor:
    """Return boxes (1, frames, objects, 4): of each object those by the number of the frame."""
    boxes = torch.full((1, frames, len(objects), 4), torch.nan)
    for n, given in enumerate(objects):
        for t, box in given.items():
            boxes[0, t, n] = torch.tensor(box)
    return boxes


def of_the_library(network: Sam2Clips, monkeypatch) -> nn.Module:
    """Return the library's model of the same weights, with both gates open and memories that are not rounded."""
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
        found = network(frames, prompts(6, *({0: box} for box in boxes)))
    frames = (frames[0] - network.mean) / network.deviation
    expected = propagated(of_the_library(network, monkeypatch), frames, torch.tensor(boxes))
    assert expected[1:].std() > 0.05 and (expected[1] - expected[5]).abs().max() > 1e-2  # memories count
    torch.testing.assert_close(found[0, :, 1:], expected, atol=1e-5, rtol=1e-5)
    assert not found[:, :, 0].any()
