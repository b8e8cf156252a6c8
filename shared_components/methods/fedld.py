"""FedLD: Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition, MICCAI 2024."""

from dataclasses import dataclass

from torch import Tensor, nn

from shared_components.core.aggregators.conflict import LayerwiseDecomposition
from shared_components.core.method import About, Batch, Context, Local, Method, Requires, Server, Term
from shared_components.core.partition import Role, everything
from shared_components.core.ranges import FromZero, Mode, Share, ShareAboveZero


def build(
    *, mode: Mode = "corrected", margin: FromZero = 0.03, keep: ShareAboveZero = 0.8, decay: Share = 0.99
) -> Method:
    """Return FedLD: a penalty on confident predictions, and a server that keeps principal directions of the changes.

    Args:
        mode: ``corrected``: the squared norm in the margin term is a mean over pixels. ``as_released``: it is a sum
        over the batch, as for classification, and grows with the frame size.
        margin: Weight of the margin term; 0.03 as released, 0 disables it.
        keep: Share of the principal directions that the server keeps; 0.8 as released.
        decay: Decay of the history of changes per round; 0.99 as released.
    """
    return Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=LayerwiseDecomposition(keep, decay)),
        local=Local(objective=Margin(margin, whole_batch=mode == "as_released")),
        requires=Requires(kinds=("segmentation",)),
        about=About(
            label="FedLD",
            paper="Zeng et al., MICCAI 2024",
            idea="The loss penalises overconfidence, and the server keeps the principal directions of the changes.",
            objective="segmentation loss + log(1 + squared norm of the probabilities)",
            aggregator="sites' changes rebuilt from principal directions, per tensor",
            secure_sums="no: the decomposition needs each site's change",
        ),
    )


@dataclass(frozen=True)
class Margin:
    """Objective: the task's loss + lambda log(1 + ||softmax||^2)."""

    weight: float
    whole_batch: bool

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        logits = network(batch["image"])
        terms = [Term("segmentation", context.task.loss(logits, batch))]
        if self.weight == 0:
            return terms
        margin = squared_probability(logits, self.whole_batch).log1p()  # log(1 + ||p||^2)
        return [*terms, Term("margin", self.weight * margin)]


def squared_probability(logits: Tensor, whole_batch: bool = False) -> Tensor:
    """Return the squared norm of the probabilities: the mean over pixels, in [1 / C, 1], or the sum over the batch."""
    squares = logits.float().softmax(1).square().sum(1)  # (B, C, H, W) -> (B, H, W)
    return squares.sum() if whole_batch else squares.mean()
