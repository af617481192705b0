"""The base model of examples/arithmetic, for tests whose subject is what comes after it: its warm start takes a minute of a core.

Made as prepare makes it, once for all test runs with the same code, and kept in `.cache/tests`. What makes it has tests of its own
(tests/environments/test_prepare.py), and tests/system/test_generate.py begins with a warm start.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from forked_python import TRAINER, run_python
from servers import ROOT

MAKE_SECONDS = 400.0
CODE = ("workloads/shoal", "operator/shoal_operator", "benchmarks/trust")
"""What makes the model, and the settings of its run."""
MAKE = """
import sys
from pathlib import Path
from benchmarks.trust.in_process import paper_config
from benchmarks.trust.models import make_base
make_base(paper_config(), Path(sys.argv[1]))
"""


def warm_model() -> Path:
    """The folder of the checkpoint, which nobody may change. Who comes first makes it, and others wait."""
    home = ROOT / ".cache" / "tests"
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"warm-model-{_digest()}"
    with (home / "warm-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for older in home.glob("warm-model-*"):  # those that were not finished too
                shutil.rmtree(older)
            partial = Path(tempfile.mkdtemp(prefix="warm-model-", dir=home)) / "model"
            settings = os.environ | {"OMP_NUM_THREADS": "1"}
            done = run_python(["-c", MAKE, str(partial)], TRAINER, env=settings, timeout=MAKE_SECONDS, cwd=ROOT)
            assert done.returncode == 0, done.stderr[-4000:]
            partial.rename(folder)
            partial.parent.rmdir()
    return folder


def _digest() -> str:
    """Of all that the model may depend on."""
    found = hashlib.sha256()
    code = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in [ROOT / "requirements/dev.lock", ROOT / "examples/arithmetic/trainingrun.yaml", *code]:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
