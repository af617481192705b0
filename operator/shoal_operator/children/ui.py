"""The page of a run: a Deployment of one pod with its Service and its way in, and the ConfigMap that says how the parts are. Pure.

The pod has no key of any role and no token of the API server: it reads the store and the orchestrator, as anybody with the store's credentials may.
What the API server alone knows, the state of the parts, reconcile writes into a ConfigMap that the pod mounts (`RunParts`).
"""

from collections.abc import Sequence

from shoal.contracts.run_parts import MAX_PARTS, PartState, RunParts
from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.exposure import way_in
from shoal_operator.children.pods import Container, Mount, config_map, http_probes, image_of, pod_template, secrets
from shoal_operator.children.storage import store_access, store_to_read
from shoal_operator.children.workloads import child, deployment
from shoal_operator.engine.cluster import Object

COMPONENT = "ui"


def ui_children(run: TrainingRun, replicas: int, config_hash: str) -> list[Object]:
    """Service, Deployment and way in of the page; none for a run without `spec.ui`. `replicas` is 1, or 0 for a suspended run."""
    spec, owner = run.spec.ui, run.metadata.name
    if spec is None:
        return []
    name, port = names.ui(owner), names.PORTS[COMPONENT]
    container = Container(
        name=COMPONENT,
        # It has what reads strangers' files and a model's tokenizer (docs/adr/0036).
        image=image_of("validator", run.spec.images),
        command=["python", "-m", "shoal.ui"],
        role=COMPONENT,
        mounts=(config_map(names.config(owner), optional=names.parts(owner)), *_store(run)),
        port=port,
        probes=http_probes(port),
        resources=spec.resources,
    )
    template = pod_template(
        owner,
        COMPONENT,
        [container],
        grace_seconds=20,
        placement=spec.pod_template,
        images=run.spec.images,
        config_hash=config_hash,
    )
    selector = names.selector(owner, COMPONENT)
    service = {"type": "ClusterIP", "selector": selector, "ports": [{"name": COMPONENT, "port": port}]}
    return [
        child("Service", name, owner, COMPONENT, {"spec": service}),
        deployment(name, owner, COMPONENT, replicas, template, single=False),
        *way_in(names.public(name), owner, COMPONENT, spec.exposure, selector, (COMPONENT, port)),
    ]


def _store(run: TrainingRun) -> tuple[Mount, ...]:
    """The page's token and the store, to be read: a folder store's claim without leave to write, or credentials."""
    name, spec = run.metadata.name, run.spec.ui
    token = names.ui_token(name)
    own = spec.credentials_secret if spec is not None else None
    if (access := store_access(run.spec.storage, own)) is not None:
        return (secrets(token, access),)
    return secrets(token), *store_to_read(name, run.spec.storage, None)


def parts_map(run: str, parts: Sequence[PartState]) -> Object:
    """The ConfigMap with `parts.json`. It has no time in it: it is written when something changed, and then only."""
    told = RunParts(run=run, parts=list(parts[:MAX_PARTS]))
    return child("ConfigMap", names.parts(run), run, COMPONENT, {"data": {"parts.json": told.to_json().decode()}})
