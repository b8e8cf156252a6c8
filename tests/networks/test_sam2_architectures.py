"""SAM2's architectures: parameter counts, shared tensors, and the error without `transformers`."""

import subprocess
import sys

import pytest
import torch
from transformers import Sam2VideoModel

from shared_components.networks.bundle_config import weightless
from shared_components.networks.parts import inside, resolve
from shared_components.networks.sam2_architectures import ARCHITECTURES, LAYER_SCALE, build_sam2, configuration
from shared_components.networks.sam2_checkpoint import UNUSED

SAM2 = "shared_components.networks.sam2_video.Sam2Clips"
SHARED = ["memory_attention", "memory_encoder", "object_pointer", "mask_decoder"]


def counts(architecture: str) -> tuple[int, int]:
    """Return how many parameters a network has, and how many of them sites share."""
    network = weightless({"_target_": SAM2, "architecture": architecture})
    shared = resolve(network, SHARED)
    numbers = {name: value.numel() for name, value in network.named_parameters()}
    return sum(numbers.values()), sum(n for name, n in numbers.items() if inside(name, shared))


@pytest.mark.parametrize(("architecture", "published"), [("tiny", 38.9), ("small", 46.0)])
def test_the_published_sizes_have_the_published_numbers_of_parameters(architecture, published):
    with torch.device("meta"):
        model = Sam2VideoModel(configuration(ARCHITECTURES[architecture], side=512, dropout=0.1))
    own = weightless({"_target_": SAM2, "architecture": architecture, "text": "none"}).named_parameters()
    numbers = {name: value.numel() for name, value in model.named_parameters()}
    assert sum(numbers.values()) / 1e6 == pytest.approx(published, abs=0.1)
    heads = {"depth_head.weight", "depth_head.bias"}
    assert {name for name, _ in own} - heads == {name for name in numbers if not inside(name, UNUSED)}


def test_sites_share_the_released_tensors_of_small_that_one_mask_without_gates_trains():
    released = 11_719_414 - 683_894  # the heads that are off, three masks of four, and what reads a mask as a prompt
    assert counts("small")[1] == released + 256 + 7 * 64 + 256 * 64 + 64  # places of memories, not in the release


@pytest.mark.parametrize(("architecture", "millions"), [("cpu", 3.29), ("cpu_large", 6.82)])
def test_the_sizes_for_two_cores_are_small(architecture, millions):
    assert counts(architecture)[0] / 1e6 == pytest.approx(millions, abs=0.006)


def test_tokens_and_layers_begin_as_published():
    torch.manual_seed(0)
    model = build_sam2(ARCHITECTURES["toy"], side=64, dropout=0.1)
    assert model.mask_decoder.mask_tokens.weight.std().item() == pytest.approx(1, abs=0.1)
    assert model.prompt_encoder.shared_embedding.positional_embedding.std().item() == pytest.approx(1, abs=0.2)
    assert (model.memory_encoder.memory_fuser.layers[0].scale == LAYER_SCALE).all()
    assert model.memory_temporal_positional_encoding.any()


def test_importing_the_network_does_not_import_transformers_and_its_absence_is_told():
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "from shared_components.networks.sam2_video import Sam2Clips\n"
        "try: Sam2Clips()\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'surgfl[sam2]'" in done.stdout
