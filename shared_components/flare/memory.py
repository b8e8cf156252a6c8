"""Free the memory of a round when the round ends.

FLARE's streams are reference cycles: each keeps its buffer of 1 MB, and what it has sent, until Python's garbage
collector runs. That happens once there are a quarter more objects than before, which takes dozens of rounds: with three
sites a collection found 18 of these buffers in a server's process after the first round and 12 after the second.
"""

import ctypes
import functools
import gc
import sys

from nvflare.fuel.utils.memory_utils import cleanup_memory

LARGE = 2**18  # bytes
_MMAP_THRESHOLD = -3  # of mallopt, <malloc.h>


@functools.cache
def spare_what_is_there() -> None:
    """Exclude the objects that exist at the first call, mostly modules, from garbage collection."""
    gc.freeze()


def keep_no_large_pieces() -> bool:
    """Make glibc map every large allocation by itself and unmap it when freed; return whether it was possible.

    By default glibc raises its threshold with the first large blocks that are freed, and then keeps a model's tensors
    scattered between the buffers of other threads' streams. For a server alone: where a network trains, fresh pages at
    every step would cost time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE))


def let_go() -> None:
    """Collect garbage, and return free memory to the system where the C library can."""
    cleanup_memory()
