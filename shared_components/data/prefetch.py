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
Place = TypeVar("Place")


@dataclass(frozen=True)
class _Drawn(Generic[Made, Place]):
    """A batch whose random numbers are drawn, and which is being made."""

    before: torch.Tensor  # state of the generator before and after the draws
    after: torch.Tensor
    place: Place  # place of the next batch
    futures: list[Future[Made]]


def prefetched(
    draw: Callable[[Place, torch.Generator], tuple[Sequence[Item], Place]],
    make: Callable[[Item], Made],
    *,
    place: Place,
    count: int,
    generator: torch.Generator,
    workers: int,
) -> Iterator[list[Made]]:
    """Yield ``count`` batches of made items, bit-equal for any number of ``workers`` (threads; 0: none).

    ``draw`` draws the items of one batch and returns them with the place of the next batch, for example in the order of
    the samples. ``make`` makes an item without random numbers. Batches are drawn ahead from a copy of the generator.
    If the consumer draws from the generator between two batches, the batches drawn ahead are dropped, and from then on
    only the items of one batch are made in parallel.
    """
    if not workers:
        for _ in range(count):
            items, place = draw(place, generator)
            yield [make(item) for item in items]
        return
    scout, queue, ahead = torch.Generator(generator.device), deque[_Drawn[Made, Place]](), AHEAD
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prefetch")

    def submit(before: torch.Tensor, start: Place) -> None:
        scout.set_state(before)
        items, following = draw(start, scout)
        queue.append(_Drawn(before, scout.get_state(), following, [pool.submit(make, item) for item in items]))

    try:
        for left in range(count, 0, -1):
            now = generator.get_state()
            if queue and not torch.equal(queue[0].before, now):
                for future in (future for drawn in queue for future in drawn.futures):
                    future.cancel()
                queue.clear()
                ahead = 0
            if not queue:
                submit(now, place)
            while len(queue) < min(1 + ahead, left):
                submit(queue[-1].after, queue[-1].place)
            first = queue.popleft()
            generator.set_state(first.after)
            place = first.place
            yield [future.result() for future in first.futures]
    finally:
        pool.shutdown(cancel_futures=True)
