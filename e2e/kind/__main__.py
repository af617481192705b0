"""The cluster by hand: `up`, `load ARCHIVE...`, `down`, `status`; `snapshot FILE` and `compare FILE` as `python -m e2e.nodes` has them.

.venv/bin/python -m e2e.kind up
export KUBECONFIG=~/.cache/shoal/kind/kubeconfig
"""

import argparse
import json
import sys
import time
from pathlib import Path

from e2e import ROOT
from e2e.kind import cluster, machine
from e2e.nodes.host import differences
from e2e.nodes.layout import Lacking


def main(arguments: list[str]) -> int:
    """Status 0; 1 when it went wrong or this machine is not as it was, 2 when it lacks something."""
    parser = argparse.ArgumentParser(prog="python -m e2e.kind", description="A cluster of kind's on this machine.")
    parser.add_argument("verb", choices=("up", "load", "down", "status", "snapshot", "compare"))
    parser.add_argument(
        "files", nargs="*", type=Path, help="archives for `load`; one file for `snapshot` and `compare`"
    )
    given = parser.parse_args(arguments)
    if given.verb in ("snapshot", "compare") and len(given.files) != 1:
        parser.error(f"{given.verb} wants one file")
    started = time.monotonic()
    try:
        if given.verb == "up":
            cluster.up(ROOT / ".cache" / "e2e" / "kind")
            print(f"up after {time.monotonic() - started:.0f} s; export KUBECONFIG={cluster.KUBECONFIG}")
        elif given.verb == "load":
            cluster.load(given.files)
        elif given.verb == "status":
            for name, pid in cluster.status().items():
                print(f"{name:26} {pid or '-'}")
        elif given.verb == "snapshot":
            given.files[0].write_text(json.dumps(machine.snapshot()))
        else:
            compared = given.verb == "compare"
            left = (
                differences(json.loads(given.files[0].read_text()), machine.snapshot()) if compared else cluster.down()
            )
            for each in left:
                print(f"kind: this machine is not as it was: {each}", file=sys.stderr)
            return 1 if left else 0
    except Lacking as lacking:
        print(f"kind: {lacking}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"kind: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
