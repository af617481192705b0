"""Helpers of other folders with which pages are followed: joined machines, a control plane."""

import sys
from pathlib import Path

for _folder in ("agent", "operator/cluster"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))
