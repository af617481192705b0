"""The programs under benchmarks/ are imported as a package of the checkout's root, builders of documents from the report's tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "report")]
