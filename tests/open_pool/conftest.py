"""Helpers of other folders that these tests stand on: a whole local system, certificates."""

import sys
from pathlib import Path

for _folder in ("system", "broadcast"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))
