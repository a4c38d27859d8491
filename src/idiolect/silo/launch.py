"""`python -m idiolect.silo.launch PROGRAM ARGUMENTS`: become a program that ends when its parent is killed.

A SuperNode that outlived its silo would be taken for the silo itself, and the next one for a double. (Not in
`preexec_fn`: gRPC does not survive the fork that this needs.)
"""

import ctypes
import os
import signal
import sys

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.h

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    os.execv(sys.argv[1], sys.argv[1:])
