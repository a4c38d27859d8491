"""`python -m idiolect.silo.launch PROGRAM ARGUMENTS`: be a program of Flower's that ends with its parent.

A SuperNode that outlived its silo would be taken for the silo itself, and the next one for a double. (Not in
`preexec_fn`: gRPC does not survive the fork that this needs.)
"""

import ctypes
import runpy
import signal
import sys
from pathlib import Path

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl.h

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    del sys.argv[0]
    if Path(sys.argv[0]).name == "flower-supernode":
        # Flower's other programs do without these, and without the time that their import takes.
        from idiolect.silo.pauses import shorten_pauses_of_supernode

        shorten_pauses_of_supernode()
    runpy.run_path(sys.argv[0], run_name="__main__")
