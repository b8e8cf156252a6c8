"""In every process: give each stream a unique number.

FLARE 2.9 counts its streams under a lock and reads the count again after releasing it: two threads that begin streams
at once may get the same number. The receiver then mixes the pieces of both streams and waits for one that it has
assigned to the other, and a site's answer hangs until a timeout.
"""

import itertools
from collections.abc import Callable

from nvflare.fuel.f3.streaming import byte_streamer, stream_utils

from shared_components.flare.patches.replace import replace

SHA256 = "53c9d4a01184d2f399a010f3ede287bb2fcdc9b25d4d6fc8652b343f2ca198da"
ROOM = 1_000_000  # numbers that the process may have given out before


def count_streams() -> None:
    """Give each stream of this process a unique number from now on."""
    replace(byte_streamer, "gen_stream_id", _count, sha256=SHA256)


def _count(_: object) -> Callable[[], int]:
    numbers = itertools.count(stream_utils.sid_base + ROOM)
    return lambda: next(numbers)
