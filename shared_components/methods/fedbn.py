"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Method, Server
from shared_components.core.partition import Role, Rule, Slice, TensorRule

NORMS: dict[str, type[nn.Module]] = {
    "batch": _BatchNorm, "layer": nn.LayerNorm, "group": nn.GroupNorm, "instance": _InstanceNorm, "rms": nn.RMSNorm,
}  # fmt: skip
Norms = Annotated[
    Sequence[Literal["batch", "layer", "group", "instance", "rms"]],
    Meta(min_length=1, description=f"write a list of one or more of {', '.join(NORMS)}, or null for all kinds"),
]


def build(*, norms: Norms | None = None) -> Method:
    """Return FedBN: normalisation layers stay at each site; FedBN on layer norms is also called FedLN.

    ``norms`` are the kinds of LOCAL layers, with their running statistics; the network must contain each. None: all
    kinds.
    """
    return Method(
        partition=normalisation(norms),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        about=About(
            label="FedBN (FedLN)",
            paper="Li et al., ICLR 2021, arXiv 2102.07623",
            idea="Hospitals share one model, but each keeps its own normalisation layers, which fit its images.",
            partition="normalisation layers LOCAL, rest GLOBAL",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )


def normalisation(norms: Sequence[str] | None) -> Rule:
    """Return the rule that makes normalisation layers LOCAL; ValueError for a network without them."""

    def rule(network: nn.Module) -> TensorRule:
        layers = [m for m in network.modules() if isinstance(m, tuple(NORMS.values())) and m.state_dict()]
        present = [kind for kind, types in NORMS.items() if any(isinstance(layer, types) for layer in layers)]
        wanted = present if norms is None else norms
        if absent := [kind for kind in wanted if kind not in present] or ["normalisation"] * (not wanted):
            raise ValueError(
                f"fedbn: {type(network).__name__} has no {absent[0]} layers to keep at the site; "
                f"its kinds of layers are: {', '.join(present) or 'none'}"
            )
        kept = tuple(NORMS[kind] for kind in wanted)
        # by module type: the released code looks for "bn" in names, which matches nothing in most transformers
        return lambda name, tensor, module: (Slice(Role.LOCAL if isinstance(module, kept) else Role.GLOBAL),)

    return rule
