"""Where these tests find the helper modules of other folders."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("inference", "broadcast")]
