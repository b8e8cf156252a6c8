"""Steps that are recorded and replayed; a stand-in records, since tests run without a GPU."""

import contextlib

import pytest
import torch

from shared_components.weights.pretraining.learner import WARM_UP, Graphs


@pytest.fixture
def recording(monkeypatch):
    """Let a "graph" be the work that was done while it was recorded, which a replay does again."""
    works = []

    class Graph:
        def replay(self) -> None:
            works[-1]()

    class Stream:
        def wait_stream(self, other) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: contextlib.nullcontext())
    return works


class Sum:
    """Adds what it is given to a weight, as recorded work does: by the tensors that it saw."""

    def __init__(self, works) -> None:
        self.weight, self.result, self.calls, self.works = torch.zeros(()), torch.zeros(()), 0, works

    def take(self, batch) -> torch.Tensor:
        self.calls += 1
        image = batch["image"]

        def work() -> None:
            self.weight += image.sum()
            self.result.copy_(self.weight)

        self.works.append(work)
        if self.calls % (WARM_UP + 1):  # the last call of a recording launches nothing
            work()
        return self.result

    def undo(self):
        kept = self.weight.clone()
        return lambda: self.weight.copy_(kept)


def test_a_step_reads_its_own_batch_and_warming_up_leaves_nothing_behind(recording):
    total = Sum(recording)
    graphs = Graphs(total.take, total.undo)
    assert float(graphs({"image": torch.full((2,), 3.0)})) == 6
    assert float(graphs({"image": torch.full((2,), 4.0)})) == 14
    assert total.calls == WARM_UP + 1


def test_another_shape_is_recorded_anew_and_goes_on_from_the_same_weights(recording):
    total = Sum(recording)
    graphs = Graphs(total.take, total.undo)
    graphs({"image": torch.ones(2)})
    assert float(graphs({"image": torch.ones(5)})) == 7
    assert total.calls == 2 * (WARM_UP + 1)
