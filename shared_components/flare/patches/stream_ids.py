"""In every process: no two streams have one number.

FLARE 2.9 counts its streams under a lock and reads the count again after it: two threads that begin streams at once may
get the same number. The pieces of both then come to one place at the other end, which waits for a piece that
was taken for another's, and a site's answer hangs until somebody's patience ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from nvflare.fuel.f3.streaming import byte_streamer, stream_utils

from shared_components.flare.patches.replace import replace

ROOM = 1_000_000  # of numbers that the process may have given already


def count_streams() -> None:
    """Give each stream of this process a number of its own from now on."""
    replace(
        byte_streamer,
        "gen_stream_id",
        _count,
        sha256="53c9d4a01184d2f399a010f3ede287bb2fcdc9b25d4d6fc8652b343f2ca198da",
    )


def _count(_: object) -> Callable[[], int]:
    numbers = itertools.count(stream_utils.sid_base + ROOM)
    return lambda: next(numbers)
