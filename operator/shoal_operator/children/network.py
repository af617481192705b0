"""Who may talk to whom: one NetworkPolicy that denies all, and one a component with the edges of docs/architecture.md. Pure.

A run's policies cover every pod that carries its label, those of pools and relays that others made too. Edges between two of our components are
written once, in `EDGES`: each becomes an ingress rule at one end and an egress rule at the other. Kubelets may always probe.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from shoal.contracts.storage import StorageSpec
from shoal_operator.api import TrainingRun
from shoal_operator.api.pods import OutwardTemplate, PrepareTemplate
from shoal_operator.api.relay_server import RelayFields
from shoal_operator.children import names
from shoal_operator.children.islands import fellow_runs, group_of, island_count, serves_lighthouse
from shoal_operator.children.relay_server import PORT, way_in_port
from shoal_operator.children.runner import runner_count
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Object

COMPONENTS = (
    "prepare", "redis", "discovery", "orchestrator", "trainer", "relay", "pool", "validator", "runner", "tracker", "ui", "island", "lighthouse",
)  # fmt: skip

Edge = tuple[str, str, str]

EDGES: tuple[Edge, ...] = (
    ("discovery", "redis", "redis"),
    ("orchestrator", "redis", "redis"),
    ("orchestrator", "discovery", "discovery"),
    ("discovery", "orchestrator", "orchestrator"),
    ("trainer", "orchestrator", "orchestrator"),
    ("validator", "orchestrator", "orchestrator"),
    ("pool", "discovery", "discovery"),
    ("pool", "orchestrator", "orchestrator"),
    ("pool", "relay", "nginx"),
    ("relay", "trainer", "nginx"),
    ("relay", "orchestrator", "orchestrator"),
    ("relay", "relay", "nginx"),
    ("validator", "runner", "runner"),
    ("pool", "runner", "runner"),
    ("ui", "orchestrator", "orchestrator"),
    ("trainer", "lighthouse", "lighthouse"),
    ("island", "lighthouse", "lighthouse"),
)
"""(from, to, container whose port it is). A runner calls nobody, nor does a lighthouse, and who calls the page is a person."""

STORE_CLIENTS = ("prepare", "orchestrator", "trainer", "island", "validator", "pool", "tracker", "ui")
"""Who reads or writes the object store; pools post to it with a grant."""

OPERATOR: Object = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.OPERATOR_NAME}},
}
"""Who reads a run's progress, in whichever namespace it lives; `site.at_site` names that, where the operator runs as a pod."""

HTTP_PORT, HTTPS_PORT = 80, 443
NAME_PORTS = 53, 5353
"""Of a cluster's DNS: its Service's, and that of OpenShift's pods, which policies see instead where they are judged behind the Service (OVN)."""
CHOSEN_PORTS = (32768, 60999)
"""Ports that Linux gives to who asks for any (net.ipv4.ip_local_port_range)."""


