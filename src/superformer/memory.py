"""Freed memory is kept for the next step instead of given back to the system.

A training step on a CPU frees and asks for the same few gigabytes again and again. The C library's allocator gives large blocks back to the
system each time and gets them anew, page by page; sub-networks of ever other sizes make that worse. In a supernet's step those page faults
can take a tenth of the time. The price: a process holds the most memory that it ever needed at once.
"""

from __future__ import annotations

import ctypes
import functools
import os

OFF = "SUPERFORMER_RETURN_MEMORY"
"""Set to 1, it leaves the allocator as it is."""
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h


@functools.cache
def keep_freed() -> bool:
    """From now on, in this process; whether the C library can (glibc can)."""
    if os.environ.get(OFF, "0") not in ("", "0"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
