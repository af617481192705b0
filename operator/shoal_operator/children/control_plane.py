"""The control plane of a run: Redis, discovery and orchestrator, one of each, and their exposure to strangers' machines. Pure."""

from shoal.contracts.roster import Roster
from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed
from shoal_operator.children.exposure import API, way_in
from shoal_operator.children.pods import (
    Container,
    claim_template,
    config_map,
    http_probes,
    image_of,
    pod_template,
    secrets,
    tcp_probes,
)
from shoal_operator.children.storage import role_and_store
from shoal_operator.children.workloads import deployment, headless_service, stateful_set
from shoal_operator.engine.cluster import Object

REDIS_SIZE = "1Gi"


def control_plane(run: TrainingRun, replicas: int, config_hashes: dict[str, str], roster: Roster) -> list[Object]:
    """Redis, discovery and orchestrator, with the keys that they hold by the roster; `replicas` is 1, or 0 for a suspended run."""
    name = run.metadata.name
    return [
        *_redis(run, replicas),
        *_discovery(run, replicas, config_hashes["discovery"], names.held_secret(name, roster, "discovery")),
        *_orchestrator(run, replicas, config_hashes["orchestrator"], names.held_secret(name, roster, "orchestrator")),
    ]


def _redis(run: TrainingRun, replicas: int) -> list[Object]:
    """Redis with an append-only file, so that a restart costs nothing; all that it holds could also be rebuilt from the store."""
    run_name, name = run.metadata.name, names.redis(run.metadata.name)
    container = Container(
        name="redis",
        image=image_of("redis", run.spec.images),
        command=["redis-server"],
        # No password: only the run's own control plane may reach it (NetworkPolicy). Protected mode would refuse everyone
        # but loopback when there is no password.
        args=[
            "--bind", "$(SHOAL_BIND)", "--port", str(names.PORTS["redis"]), "--dir", "$(SHOAL_HOME)/data",
            "--protected-mode", "no", "--appendonly", "yes", "--save", "",
        ],
        role="redis",
        mounts=(claim_template("data"),),
        port=names.PORTS["redis"],
        probes=tcp_probes(names.PORTS["redis"]),
    )  # fmt: skip
    template = _template(run, "redis", container, None)
    return [
        headless_service(name, run_name, "redis", {"redis": names.PORTS["redis"]}),
        stateful_set(name, run_name, "redis", replicas, template, claims=redis_claims(run)),
    ]


def redis_claims(run: TrainingRun) -> dict[str, VolumeClaim]:
    """The claim of Redis, by the name of the volume."""
    return {"data": claimed(run.spec.control_plane.redis_volume, REDIS_SIZE)}


def _discovery(run: TrainingRun, replicas: int, config_hash: str, secret: str) -> list[Object]:
    name = run.metadata.name
    container = Container(
        name="discovery",
        image=image_of("protocol", run.spec.images),
        command=["python", "-m", "shoal.discovery"],
        role="discovery",
        mounts=(config_map(names.config(name)), secrets(secret)),
        port=names.PORTS["discovery"],
        probes=http_probes(names.PORTS["discovery"]),
    )
    return _served(
        run, names.discovery(name), "discovery", replicas, _template(run, "discovery", container, config_hash)
    )


def _orchestrator(run: TrainingRun, replicas: int, config_hash: str, secret: str) -> list[Object]:
    name = run.metadata.name
    container = Container(
        name="orchestrator",
        image=image_of("protocol", run.spec.images),
        command=["python", "-m", "shoal.orchestrator"],
        role="orchestrator",
        mounts=(config_map(names.config(name)), *role_and_store(name, secret, run.spec.storage)),
        port=names.PORTS["orchestrator"],
        probes=http_probes(names.PORTS["orchestrator"]),
        resources=run.spec.control_plane.resources,
    )
    template = _template(run, "orchestrator", container, config_hash)
    return _served(run, names.orchestrator(name), "orchestrator", replicas, template)


def _served(run: TrainingRun, name: str, component: str, replicas: int, template: Object) -> list[Object]:
    """A Deployment of one pod with its Service and its exposure."""
    run_name, port = run.metadata.name, names.PORTS[component]
    exposure, selector = run.spec.control_plane.exposure, names.selector(run_name, component)
    return [
        headless_service(name, run_name, component, {component: port}),
        deployment(name, run_name, component, replicas, template, single=True),
        *way_in(names.public(name), run_name, component, exposure, selector, (component, port), API),
    ]


def _template(run: TrainingRun, component: str, container: Container, config_hash: str | None) -> Object:
    return pod_template(
        run.metadata.name,
        component,
        [container],
        grace_seconds=20,
        placement=run.spec.control_plane.pod_template,
        images=run.spec.images,
        config_hash=config_hash,
    )