def network_policies(run: TrainingRun, relays: RelayFields) -> list[Object]:
    """The policies of a run. What can be reached from outside the cluster takes clients from anywhere."""
    name = run.metadata.name
    open_to_all = {"relay"} if relays.exposure.type != "ClusterIP" and way_in_port(relays) == PORT else set()
    outside: list[Object] = [] if way_in_port(relays) == PORT else [{"ports": [_port(way_in_port(relays)[1])]}]
    if run.spec.control_plane.exposure.type != "ClusterIP":
        open_to_all |= {"discovery", "orchestrator"}
    every_pod = {"podSelector": {"matchLabels": {names.RUN_LABEL: name}}, "policyTypes": ["Ingress", "Egress"]}
    absent = {
        component
        for component, there in (
            ("runner", runner_count(run) > 0),
            ("tracker", run.spec.trackers is not None),
            ("ui", run.spec.ui is not None),
            ("island", island_count(run) > 1),
            ("lighthouse", serves_lighthouse(run)),
        )
        if not there
    }
    edges = [edge for edge in EDGES if absent.isdisjoint(edge)]
    made = [child("NetworkPolicy", f"{name}-deny", name, "network", {"spec": every_pod})]
    for component in COMPONENTS:
        if component in absent:
            continue
        spec = {
            "podSelector": {"matchLabels": names.selector(name, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": _ingress(run, component, edges, open_to_all) + _beside(run, component, outside),
            "egress": _egress(run, component, edges, relays),
        }
        kept = {key: value for key, value in spec.items() if value}  # an API server drops empty lists
        made.append(child("NetworkPolicy", f"{name}-{component}", name, component, {"spec": kept}))
    return made


def _beside(run: TrainingRun, component: str, outside: list[Object]) -> list[Object]:
    """Rules for callers that are no part of the run: relays' HTTPS, fellow islands, and the page, which asks everybody for its token.

    Pods of pools are strangers' code and have no way to the page: their own policy names where they may go.
    """
    if component == "relay":
        return outside
    if component == "lighthouse":
        return (
            [{"from": others, "ports": [_port(names.PORTS["lighthouse"])]}] if (others := _other_islands(run)) else []
        )
    if component != "ui" or run.spec.ui is None:
        return []
    port = [_port(names.PORTS["ui"])]
    if run.spec.ui.exposure.type != "ClusterIP":
        return [{"ports": port}]
    # Any pod of this cluster, an Ingress controller's too.
    return [{"from": [{"namespaceSelector": {}}], "ports": port}]


def _pods(run: str, component: str) -> Object:
    return {"podSelector": {"matchLabels": names.selector(run, component)}}


def _port(number: int, protocol: str = "TCP") -> Object:
    return {"protocol": protocol, "port": number}


def _ingress(run: TrainingRun, component: str, edges: Sequence[Edge], open_to_all: set[str]) -> list[Object]:
    name = run.metadata.name
    rules = []
    for to in sorted({container for _, target, container in edges if target == component}):
        port = [_port(names.PORTS[to])]
        if component in open_to_all:
            rules.append({"ports": port})
            continue
        callers = [_pods(name, caller) for caller, target, container in edges if (target, container) == (component, to)]
        if component == "orchestrator":
            callers.append(OPERATOR)
        rules.append({"from": callers, "ports": port})
    if fellows := _fellows(run, component):
        rules.append({"from": fellows, **_fellow_ports(run)})
    return rules


def _egress(run: TrainingRun, component: str, edges: Sequence[Edge], relays: RelayFields) -> list[Object]:
    name = run.metadata.name
    rules: list[Object] = [
        {"to": [_pods(name, target)], "ports": [_port(names.PORTS[container])]}
        for caller, target, container in edges
        if caller == component
    ]
    if fellows := _fellows(run, component):
        rules.append({"to": fellows, **_fellow_ports(run)})
    if component in STORE_CLIENTS and (store := store_ports(run.spec.storage, keys=component != "pool")):
        rules.append({"ports": [_port(number) for number in store]})
    if component == "relay" and relays.sources:
        rules.append({"ports": [_port(number) for number in url_ports(relays.sources)]})
    if component == "trainer" and (group := group_of(run)) is not None and group.lighthouse is not None:
        # A policy knows no names. A port of a node, or of a load balancer, of this cluster is the pod's own by the time that a policy sees it.
        numbers = {int(group.lighthouse.rsplit(":", 1)[1]), names.PORTS["lighthouse"]}
        rules.append({"ports": [_port(number) for number in sorted(numbers)]})
    if ports := _outward_ports(run, component):
        rules.append({"ports": [_port(number) for number in sorted(ports)]})
    if rules:
        rules.append({"ports": [_port(number, protocol) for number in NAME_PORTS for protocol in ("UDP", "TCP")]})
    return rules


def _fellows(run: TrainingRun, component: str) -> list[Object]:
    """Pods that train together with those of a component."""
    name = run.metadata.name
    if component == "trainer" and group_of(run) is not None:
        return _other_islands(run)
    if component in ("trainer", "island") and island_count(run):
        return [_pods(name, each) for each in ("trainer", "island")]
    return [_pods(name, "trainer")] if component == "trainer" and run.spec.trainer.replicas > 1 else []


def _fellow_ports(run: TrainingRun) -> Object:
    """Collectives choose their ports. Other runs get only what a kernel gives out, and nothing that listens by name: no origin, no metrics,
    and not torchrun's store, which has a port of its own (`trainer_command`)."""
    if group_of(run) is None:
        return {}
    first, last = CHOSEN_PORTS
    return {"ports": [{"protocol": "TCP", "port": first, "endPort": last}]}


def _other_islands(run: TrainingRun) -> list[Object]:
    """Trainers of the other runs of a group: those in this namespace, and what may be anywhere in the networks that are named."""
    group = group_of(run)
    if group is None:
        return []
    runs = {"key": names.RUN_LABEL, "operator": "In", "values": fellow_runs(run)}
    here = {"podSelector": {"matchLabels": {names.COMPONENT_LABEL: "trainer"}, "matchExpressions": [runs]}}
    there = [{"ipBlock": {"cidr": network}} for network in group.networks]
    return [*([here] if fellow_runs(run) else []), *there]


def _outward_ports(run: TrainingRun, component: str) -> set[int]:
    """Ports outside the run that a part may reach, whichever address: a policy knows no names."""
    if component == "prepare":
        template: OutwardTemplate = run.spec.prepare or PrepareTemplate()
        asks = _asks_a_hub(run)
        fetched = [each for each in run.spec.tasks.packages if each.path is None and each.object is None]
        if fetched:  # from an index or an address
            return {
                HTTPS_PORT,
                *url_ports(each.url for each in fetched if each.url is not None),
                *template.egress_ports,
            }
    elif component == "tracker" and run.spec.trackers is not None:
        template, asks = run.spec.trackers, run.spec.trackers.calls_out
    else:
        return set()
    return {HTTPS_PORT, *template.egress_ports} if asks or template.egress_ports else set()


def _asks_a_hub(run: TrainingRun) -> bool:
    """Whether prepare fetches the model, tasks or benchmarks from a Hugging Face hub."""
    spec = run.spec
    sources = [(each.dataset, each.judged_by) for each in spec.tasks.origins]
    if spec.evaluation is not None:
        sources += [(each.tasks.dataset, each.tasks.environment or "") for each in spec.evaluation.benchmarks]
    return spec.model.hugging_face is not None or any(
        dataset.hugging_face is not None if dataset is not None else _is_of_a_hub(environment)
        for dataset, environment in sources
    )


def _is_of_a_hub(environment: str) -> bool:
    """A task of lm-evaluation-harness has its data on a hub; a file of the admin's has it there only if it names a commit of a data set."""
    package, _, part = environment.partition(":")
    name, commit, _ = part.partition("@")
    return package == "lm-eval" and (bool(commit) or not name.partition(",")[0].endswith((".yaml", ".yml")))


def store_ports(storage: StorageSpec, *, keys: bool) -> list[int]:
    """Ports of the object store, and of the service that gives `keys` for it. A policy knows no names, so the port alone is what it can say.

    Whoever has no keys has no business at a store of Azure or Google: the orchestrator takes uploads.
    """
    if storage.azure is not None:
        return url_ports([storage.azure.url, storage.azure.workload_identity.authority]) if keys else []
    if storage.gcs is not None:
        return url_ports([storage.gcs.endpoint, storage.gcs.workload_identity.sts_endpoint]) if keys else []
    s3 = storage.s3
    if s3 is None:
        return []
    sts = s3.workload_identity.sts_endpoint if keys and s3.workload_identity is not None else None
    return url_ports(url for url in (s3.endpoint, s3.public_endpoint, sts) if url is not None)


def url_ports(urls: Iterable[str]) -> list[int]:
    """Ports of some URLs, ascending, each once."""
    ports = set()
    for url in urls:
        try:
            place = urlsplit(url)
            ports.add(place.port or (HTTPS_PORT if place.scheme == "https" else HTTP_PORT))
        except ValueError:
            continue  # no URL or no port: whoever opens it says so
    return sorted(ports)
