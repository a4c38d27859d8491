"""The package that these tests are about is found in its folder beside them, unless it is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
