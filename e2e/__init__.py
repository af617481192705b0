"""End-to-end tests: real pods of real images on a real node. See README.md beside this file.

Some helpers of the tests that need no node are used here too (`servers`, `helm`, `kube_client`, `kueue_api`): their folders come onto the path.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

for _folder in (ROOT / "tests", ROOT / "tests" / "operator", ROOT / "tests" / "operator" / "cluster"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
