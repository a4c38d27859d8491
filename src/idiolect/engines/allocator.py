"""Memory that steps free is kept for the next step."""

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_KEPT_BYTES = 512 * 2**20


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library not to return freed blocks to the system at once; False where it cannot.

    By default glibc maps every block above 128 kB anew and unmaps it when it is freed, so each temporary of
    each step is faulted in page by page: up to half of the time of a round. With these settings blocks of
    up to 32 MB are reused, and at most 512 MB of freed memory stay with the process.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    )
