"""The operator: `python -m shoal_operator`, the entry point of its image. Reads the command line and the connection, runs until told to stop.

Exit codes: 0 stopped on SIGTERM or SIGINT, 2 the command line or the connection is wrong, 3 the Lease was lost.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import socket
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kubernetes.config.incluster_config import SERVICE_HOST_ENV_NAME
from pydantic import ValidationError

from shoal_operator.children.site import Site
from shoal_operator.engine.connection import NoApiServer, context_namespace, load_configuration
from shoal_operator.engine.election import ElectionTiming
from shoal_operator.engine.manager import Manager, Options
from shoal_operator.kopf_loop import KopfLoop
from shoal_operator.reconcile import reconcile

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NAMESPACE_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_WORKERS = 64
MIN_LEASE, MAX_LEASE = 5, 600
"""Seconds. A shorter Lease is lost to a slow answer; a longer one leaves a cluster without an operator."""

EXAMPLE = """example:
  python -m shoal_operator --namespace research --namespace staging
  python -m shoal_operator --all-namespaces --kubeconfig ~/.kube/config

Apply the CRDs first (crds/); python -m shoal_operator.install prints accounts, permissions and the Deployment.
"""


class JsonFormatter(logging.Formatter):
    """One JSON line an event, as the other processes of Shoal write."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m shoal_operator",
        description="Runs the Shoal operator: TrainingRun, InferencePool, RelayServer and Validator of shoal.dev/v1alpha1.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scope = made.add_mutually_exclusive_group(required=True)
    scope.add_argument("--namespace", action="append", metavar="NS", help="namespace to serve; repeatable")
    scope.add_argument(
        "--all-namespaces", action="store_true", help="serve every namespace (needs the cluster-wide install)"
    )
    made.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: the pod's account, KUBECONFIG, ~/.kube/config"
    )
    made.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: its current one")
    made.add_argument(
        "--lease-namespace", metavar="NS", help="where the Lease is; default: the operator's own namespace"
    )
    made.add_argument(
        "--workers",
        type=int,
        default=4,
        metavar="N",
        help="reconciles at the same time, 1 to 64 (default 4); from 2 on, at least half of them are free for edits",
    )
    made.add_argument(
        "--bind",
        default=os.environ.get("SHOAL_BIND", ""),
        metavar="ADDRESS",
        help="address that serves health and metrics (SHOAL_BIND, or all)",
    )
    made.add_argument(
        "--port", type=int, default=8080, metavar="PORT", help="port of /healthz, /readyz, /metrics (default 8080)"
    )
    made.add_argument(
        "--lease-seconds",
        type=int,
        default=ElectionTiming.duration,
        metavar="S",
        help=f"seconds until another replica replaces a killed leader; a leader without the API server for four fifths "
        f"of them exits; {MIN_LEASE} to {MAX_LEASE} (default {ElectionTiming.duration})",
    )
    made.add_argument(
        "--runs", default="{}", metavar="JSON", help="defaults of this cluster for all runs; the chart's value `runs`"
    )
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def options(given: argparse.Namespace) -> Options:
    """The options of the engine from the command line; raises ValueError with what is allowed."""
    namespaces = sorted(set(given.namespace or ()))
    home = own_namespace(given.kubeconfig, given.context)
    lease_namespace = given.lease_namespace or home or context_namespace(given.kubeconfig, given.context)
    for namespace in (*namespaces, lease_namespace, *([home] if home else [])):
        if not NAMESPACE_PATTERN.fullmatch(namespace):
            raise ValueError(
                f"{namespace!r} is not a namespace: at most 63 characters of a-z, 0-9 and '-', with no '-' at either end"
            )
    if not 1 <= given.workers <= MAX_WORKERS:
        raise ValueError(f"--workers must be from 1 to {MAX_WORKERS}, got {given.workers}")
    if not 0 <= given.port <= 65535:
        raise ValueError(f"--port must be from 0 to 65535, got {given.port}")
    if not MIN_LEASE <= given.lease_seconds <= MAX_LEASE:
        raise ValueError(f"--lease-seconds must be from {MIN_LEASE} to {MAX_LEASE}, got {given.lease_seconds}")
    try:
        site = Site.model_validate_json(given.runs)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"--runs {where}: {first['msg']}; the chart's values.schema.json says what is allowed"
        ) from None
    return Options(
        site=site,
        namespaces=namespaces,
        lease_namespace=lease_namespace,
        home=home,
        # Unique to the process: a restarted one must not take itself for the leader that it was.
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        workers=given.workers,
        bind=given.bind,
        port=given.port,
        election=ElectionTiming.of(given.lease_seconds),
    )


def own_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace of this pod; empty outside a cluster, and in a pod that serves the cluster of a kubeconfig, whose namespaces are others."""
    if kubeconfig is not None or context is not None or SERVICE_HOST_ENV_NAME not in os.environ:
        return ""
    try:
        return OWN_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def start_logs(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf tells of every event that it passes on; what matters is said by the engine.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    start_logs(given.log_level)
    # kopf and every library in this process reach the API server and orchestrators directly.
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    try:
        chosen = options(given)
        configuration = load_configuration(given.kubeconfig, given.context)
        manager = Manager(configuration, chosen, reconcile)
    except (NoApiServer, ValueError, OSError) as error:
        print(f"shoal_operator: {error}", file=sys.stderr)
        return 2
    asyncio.run(KopfLoop(manager, configuration, chosen).run())
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Nothing is in hand any more; a thread that waits for the network must not hold the pod.
    os._exit(code)
