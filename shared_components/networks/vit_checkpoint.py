"""Load ViT weights of ImageNet's MAE, EndoViT, averaged models or this project, without running code.

These layouts are read:

- a state dict, or a checkpoint with a state dict under "model", an optimizer and an `argparse.Namespace`
- averaged models of `torch.optim.swa_utils`, with the prefix "module." and the tensor "n_averaged"
- networks fine-tuned on mean patches, with "fc_norm" instead of "norm"
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from shared_components.networks.checkpoints import CheckpointError, load_weights, require_equal, require_finite
from shared_components.networks.mae_vit import DECODER, MaeVit
from shared_components.networks.parts import inside
from shared_components.networks.vit import ENCODER, Vit

WRAPPED, COUNT = "module.", "n_averaged"
OF_ENCODER = (*ENCODER, "pos_embed")
ELSEWHERE = (*DECODER, "decoder_pos_embed", "decoder_pred", "head")
"""Tensors of MAE and fine-tuning files that an encoder does not need."""


def is_another(network: Vit, state: Mapping[str, Tensor]) -> bool:
    """Return whether a state with timm's names belongs to another network, which may have the same encoder."""
    return isinstance(network, MaeVit) or state.keys() != network.state_dict().keys()


def load_vit(network: Vit, path: Path) -> list[str]:
    """Load a file with one of the layouts above into a network; return the tensors that keep their values.

    A masked autoencoder loads all of its tensors, or only the encoder from a file without a decoder. Other networks
    load only the encoder. Other tensors of an autoencoder or a head are ignored.

    Raises CheckpointError if the file is damaged, contains other data than tensors and settings, or has missing or
    unexpected tensors, other shapes, NaN or infinity; the network keeps its weights.
    """
    own, state = network.state_dict(), in_timm_layout(load_weights(path), path)
    whole = isinstance(network, MaeVit) and any(inside(name, DECODER) for name in state)
    expected = {name: value for name, value in own.items() if whole or inside(name, OF_ENCODER)}
    unread = [*(["head"] if whole else ELSEWHERE), *([] if "norm.weight" in own else ["norm"])]
    loaded = {name: value for name, value in state.items() if not inside(name, unread)}
    require_equal(expected, loaded, Path(path), f"{type(network).__name__} {network.architecture}")
    require_finite(loaded, path)
    network.load_state_dict(own | loaded)
    return [name for name in own if name not in loaded]


def in_timm_layout(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return a state with timm's names, without the count of an averaged model.

    Raises CheckpointError if two tensors have the same name.
    """
    named = {name: value for name, value in state.items() if name != COUNT}
    if named and all(name.startswith(WRAPPED) for name in named):
        named = {name.removeprefix(WRAPPED): value for name, value in named.items()}
    if any(inside(name, ["norm"]) for name in named) and any(inside(name, ["fc_norm"]) for name in named):
        raise CheckpointError(f"checkpoint {path} has both norm and fc_norm; remove the norm that its head ignores")
    return {name.removeprefix("fc_") if inside(name, ["fc_norm"]) else name: v for name, v in named.items()}
