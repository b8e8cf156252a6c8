"""Free the memory of a round when the round ends.

FLARE's streams are reference cycles: each keeps its buffer of 1 MB, and the data that it has sent, until Python's
garbage collector runs, which may take dozens of rounds.
"""

import ctypes
import functools
import gc
import sys

from nvflare.fuel.utils.memory_utils import cleanup_memory

LARGE = 2**20  # bytes: most of a model's tensors, and FLARE's buffers, but not the blocks of a sum
_MMAP_THRESHOLD = -3  # of mallopt, <malloc.h>


@functools.cache
def freeze_objects() -> None:
    """Exclude the objects that exist at the first call, mostly modules, from garbage collection."""
    gc.freeze()


def keep_no_large_pieces() -> bool:
    """Make glibc map every large allocation separately and unmap it when freed; return whether this was possible.

    By default glibc raises its threshold when large blocks are freed, and then keeps a model's tensors scattered
    between the buffers of other threads. Use it only at a server: in training, fresh pages at every step would cost
    time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE))


def let_go() -> None:
    """Collect garbage, and return free memory to the system if the C library can."""
    cleanup_memory()
