"""Calls of a network whose rows two processes share: outputs, gradients and statistics as in one process."""

import copy
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn

from shared_components.core import replicas
from shared_components.core.objectives import SharpnessAware

ROWS = 5  # divided 3 + 2
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these processes are for machines without a GPU")


class Net(nn.Module):
    """A network with batch statistics, whose result is a dictionary, and with clips that become rows."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.dropout = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.0)
        self.clips, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def encode(self, image):
        return self.dropout(self.norm(self.first(image)).relu().mean((2, 3)))  # (B, 3, H, W) -> (B, 4)

    def decode(self, features):
        pairs = self.clips(features.repeat_interleave(2, 0))  # (B, 4) -> (2 B, 4)
        return {"pred": self.last(pairs.view(-1, 2, 4).mean(1))}

    def forward(self, image):
        return self.decode(self.encode(image))["pred"]


def made(dropout=0.0):
    torch.manual_seed(0)
    network = Net()
    network.dropout.p = dropout
    return network, torch.rand(ROWS, 3, 6, 6)


def steps(network, image):
    """Return the outputs and all tensors after two steps of a loss that is no mean over rows."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with replicas.divided(network):
            whole = network(image)
            features = network.encode(image)
            mixed = network.decode(features.flip(0))["pred"]  # rows change the process
            few = network.eval()(image[:1])  # fewer rows than processes
            network.train()
        penalty = sum(p.square().sum() for p in network.parameters())
        loss = whole.softmax(1).mean(0).log().sum() + (mixed * whole).std() + few.sum() + 0.1 * penalty
        loss.backward()
        replicas.average_gradients(network)
        optimizer.step()
    return {"out": whole.detach(), **network.state_dict()}


def sharp(network, image):
    """Return all tensors after a step of SAM, which needs the norm of the mean gradient and returns the loss."""
    context: Any = SimpleNamespace(generator=torch.Generator())

    def backward():
        with replicas.divided(network):
            loss = network(image).softmax(1).mean(0).log().sum()
        network.zero_grad()
        loss.backward()
        replicas.average_gradients(network)
        return {"loss": loss.item()}

    losses = SharpnessAware(rho=0.5)(network, backward, context)
    torch.optim.SGD(network.parameters(), 0.1).step()
    return {"loss": torch.tensor(losses["loss"]), **network.state_dict()}


def masked():
    """Return the outputs of equal frames with dropout, and the random numbers that the process draws afterwards."""
    network, image = made(dropout=0.5)
    network.eval().dropout.train()
    with replicas.divided(network):
        return {"out": network.encode(image[:1].expand(ROWS, -1, -1, -1)).detach(), "next": torch.rand(3)}


def unfit(network, image):
    """Return the error for an output without a row per frame."""
    network.first.forward = lambda image: image.mean().view(1, 1, 1, 1).expand(1, 4, 2, 2)
    with (
        replicas.divided(network),
        pytest.raises(ValueError, match=r"Net has an output \(1, 4\), not a row per sample"),
    ):
        network.eval().encode(image)
    network.stages_first = True
    with pytest.raises(ValueError, match="Net's outputs do not begin with the rows"), replicas.divided(network):
        pass


def batch(rank):
    """Return the whole batch of rows that each process reads in part."""
    image = torch.arange(ROWS * 4.0).view(ROWS, 4)
    own = {"image": image[replicas.own_rows(ROWS)], "label": image[replicas.own_rows(ROWS)] > 3}
    gathered = replicas.whole_batch(own, ROWS)
    with pytest.raises(ValueError, match="do not stack"):
        replicas.whole_batch({"image": torch.zeros(3 - rank, 1 + rank)}, ROWS)
    return gathered


def work(folder, rank):
    """Compute everything in one of two processes."""
    torch.set_num_threads(1)
    replicas.join(folder, rank=rank, size=2)
    with replicas.training_in(rank=rank, size=2):
        results = {"steps": steps(*made()), "sharp": sharp(*made()), "masked": masked(), "batch": batch(rank)}
        unfit(*made())
        network, _ = made()
        if rank:
            nn.init.zeros_(network.first.weight)
        with pytest.raises(RuntimeError, match="differ after training"):
            replicas.refuse_unequal(network)
        replicas.align(network)
        replicas.refuse_unequal(network)
        results["aligned"] = {"first": network.first.weight.detach(), "value": replicas.value_of_first(rank + 0.5)}
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return the results of two processes."""
    folder = tmp_path_factory.mktemp("two replicas")
    code = f"from pathlib import Path; from {__name__} import work; work(Path({str(folder)!r}), {{}})"
    root = str(Path(__file__).parents[2])
    started = [
        subprocess.Popen([sys.executable, "-c", code.format(rank)], env=os.environ | {"PYTHONPATH": root})
        for rank in (0, 1)
    ]
    assert [process.wait() for process in started] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("work", [steps, sharp])
def test_two_processes_compute_and_step_as_one(both, work):
    first, second = (results[work.__name__] for results in both)
    torch.testing.assert_close(first, work(*made()), rtol=1e-5, atol=1e-6)
    assert all(torch.equal(first[name], second[name]) for name in first)  # bit by bit


def test_processes_have_other_dropout_masks_and_then_the_same_random_numbers(both):
    first, second = (results["masked"] for results in both)
    assert torch.equal(first["next"], second["next"]) and torch.equal(first["out"], second["out"])
    masks = [row.bool() for row in first["out"]]
    assert not torch.equal(torch.stack(masks[:2]), torch.stack(masks[3:]))  # first two rows of each process


def test_each_process_reads_its_rows_and_has_the_whole_batch(both):
    image = torch.arange(ROWS * 4.0).view(ROWS, 4)
    for results in both:
        assert torch.equal(results["batch"]["image"], image) and torch.equal(results["batch"]["label"], image > 3)


def test_the_weights_and_values_of_the_first_process_count(both):
    for results in both:
        assert torch.equal(results["aligned"]["first"], made()[0].first.weight)
        assert results["aligned"]["value"] == 0.5


def test_one_process_is_left_as_it_is():
    network, image = made()
    other = copy.deepcopy(network)
    with replicas.divided(network):
        assert type(network) is Net and replicas.own_rows(ROWS) == slice(0, ROWS)
        assert torch.equal(network(image), other(image))
    batch = {"image": image}
    assert replicas.whole_batch(batch, ROWS) == batch and replicas.value_of_first(2.0) == 2.0
    replicas.average_gradients(network), replicas.align(network), replicas.refuse_unequal(network)


@pytest.mark.parametrize("count, size, shares", [(5, 2, [3, 2]), (8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1])])
def test_rows_are_divided_without_a_rest(count, size, shares):
    rows = []
    for rank in range(size):
        with replicas.training_in(rank=rank, size=size):
            rows.append(list(range(count))[replicas.own_rows(count)])
    assert list(map(len, rows)) == shares and [*chain.from_iterable(rows)] == list(range(count))
