"""q-FedAvg: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020 (arXiv 1905.10497), Algorithm 2."""

from collections.abc import Iterable

import torch
from torch import nn

from shared_components.core.aggregators.site_weights import FairMean
from shared_components.core.aggregators.weight_averaging import SwaSettings, averaged
from shared_components.core.exchange import scalar
from shared_components.core.method import About, Batch, Context, Extras, Local, Method, Server
from shared_components.core.objectives import as_received
from shared_components.core.partition import Partition, Role, everything
from shared_components.core.ranges import AboveZero, Count, FromZero, Mode


def build(
    *,
    mode: Mode = "corrected",
    q: FromZero = 0.2,
    learning_rate: AboveZero = 100.0,
    loss_images: Count | None = None,
    swa: SwaSettings = None,
) -> Method:
    """Return q-FedAvg: sites with a larger loss weigh more in the shared model.

    Args:
        mode: ``corrected`` uses each site's own loss; ``as_released`` (Flower) uses one loss for all sites.
        q: Exponent of the losses. 0 weighs all sites equally; a larger q gives sites with a large loss more weight.
        learning_rate: 1 / L; a larger value shortens the step less.
        loss_images: Number of training frames in F_k, the loss of the received model; None: all frames.
    """
    method = Method(
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=FairMean(q, 1 / learning_rate, released=mode == "as_released")),
        local=Local(measure=received_loss, measure_images=loss_images, extras={"loss": scalar}),
        about=About(
            label="q-FedAvg",
            paper="Li et al., ICLR 2020, arXiv 1905.10497",
            idea="As FedAvg, but hospitals with a higher loss count more, so that scores become more even.",
            aggregator="mean of changes weighted by loss^q, step reduced by norms",
            secure_sums="no: the server uses each site's Delta_k and h_k",
        ),
    )
    return averaged(method, swa, "qfedavg")


@torch.no_grad()
def received_loss(network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition) -> Extras:
    """Return F_k: the received model's loss, averaged over the frames."""
    before = as_received(network, context, partition)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        loss = context.task.loss(context.task.predict(before, batch), batch)
        total += loss.double().cpu() * len(batch["image"])
        count += len(batch["image"])
    return {"loss": {"value": total / max(count, 1)}}
