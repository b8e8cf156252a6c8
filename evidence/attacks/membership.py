"""Membership inference: training frames have a lower loss (Yeom et al., CSF 2018, arXiv 1709.01604)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shared_components.core.task import Task
from shared_components.data.collate import collate
from shared_components.data.dataset import SampleDataset


def losses(network: nn.Module, state: Mapping[str, Tensor], task: Task, dataset: SampleDataset) -> list[float]:
    """Return the loss of every frame with a state in evaluation mode; the network's own state is restored."""
    own = {name: value.clone() for name, value in network.state_dict().items()}
    was = network.training
    network.load_state_dict(dict(state))
    network.eval()
    found = []
    with torch.no_grad():
        for item in dataset:
            batch = collate([item])
            found.append(float(task.loss(task.predict(network, batch), batch)))
    network.load_state_dict(own)
    network.train(was)
    return found
