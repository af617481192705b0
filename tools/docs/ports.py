"""docs/ports.md: every port and every Secret of a run, read from what the operator's builders make. Called by `__main__`.

A manifest that asks for everything is rendered; ports, Secrets and mounts are those of the rendered pods, callers those of the network policies. What
a port or a Secret is for is said here, and one that is not known here is an error.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tools.docs.tables import GENERATED, table

from shoal.contracts.hosts import LINK_PORT, RENDEZVOUS_PORT, STATE_PORT
from shoal.contracts.relays import OUTSIDE_PORT
from shoal.orchestrator.metrics import NODE_METRICS_PORT
from shoal_operator.api.manifest import load_manifest
from shoal_operator.children import names
from shoal_operator.children.network import EDGES
from shoal_operator.install import PORT as OPERATOR_PORT
from shoal_operator.render import render

MINIO_PORT = 9000
"""As charts/shoal/templates/minio.yaml has it; a test compares."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster" / "trainingrun.yaml"

SERVES = {
    "redis": "leases, queues, registrations; can be rebuilt from the store",
    "orchestrator": "signed HTTP API, health, metrics",
    "discovery": "signed HTTP API, health, metrics",
    "nginx": "weights to who has a relay token",
    "trainer": "health, metrics",
    "publisher": "health, metrics",
    "sync": "health, metrics",
    "agent": "health, metrics",
    "fetch": "health, metrics",
    "worker": "health, metrics",
    "validator": "health, metrics",
    "runner": "programs to judge, health, metrics",
    "lighthouse": "who meets whom in a round of islands",
    "tracker": "health",
    "ui": "the page of the run, to who has its token; health",
}
SECRETS = {
    "<run>-run-key": ("operator", "`run.pem`: signs the roster"),
    "<run>-run-key-2": ("operator", "`run.pem`: the run key after it; may be kept elsewhere ([why](security.md#replace-a-key))"),
    "<run>-roster": ("operator", "`roster.json`: who holds which key, signed; nothing secret"),
    "<run>-orchestrator-key": ("operator", "`role.pem`: signs ledger and invites; `run_secret`: beacons, grants; `admin_token`: for admins"),
    "<run>-discovery-key": ("operator", "`role.pem`: the role's key"),
    "<run>-trainer-key": ("operator", "`role.pem`: signs policy versions"),
    "<run>-relay-key": ("operator", "`role.pem`: signs questions to the orchestrator and the origin"),
    "<run>-validator-key": ("operator", "`role.pem`: signs cards of validators' own keys"),
    "<run>-<island>-key": ("operator", "`island.pem`: signs what one island says to the others (`trainer.islands`)"),
    "<run>-<pool>-ticket": ("operator", "`ticket`: by which the pool's own pods prove themselves"),
    "<run>-ui-token": ("operator", "`token`: of who looks at the page of the run (`spec.ui`)"),
    "<credentialsSecret>": ("you, or the chart", "`accessKey`, `secretKey` of the object store (`spec.storage.s3.credentialsSecret`)"),
    "<ui.credentialsSecret>": ("you", "the same of someone who may only read the run's store (`spec.ui.credentialsSecret`)"),
    "<tlsSecret>": ("you, or cert-manager", "`tls.crt`, `tls.key` of the relays' HTTPS (`exposure.tlsSecret`)"),
}  # fmt: skip


