"""What a process of a job holds between its rounds: nothing of the last one.

FLARE's streams refer to themselves: each keeps its buffer of 1 MB, and what it has sent, until Python searches for such
circles. Python does so once there are a quarter more objects than before, which is dozens of rounds: with three sites a
search found 18 of these buffers in a server's process after the first round and 12 after the second.
"""

from __future__ import annotations

import ctypes
import gc
import sys

from nvflare.fuel.utils.memory_utils import cleanup_memory

LARGE = 2**18  # bytes
_MMAP_THRESHOLD = -3  # of mallopt, <malloc.h>


def spare_what_is_there() -> None:
    """Leave what there is at the first call, modules above all, out of every search."""
    if not gc.get_freeze_count():
        gc.freeze()


def keep_no_large_pieces() -> bool:
    """Let the C library (glibc) take every large piece from the system, and give it back as soon as it is free.

    It would raise the limit by itself with the first pieces that are freed, and then keep what was a model's tensors
    scattered between those of other threads' streams. For a server alone: where a network trains, pages that are new at
    every step would cost time.

    Returns:
        Whether it is so.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE))


def let_go() -> None:
    """Free what nothing but itself refers to, and give free memory back to the system where the C library can."""
    cleanup_memory()
