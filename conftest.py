"""What pytest must not look into: scripts that measure, and modules that need Flower where there is none.

`make test` does not install it; which modules need it is read from their imports: a list would forget one.
"""

import re
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
NEEDS_FLOWER = re.compile(r"^(from|import) flwr\b", re.MULTILINE)

collect_ignore = [str(script) for script in HERE.glob("tests/*/measure_*.py")]
if find_spec("flwr") is None:
    collect_ignore += [
        str(module) for module in HERE.glob("src/**/*.py") if NEEDS_FLOWER.search(module.read_text())
    ]
