"""The node by hand: `up`, `down`, `load ARCHIVE...`, `status`; `snapshot FILE` notes what a node touches here, `compare FILE` says what changed.

.venv/bin/python -m e2e.nodes up
export KUBECONFIG=~/.cache/shoal/node/kubeconfig
"""

import argparse
import json
import sys
import time
from pathlib import Path

from e2e.nodes import host
from e2e.nodes.layout import Lacking
from e2e.nodes.node import Node


def main(arguments: list[str]) -> int:
    """Status 0; 1 when it went wrong or `compare` found a difference, 2 when this machine cannot hold a node."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.nodes", description="One real Kubernetes node on this machine."
    )
    parser.add_argument("verb", choices=("up", "down", "load", "status", "snapshot", "compare"))
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="for `load`: archives as `make images` leaves them in .cache/images; for `snapshot` and `compare`: one file",
    )
    given = parser.parse_args(arguments)
    if given.verb in ("snapshot", "compare") and len(given.files) != 1:
        parser.error(f"{given.verb} wants one file")
    node = Node()
    started = time.monotonic()
    try:
        if given.verb == "up":
            node.up()
            print(f"up after {time.monotonic() - started:.0f} s; export KUBECONFIG={node.layout.kubeconfig}")
        elif given.verb == "down":
            node.down()
            print(f"down after {time.monotonic() - started:.0f} s")
        elif given.verb == "load":
            for archive in given.files:
                print("\n".join(node.load(archive)))
        elif given.verb == "snapshot":
            given.files[0].write_text(json.dumps(host.snapshot(node.layout)))
        elif given.verb == "compare":
            changed = host.differences(json.loads(given.files[0].read_text()), host.snapshot(node.layout))
            for difference in changed:
                print(f"node: this machine is not as it was: {difference}", file=sys.stderr)
            return 1 if changed else 0
        else:
            for name, daemon in node.daemons.items():
                print(f"{name:26} {daemon.pid or '-'}")
    except Lacking as lacking:
        print(f"node: {lacking}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
