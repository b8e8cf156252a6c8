"""Networks that are called by CUDA graphs in training; a stand-in captures, since tests run without a GPU."""

import pytest
import torch
from torch import Tensor, nn

from shared_components.experiments.pretraining.graphs import use_graphs


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.weight * x


@pytest.fixture
def captured(monkeypatch) -> list[tuple[Tensor, ...]]:
    """Return the inputs that were captured with; a capture answers by the weights and never by the network."""
    found = []

    def capture(callable_, samples, *, allow_unused_input):
        found.append(samples)
        (weight,) = callable_.parameters()  # as the real one, it finds them in the module
        assert callable_.training and torch.equal(callable_(*samples), weight * samples[0])
        return lambda x: weight * x

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    return found


def test_one_graph_is_captured_for_each_shape_of_its_own_memory_and_learns_on(captured):
    network = Doubling()
    use_graphs(network)
    small, large = torch.ones(2), torch.ones(3)
    for x in (small, large, small):
        assert torch.equal(network(x), 2 * x)
    assert [samples[0].shape for samples in captured] == [small.shape, large.shape]
    assert captured[0][0].data_ptr() != small.data_ptr()
    network(small).sum().backward()
    assert network.weight.grad == 2
    with torch.no_grad():
        network.weight += 1
    assert torch.equal(network(small), 3 * small)
    assert network.calls == 2  # while capturing


def test_evaluation_and_copies_of_the_weights_see_the_plain_network(captured):
    network = Doubling()
    use_graphs(network)
    network.eval()
    assert torch.equal(network(torch.ones(2)), torch.full((2,), 2.0)) and network.calls == 1 and not captured
    assert list(network.state_dict()) == ["weight"]
