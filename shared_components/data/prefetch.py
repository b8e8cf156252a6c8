"""Make random batches in threads before they are needed, with the random numbers of a run without threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

AHEAD = 2  # batches that wait for their use

Item = TypeVar("Item")
Made = TypeVar("Made")
Inputs = TypeVar("Inputs")
Place = TypeVar("Place")


@dataclass(frozen=True)
class Plan(Generic[Item, Inputs, Place]):
    """The random numbers of one batch."""

    items: Sequence[Item]
    inputs: Inputs  # for the whole batch
    place: Place  # of the next batch, for example in the order of the samples


@dataclass(frozen=True)
class _Batch(Generic[Item, Made, Inputs, Place]):
    """A batch that is being made."""

    before: torch.Tensor  # state of the generator before and after the draws
    after: torch.Tensor
    plan: Plan[Item, Inputs, Place]
    futures: list[Future[Made]]


def prefetched(
    draw: Callable[[Place, torch.Generator], Plan[Item, Inputs, Place]],
    make: Callable[[Item], Made],
    *,
    place: Place,
    count: int,
    generator: torch.Generator,
    workers: int,
) -> Iterator[tuple[list[Made], Inputs]]:
    """Yield the made items and the inputs of ``count`` batches, bit-equal for any number of ``workers`` (threads).

    ``draw`` draws one batch at a place; ``make`` makes an item without random numbers. Batches are drawn ahead from a
    copy of the generator. If the consumer draws from the generator between two batches, the batches drawn ahead are
    dropped, and from then on only the items of one batch are made in parallel.
    """
    if not workers:
        for _ in range(count):
            plan = draw(place, generator)
            place = plan.place
            yield [make(item) for item in plan.items], plan.inputs
        return
    scout, queue, ahead = torch.Generator(generator.device), deque[_Batch[Item, Made, Inputs, Place]](), AHEAD
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")

    def submit(before: torch.Tensor, start: Place) -> None:
        scout.set_state(before)
        plan = draw(start, scout)
        queue.append(_Batch(before, scout.get_state(), plan, [pool.submit(make, item) for item in plan.items]))

    try:
        for left in range(count, 0, -1):
            now = generator.get_state()
            if queue and not torch.equal(queue[0].before, now):
                for future in (future for batch in queue for future in batch.futures):
                    future.cancel()
                queue.clear()
                ahead = 0
            if not queue:
                submit(now, place)
            while len(queue) < min(1 + ahead, left):
                submit(queue[-1].after, queue[-1].plan.place)
            first = queue.popleft()
            generator.set_state(first.after)
            place = first.plan.place
            yield [future.result() for future in first.futures], first.plan.inputs
    finally:
        pool.shutdown(cancel_futures=True)
