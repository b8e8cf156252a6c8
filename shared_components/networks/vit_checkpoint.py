"""Load the weights of a ViT from ImageNet's MAE, EndoViT, an average over rounds or this project, without running code.

Their layouts: a state dict alone, or under "model" beside an optimizer and an `argparse.Namespace`; names that begin
with "module." beside "n_averaged", of averages (`torch.optim.swa_utils`); and "fc_norm" for "norm", of networks that
were fine-tuned on the mean of their patches.
"""

from __future__ import annotations

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
"""What else a file of MAE or of its fine-tuning holds, and an encoder does not need."""


def is_another(network: Vit, state: Mapping[str, Tensor]) -> bool:
    """Return whether a state by timm's names is of another network than this one, which may share the encoder."""
    return isinstance(network, MaeVit) or state.keys() != network.state_dict().keys()


def load_vit(network: Vit, path: Path) -> list[str]:
    """Load a file of one of the layouts above into a network.

    A masked autoencoder takes all of its tensors, or of a file without any decoder the encoder's. Any other network
    takes the encoder's alone. What else the file has of an autoencoder or of a head is left.

    Args:
        network: Changed in place.
        path: A `.safetensors`, `.pt` or `.pth` file.

    Returns:
        The names of the tensors that keep their values.

    Raises:
        CheckpointError: The file is damaged, holds more than tensors and settings, lacks a tensor, or has another,
            one of another shape, NaN or infinity; the network keeps its weights.
    """
    own, state = network.state_dict(), in_timm_layout(load_weights(path), path)
    whole = isinstance(network, MaeVit) and any(inside(name, DECODER) for name in state)
    expected = {name: value for name, value in own.items() if whole or inside(name, OF_ENCODER)}
    unread = [*(["head"] if whole else ELSEWHERE), *([] if "norm.weight" in own else ["norm"])]
    found = {name: value for name, value in state.items() if not inside(name, unread)}
    require_equal(expected, found, Path(path), f"{type(network).__name__} {network.architecture}")
    require_finite(found, path)
    network.load_state_dict(own | found)
    return [name for name in own if name not in found]


def in_timm_layout(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return a state by the names of timm, without an average's count.

    Raises CheckpointError for two tensors of one name.
    """
    named = {name: value for name, value in state.items() if name != COUNT}
    if named and all(name.startswith(WRAPPED) for name in named):
        named = {name.removeprefix(WRAPPED): value for name, value in named.items()}
    if any(inside(name, ["norm"]) for name in named) and any(inside(name, ["fc_norm"]) for name in named):
        raise CheckpointError(f"checkpoint {path} has both norm and fc_norm; remove the one that its head did not read")
    return {name.removeprefix("fc_") if inside(name, ["fc_norm"]) else name: v for name, v in named.items()}
