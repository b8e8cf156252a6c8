"""The encoder against an independent implementation and against the official names."""

import pytest
import torch
from torch import Tensor, nn

from shared_components.networks.pvt_v2 import DropPath, PvtV2B0

OFFICIAL = {
    "layer_norm_1": "norm1", "layer_norm_2": "norm2", "mlp.dense1": "mlp.fc1", "mlp.dense2": "mlp.fc2",
    "attention.query": "attn.q", "attention.key": "attn.k", "attention.value": "attn.v", "attention.proj": "attn.proj",
    "attention.spatial_reduction": "attn.sr", "attention.layer_norm": "attn.norm",
}  # fmt: skip


def in_our_names(reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map the names of `transformers.PvtV2Backbone` to the official ones; key and value are fused into kv."""
    renamed = {}
    for name, tensor in reference.items():
        parts = name.removeprefix("encoder.layers.").split(".")
        stage, rest = int(parts[0]) + 1, ".".join(parts[1:])
        if rest.startswith("patch_embedding."):
            ours = f"patch_embed{stage}." + rest.removeprefix("patch_embedding.").replace("layer_norm", "norm")
        elif rest.startswith("layer_norm."):
            ours = f"norm{stage}." + rest.removeprefix("layer_norm.")
        else:
            ours = f"block{stage}." + rest.removeprefix("blocks.")
        for theirs, official in OFFICIAL.items():
            ours = ours.replace(theirs, official)
        renamed[ours] = tensor
    for name in [name for name in renamed if ".attn.k." in name]:
        key, value = renamed.pop(name), renamed.pop(name.replace(".attn.k.", ".attn.v."))
        renamed[name.replace(".attn.k.", ".attn.kv.")] = torch.cat([key, value])
    return renamed


@pytest.fixture
def reference() -> nn.Module:
    """transformers' b0 with weights far from their initial values and the epsilons of the official code."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = transformers.PvtV2Backbone(transformers.PvtV2Config(out_features=stages)).eval()
    for name, module in backbone.named_modules():
        if name.endswith(("attention.layer_norm", "patch_embedding.layer_norm")):
            module.eps = 1e-5
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.05)
    return backbone


@pytest.mark.parametrize("size", [(64, 96), (32, 32), (128, 64)])
def test_feature_maps_equal_the_ones_of_transformers(reference, size):
    ours = PvtV2B0().eval()
    ours.load_state_dict(in_our_names(reference.state_dict()))
    image = torch.rand(2, 3, *size)
    with torch.no_grad():
        for mine, theirs in zip(ours(image), reference(image).feature_maps, strict=True):
            assert mine.shape == theirs.shape
            assert torch.allclose(mine, theirs, atol=1e-5, rtol=1e-5)


def test_the_number_of_parameters_is_as_published_and_initial_values_follow_the_official_code():
    torch.manual_seed(0)
    encoder = PvtV2B0()
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 3_409_760
    query = encoder.block4[0].attn.q
    assert abs(query.weight.std().item() - 0.02) < 0.001 and not query.bias.any()
    assert abs(encoder.patch_embed4.proj.weight.std().item() - (2 / (3 * 3 * 256)) ** 0.5) < 0.001
    assert abs(encoder.block4[0].mlp.dwconv.dwconv.weight.std().item() - (2 / 9) ** 0.5) < 0.02
    assert bool((encoder.norm1.weight == 1).all())


def test_stochastic_depth_grows_linearly_over_the_blocks():
    keeps = [module.keep for module in PvtV2B0(drop_path=0.7).modules() if isinstance(module, DropPath)]
    assert keeps == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])


def test_a_dropped_path_keeps_its_expectation_and_nothing_is_dropped_in_evaluation():
    torch.manual_seed(0)
    dropped = DropPath(0.25)(torch.ones(4000, 1, 1, 2))
    assert bool(((dropped == 0) | torch.isclose(dropped, torch.tensor(4 / 3))).all())
    assert bool((dropped[..., 0] == dropped[..., 1]).all())
    assert abs(float(dropped.mean()) - 1) < 0.03
    branch = torch.rand(3, 2, 2, 2)
    assert DropPath(0.9).eval()(branch) is branch
