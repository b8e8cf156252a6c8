"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared_components.aggregators.mean import WeightedMean
from shared_components.arguments import list_of_names
from shared_components.method import Method, Summary
from shared_components.objectives import task_objective
from shared_components.partition import Role, Slice

NORMS: dict[str, type[nn.Module] | tuple[type[nn.Module], ...]] = {
    "batch": _BatchNorm,
    "layer": nn.LayerNorm,
    "group": nn.GroupNorm,
}


def build(*, norms: Sequence[str] = tuple(NORMS)) -> Method:
    """Return FedBN: normalisation layers stay at each site, by the type of the module and never by its name.

    `pvt_fpn` has layer and group norms only; keeping those is what some papers call FedLN.

    Args:
        norms: Kinds of layers that are LOCAL, running statistics included.
    """
    list_of_names("fedbn", "norms", norms)
    if unknown := sorted(set(norms) - set(NORMS)):
        raise ValueError(f"fedbn: norms name {', '.join(unknown)}; there are {', '.join(NORMS)}")
    if not norms:
        raise ValueError("fedbn: norms is empty, which would be FedAvg; name at least one kind")
    kept = tuple(NORMS[kind] for kind in norms)

    def rule(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        return (Slice(Role.LOCAL if isinstance(module, kept) else Role.GLOBAL),)

    return Method(
        name="fedbn",
        rule=rule,
        objective=task_objective,
        aggregator=WeightedMean(),
        label="FedBN (FedLN)",
        paper="Li et al., ICLR 2021, arXiv 2102.07623",
        summary=Summary(
            partition="normalisation layers LOCAL, the rest GLOBAL",
            objective="segmentation",
            aggregator="mean weighted by samples",
            secure_sums="yes: the weighted sum is all that the server needs",
        ),
    )
