"""The programs under benchmarks/ are imported as a package of the checkout's root."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
