"""Threads fill a batch's memory in any order; samples that do not fit together are refused."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from shared_components.data.collate import BatchBuffer, BatchStream, to_numbers


def sample(number: int) -> dict[str, np.ndarray]:
    return {"label": np.full((2, 3), number, np.uint8), "depth": np.float32([number + 0.5]), "phase": np.array(number)}


def test_the_last_sample_gets_the_batch_in_order_of_places():
    buffer = BatchBuffer(3, pinned=False)
    assert [buffer.put(place, sample(place)) for place in (2, 0)] == [None, None]
    batch = buffer.put(1, sample(1))
    assert [(value.dtype, tuple(value.shape)) for value in batch.values()] == [
        (torch.uint8, (3, 2, 3)), (torch.float32, (3, 1)), (torch.int64, (3,)),
    ]  # fmt: skip
    assert batch["label"][:, 1, 2].tolist() == batch["phase"].tolist() == [0, 1, 2]
    assert batch["depth"].flatten().tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(("other", "expected"), [
    ({"label": np.zeros((4, 2, 3), np.uint8)}, r"label \(\(2, 3\), .*\) and \(\(4, 2, 3\), .*\)"),
    ({"depth": np.zeros(1)}, r"depth .*float32.* and .*float64"),
    ({"tools": np.zeros(2)}, r"tools None and \(\(2,\)"),
], ids=["shape", "type", "name"])  # fmt: skip
def test_samples_of_other_shapes_types_or_names_are_refused(other, expected):
    buffer = BatchBuffer(2, pinned=False)
    buffer.put(0, sample(0))
    with pytest.raises(ValueError, match=f"to a batch: {expected}.*; write batch_size: 1"):
        buffer.put(1, sample(1) | other)


def test_a_cpu_makes_a_batch_when_it_is_taken():
    calls = []
    take = BatchStream(torch.device("cpu")).make(lambda: calls.append(1) or {"image": torch.ones(1)})
    assert not calls and take() == {"image": torch.ones(1)} and calls == [1]


def test_a_gpu_gives_a_batch_to_the_callers_stream_after_its_own_work(monkeypatch):
    order = []

    class Stream:
        device = "cuda:0"

        def __init__(self, name):
            self.name = name

        def record_event(self):
            order.append("event")
            return "event"

        def wait_event(self, event):
            order.append(f"{self.name} waits for {event}")

    class Value:
        def record_stream(self, stream):
            order.append(f"memory waits for {stream.name}")

    @contextmanager
    def stream(chosen):
        order.append(f"in {chosen.name}")
        yield
        order.append(f"out of {chosen.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("own"))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("caller"))
    batch = {"image": Value(), "label": Value()}
    take = BatchStream(torch.device("cuda")).make(lambda: order.append("work") or batch)
    assert order == ["in own", "work", "event", "out of own"]
    assert take() is batch
    assert order[4:] == ["caller waits for event", "memory waits for caller", "memory waits for caller"]


def test_images_become_shares_of_one_and_ids_whole_numbers():
    batch = to_numbers(
        {"image": torch.tensor([0, 51, 255], dtype=torch.uint8), "label": torch.ones(1, dtype=torch.uint8)}
    )
    torch.testing.assert_close(batch["image"], torch.tensor([0.0, 0.2, 1.0]))
    assert batch["label"].dtype == torch.int64
