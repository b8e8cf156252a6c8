"""q-FedAvg measures its loss at what a site received, not at what it trained."""

import pytest
import torch
from torch import nn

from shared_components.core.extras import scalar
from shared_components.core.method import Context
from shared_components.core.partition import Role, cut, partition_network
from shared_components.methods.qfedavg import build
from tests.methods.toys import Plain


def frames(count=5, size=2):
    torch.manual_seed(0)
    image, label = torch.randn(count, 1, 2, 2), torch.randint(0, 2, (count, 2, 2))
    return [{"image": i, "label": y} for i, y in zip(image.split(size), label.split(size), strict=True)]


def site(network):
    partition = partition_network(network, build().partition)
    loss = nn.functional.cross_entropy
    return partition, Context(
        0, Plain(loss), torch.Generator(), received=cut(network.state_dict(), partition, Role.GLOBAL)
    )


def test_the_loss_is_that_of_the_received_weights_averaged_over_frames():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout(0.5)).train()
    partition, context = site(network)
    expected = 0.0
    for batch in frames(size=1):
        with torch.no_grad():
            expected += float(nn.functional.cross_entropy(network[0](batch["image"]), batch["label"])) / 5
    with torch.no_grad():
        network[0].weight.mul_(-3)  # "training"
    after = {name: value.clone() for name, value in network.state_dict().items()}
    found = build().local.measure(network, frames(), context, partition)
    assert float(found["loss"]["value"]) == pytest.approx(expected, rel=1e-5)
    assert network.training and all(torch.equal(after[n], v) for n, v in network.state_dict().items())
    scalar(found["loss"], {})


def test_all_frames_are_measured_unless_a_number_is_given():
    assert build().local.measure_images is None and build(loss_images=8).local.measure_images == 8
    assert set(build().local.extras) == {"loss"}
