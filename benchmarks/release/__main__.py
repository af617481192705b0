"""What people install, and what it does without what it needs: `python -m benchmarks.release`, some three minutes.

`silent_cpu_fallbacks`: parts that go on without the GPU that they were promised, of all that compute; each is started by its real program on this
machine, which must have no GPU. `cli_install_mb`: the files of the CLI's extra alone in a fresh environment, MiB, with the verbs that work there.
`node_join_commands`: what the owner of a GPU types until a node works; `benchmarks.release.caps` has the error of caps.
Writes these keys to benchmarks/results/release.json and leaves others as they are.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "report")]

from accelerator_roles import ROLES, start
from benchmarks.release.cli_alone import install, verbs_that_work
from benchmarks.release.join_commands import join_commands
from shoal.accelerators import read_machine

RESULT = ROOT / "benchmarks" / "results" / "release.json"


def silent_fallbacks(scratch: Path) -> dict[str, bool]:
    """By role, whether it went on or ended without saying why. Raises SystemExit on a machine with a GPU, where nothing is shown."""
    if read_machine().cards:
        raise SystemExit("this machine has a GPU: what parts do without one cannot be seen here")
    ended = {role: start(command, scratch) for role, command in ROLES.items()}
    return {role: one.code == 0 or not one.said for role, one in ended.items()}


def record(**figures: Any) -> None:
    """Put figures into the result; those of other measurements stay."""
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    RESULT.write_text(json.dumps(found | figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-release-") as name:
        scratch = Path(name)
        record(node_join_commands=join_commands())
        silent = silent_fallbacks(scratch)
        record(silent_cpu_fallbacks=sum(silent.values()), silent_cpu_fallbacks_of=sorted(silent))
        program, megabytes = install(scratch)
        record(cli_install_mb=megabytes, cli_verbs=verbs_that_work(program, scratch))


if __name__ == "__main__":
    main()
