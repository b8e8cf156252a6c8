"""Record training steps as CUDA graphs: one launch instead of thousands of small kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

WARM_UP = 3  # steps before a recording, in which libraries choose their kernels
Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


@dataclass(frozen=True)
class Recording:
    """A graph, the tensors that it reads and the one that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    result: Tensor

    def replay(self, batch: Mapping[str, Tensor]) -> Tensor:
        for name, value in batch.items():
            self.inputs[name].copy_(value, non_blocking=True)
        self.graph.replay()
        return self.result


class Graphs:
    """Takes steps on batches by recordings, one for each shape of a batch; the first call with a shape records.

    Args:
        take: Takes a step on a batch and returns a tensor. It may read no values back from the GPU, and what it does
            may follow from shapes alone; learning rates and the like are tensors.
        undo: Takes back the steps that were taken since it was made.
    """

    def __init__(self, take: Callable[[Mapping[str, Tensor]], Tensor], undo: Callable[[], Callable[[], None]]) -> None:
        self._take, self._undo = take, undo
        self._recordings: dict[Shapes, Recording] = {}

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor:
        shapes = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        if shapes not in self._recordings:
            self._recordings[shapes] = self._record(batch)
        return self._recordings[shapes].replay(batch)

    def _record(self, batch: Mapping[str, Tensor]) -> Recording:
        inputs = {name: value.clone() for name, value in batch.items()}
        undo, aside = self._undo(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self._take(inputs)
            undo()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside):
            result = self._take(inputs)
        return Recording(graph, inputs, result)
