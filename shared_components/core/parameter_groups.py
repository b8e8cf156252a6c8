"""Group the trained parameters by learning rate and weight decay, as set in `training`.

Learning rates differ by part (`training.learning_rates`) and by depth (`training.layer_decay`: BEiT, Bao et al., ICLR
2022; MAE, He et al., CVPR 2022; mirrored to the decoder by EndoViT, Batic et al., IJCARS 2024).
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from shared_components.core.training_settings import Training
from shared_components.networks.parts import by_learning_rate, inside, trained_parameters

Layers = Sequence[Sequence[str]]
"""Paths of modules or tensors by their depth, the distance from the encoder's output, which has depth 0."""


def parameter_groups(network: nn.Module, training: Training) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups, with ``lr`` and, if it differs from the setting, ``weight_decay``.

    They are the groups of `by_learning_rate`, in order, divided by depth and weight decay. Raises ValueError as
    `by_learning_rate`, or if ``layer_decay`` is below 1 and the network declares no layers.
    """
    names = {id(value): name for name, value in trained_parameters(network).items()}
    layers = layers_of(network, training.layer_decay)
    groups: list[dict[str, Any]] = []
    for rate, parameters in by_learning_rate(network, training.learning_rates):
        divided: dict[tuple[int, bool], list[nn.Parameter]] = {}
        for parameter in parameters:
            free = training.decay_free and is_vector(parameter)
            depth = next((depth for depth, paths in enumerate(layers) if inside(names[id(parameter)], paths)), 0)
            divided.setdefault((depth, free), []).append(parameter)
        base = training.learning_rate if rate is None else rate
        groups += [
            {"params": own, "lr": base * training.layer_decay**depth} | ({"weight_decay": 0.0} if free else {})
            for (depth, free), own in divided.items()
        ]
    return groups


def layers_of(network: nn.Module, decay: float = 0.5) -> Layers:
    """Return the result of a network's method `layers`, or () if ``decay`` is 1; ValueError without the method."""
    if decay == 1:
        return ()
    declared = getattr(network, "layers", None)
    if not callable(declared) or isinstance(declared, nn.Module):
        raise ValueError(
            f"training: layer_decay is {decay}, but {type(network).__name__} declares no ordered layers; choose a "
            "bundle with a ViT, or set layer_decay: 1"
        )
    return declared()


def is_vector(value: Tensor) -> bool:
    """Return whether a tensor is a bias, a scale or a token (1, 1, C), which need no weight decay."""
    return value.dim() <= 1 or (value.dim() > 2 and value.numel() == value.shape[-1])
