"""What an operator needs on a cluster, as YAML: `python -m shoal_operator.install --namespace research | kubectl apply -f -`.

ServiceAccount, permissions from `engine/permissions.py`, and the operator's own Deployment with its disruption budget. Namespaced: a Role in
each namespace that is served; cluster-wide: one ClusterRole. The Lease's Role is in the operator's namespace either way. Two ClusterRoles, which the
operator does not hold, give runs to people by Kubernetes' roles `view`, `edit` and `admin`. The CRDs are in `crds/`. The Helm chart
(`charts/shoal`) makes the same objects, which a test compares, from the same permissions. Builders are pure.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

import yaml

from shoal_operator.children.names import SOFTWARE_VERSION
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.permissions import CLUSTER_WIDE, OPERATOR_NAMESPACE, PEOPLE, WATCHED, rules
from shoal_operator.render import PlainDumper

NAME = "shoal-operator"
NAMESPACE = "shoal-system"
IMAGE = f"shoal/operator:{SOFTWARE_VERSION}"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "shoal"}
PORT = 8080
USER_ID = 10001
GRACE_SECONDS = 30
"""More than `engine.manager.GRACE_SECONDS`, and a few seconds to give the Lease back."""

EXAMPLE = """example:
  kubectl create namespace shoal-system
  kubectl apply --server-side -f crds/
  python -m shoal_operator.install --namespace research | kubectl apply --server-side -f -
"""


def objects(namespaces: Sequence[str], *, home: str = NAMESPACE, image: str = IMAGE) -> list[Object]:
    """All objects of an install.

    Args:
        namespaces: those that are served; none means all.
        home: the operator's own namespace.
    """
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(NAME, home)},
        *access(namespaces, home),
        *aggregated(),
        deployment(namespaces, home, image),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(NAME, home),
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}}},
        },
    ]


def access(namespaces: Sequence[str], home: str = NAMESPACE) -> list[Object]:
    """Roles and bindings of the operator's account: exactly those of the list, in the namespaces that need them."""
    made = _grant("Role", f"{NAME}-lease", home, home, rules(OPERATOR_NAMESPACE))
    for namespace in namespaces:
        made += _grant("Role", NAME, namespace, home, rules(WATCHED))
    if not namespaces:
        made += _grant("ClusterRole", NAME, None, home, rules((*WATCHED, *CLUSTER_WIDE)))
    return made


def aggregated() -> list[Object]:
    """What Kubernetes joins to its own roles for people. It gives nobody anything in a namespace where no such role is bound."""
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": f"shoal-{name}",
                "labels": {
                    "app.kubernetes.io/name": "shoal",
                    "app.kubernetes.io/part-of": "shoal",
                    **{f"{group}/aggregate-to-{role}": "true" for role in roles},
                },
            },
            "rules": rules(rows),
        }
        for name, (rows, roles) in PEOPLE.items()
    ]


def deployment(namespaces: Sequence[str], home: str, image: str) -> Object:
    """Two replicas under the restricted pod security standard; one leads, the other is warm."""
    scope = [word for namespace in namespaces for word in ("--namespace", namespace)] or ["--all-namespaces"]
    alive = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6}
    ready = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
    container = {
        "name": "operator",
        "image": image,
        "command": ["python", "-m", "shoal_operator"],
        "args": [*scope, "--port", str(PORT)],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "startupProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "periodSeconds": 2,
            "failureThreshold": 30,
        },
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "metrics"}, **alive},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, **ready},
        # 1,000 runs take 600 MiB, and 970 MiB where 20 namespaces are named (docs/adr/0147).
        "resources": {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
    }
    pod = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(NAME, home),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


def _grant(kind: str, name: str, namespace: str | None, home: str, granted: list[dict[str, list[str]]]) -> list[Object]:
    group = "rbac.authorization.k8s.io"
    metadata = _metadata(name, namespace)
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": granted},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": home}],
        },
    ]


def _metadata(name: str, namespace: str | None) -> Object:
    return {"name": name} | ({"namespace": namespace} if namespace else {}) | {"labels": dict(LABELS)}


def to_yaml(made: Iterable[Object]) -> str:
    """The objects as YAML documents, with keys in their usual order."""
    return yaml.dump_all(made, Dumper=PlainDumper, sort_keys=False, width=120)


def chart_permissions() -> str:
    """The rules for the Helm chart: `home` in the operator's own namespace, `watched` in those that it serves, `cluster` where it serves all;
    `people` by ClusterRole."""
    header = "# Made by `make crds` from operator/shoal_operator/engine/permissions.py: change it there.\n"
    people = {name: {"rules": rules(rows), "aggregateTo": list(roles)} for name, (rows, roles) in PEOPLE.items()}
    parts = {"home": OPERATOR_NAMESPACE, "watched": WATCHED, "cluster": CLUSTER_WIDE}
    return header + to_yaml([{name: rules(rows) for name, rows in parts.items()} | {"people": people}])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shoal_operator.install",
        description="Prints the operator's account, permissions and Deployment as YAML.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--namespace", action="append", metavar="NS", help="namespace to serve; repeatable")
    scope.add_argument("--all-namespaces", action="store_true", help="serve every namespace")
    scope.add_argument(
        "--permissions",
        action="store_true",
        help="print only the rules, as the chart's files/permissions.yaml has them (`make crds`)",
    )
    parser.add_argument(
        "--operator-namespace", default=NAMESPACE, metavar="NS", help=f"where the operator runs (default {NAMESPACE})"
    )
    parser.add_argument("--image", default=IMAGE, help=f"the operator's image (default {IMAGE})")
    given = parser.parse_args(arguments)
    if given.permissions:
        sys.stdout.write(chart_permissions())
        return 0
    namespaces = sorted(set(given.namespace or ()))
    sys.stdout.write(to_yaml(objects(namespaces, home=given.operator_namespace, image=given.image)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