def everything() -> list[dict[str, Any]]:
    """Objects of a run with every part: S3 store, runners, relays with HTTPS, a pool of its own, the page, trackers."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    spec = manifest["spec"]
    spec["tasks"]["environment"] = "code"
    spec["relayServer"]["exposure"] = {"type": "LoadBalancer", "tlsSecret": "tls"}
    spec["inferencePools"] = [{"name": "pool"}]
    spec["ui"] = {"credentialsSecret": "rollout-reader"}
    spec["trackers"] = {"tensorboard": {}}
    [run] = load_manifest(yaml.safe_dump(manifest), "ports")
    kept = ("mode", "model", "tasks", "steps", "storage")
    of_islands = {key: value for key, value in spec.items() if key in kept} | {
        "mode": "SFT",
        "sft": {"dataset": {"path": "/data"}},
        "trainer": {"islands": {"count": 2}},
    }
    [islands] = load_manifest(yaml.safe_dump(manifest | {"spec": of_islands}), "islands")
    both: list[dict[str, Any]] = render(run)  # type: ignore[arg-type]  # both manifests are of runs
    return both + [
        made
        for made in render(islands)  # type: ignore[arg-type]  # the same
        if made["metadata"]["labels"][names.COMPONENT_LABEL] in ("island", "lighthouse")
        or made["metadata"]["name"].startswith(f"{manifest['metadata']['name']}-trainer-")
        or "-island-" in made["metadata"]["name"]
    ]


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(component, pod spec) of every object with a pod template."""
    for made in objects:
        if "template" in made.get("spec", {}):
            template = made["spec"]["template"]
            yield template["metadata"]["labels"][names.COMPONENT_LABEL], template["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def ports_page() -> str:
    """The whole page."""
    objects = everything()
    lines = ["# Ports and secrets", "", GENERATED, ""]
    lines += [
        "## Ports",
        "",
        "The pods of a run by container, then the chart's own. NetworkPolicies admit only the named callers and kubelets' probes. They admit",
        "the operator from its own namespace only; one that runs outside of the cluster makes policies for any namespace. The chart's",
        "`metrics.runMonitor.prometheusNamespace`, or a policy of yours, admits Prometheus. With `networkPolicy.enabled: false` any pod may",
        "connect to MinIO too.",
        "",
    ]
    lines += table(("port", "pod", "container", "serves", "who may connect"), _ports(objects))
    lines += [
        "With `exposure`, clients outside reach discovery, orchestrator, relays and the page too ([my cluster](journeys/my-cluster.md)).",
        "",
    ]
    made = "The operator makes its Secrets when the run begins."
    later = "A [new key](security.md#replace-a-key) has a Secret of its own, whose name ends in its number."
    lines += ["## Secrets", "", f"{made} {later}", ""]
    lines += table(("Secret", "made by", "holds", "mounted by"), _secrets(objects))
    lines += [
        "A lost Secret cannot be made again with the same keys: back it up ([my cluster](journeys/my-cluster.md#upgrade-and-back-up)).",
        "A node's own key is not in a Secret: it is on the node's volume `key/`, or on the stranger's machine.",
        "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _ports(objects: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    found: dict[tuple[int, str, str], str] = {}
    for component, pod in pods(objects):
        for container in containers(pod):
            for declared in container.get("ports", []):
                found[declared["containerPort"], component, container["name"]] = SERVES[container["name"]]
    rows: list[tuple[object, ...]] = []
    for (number, component, name), serves in sorted(found.items()):
        callers = [caller for caller, target, named in EDGES if (target, named) == (component, name)]
        if component == "orchestrator":
            callers.append("operator")
        if component == "ui":
            callers.append("any pod of the cluster but the run's own")
        who = ", ".join(callers) or ("Prometheus, if let in" if "metrics" in serves else "nobody")
        rows.append((number, component, name, serves, who))
    rows.append((OUTSIDE_PORT, "relay", "nginx", "weights over HTTPS, where `exposure` has a `tlsSecret`", "anyone"))
    rows.append(
        (
            names.RENDEZVOUS_PORT,
            "trainer",
            "trainer",
            "torchrun's rendezvous; collectives choose further ports",
            "trainer",
        )
    )
    hosts = "pods of the same pool, with `engine.hosts`"
    rows.append((LINK_PORT, "pool", "worker", "the link between the hosts of an engine", hosts))
    rows.append((RENDEZVOUS_PORT, "pool", "worker", "where vLLM's ranks meet; they choose further ports", hosts))
    rows.append((STATE_PORT, "pool", "agent", "to the engine's other agents: relays, a token for them, keys", hosts))
    rows.append((NODE_METRICS_PORT, "orchestrator", "orchestrator", "metrics of single nodes", "Prometheus, if let in"))
    rows.append((OPERATOR_PORT, "operator", "operator", "health, metrics", "any pod of the cluster"))
    rows.append(
        (
            MINIO_PORT,
            "minio",
            "minio",
            "S3, of the chart's own store (`minio.enabled`)",
            "pods of every run, the Job that makes the bucket",
        )
    )
    return rows


def _secrets(objects: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    run = next(made["metadata"]["name"] for made in objects if made["kind"] == "Validator").removesuffix("-validator")
    mounted: dict[str, list[str]] = {name: [] for name in SECRETS}
    for component, pod in pods(objects):
        for volume in pod.get("volumes", []):
            for name in _secret_names(volume):
                holders = [
                    container["name"]
                    for container in containers(pod)
                    if volume["name"] in {mount["name"] for mount in container["volumeMounts"]}
                ]
                mounted[general(name, run)].extend(f"{component}/{holder}" for holder in holders)
    for made in objects:
        if made["kind"] == "Secret" and general(made["metadata"]["name"], run) not in SECRETS:
            raise ValueError(f"tools/docs/ports.py does not know the Secret {made['metadata']['name']}")
    return [
        (f"`{name}`", by, holds, ", ".join(dict.fromkeys(mounted[name])) or "no pod")
        for name, (by, holds) in SECRETS.items()
    ]


def general(name: str, run: str) -> str:
    """A Secret's name with the names of run and pool left open."""
    if name.endswith("-ticket"):
        return "<run>-<pool>-ticket"
    if name.startswith(f"{run}-island-"):
        return "<run>-<island>-key"
    own = {"rollout-store": "<credentialsSecret>", "rollout-reader": "<ui.credentialsSecret>", "tls": "<tlsSecret>"}
    return own.get(name, name.replace(run, "<run>"))


def _secret_names(volume: dict[str, Any]) -> list[str]:
    if "secret" in volume:
        return [volume["secret"]["secretName"]]
    sources = volume.get("projected", {}).get("sources", [])
    return [source["secret"]["name"] for source in sources if "secret" in source]
