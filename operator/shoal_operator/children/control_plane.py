"""The control plane of a run: Redis, discovery and orchestrator, one of each. Pure."""

from shoal.contracts.recipe import StorageSpec
from shoal_operator.children import names
from shoal_operator.children.pods import (
    Container,
    claim_template,
    config_map,
    deployment,
    headless_service,
    http_probes,
    pod_template,
    secrets,
    stateful_set,
    tcp_probes,
)
from shoal_operator.children.storage import role_and_store
from shoal_operator.engine.cluster import Object


def redis(run: str, replicas: int) -> list[Object]:
    """Redis with an append-only file, so that a restart costs nothing; all that it holds could also be rebuilt from the store."""
    container = Container(
        name="redis",
        image=names.IMAGES["redis"],
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
    template = pod_template(run, "redis", [container], grace_seconds=20)
    return [
        headless_service(names.redis(run), run, "redis", {"redis": names.PORTS["redis"]}),
        stateful_set(names.redis(run), run, "redis", replicas, template, claims={"data": "1Gi"}),
    ]


def discovery(run: str, replicas: int, config_hash: str) -> list[Object]:
    container = Container(
        name="discovery",
        image=names.IMAGES["protocol"],
        command=["python", "-m", "shoal.protocol.discovery"],
        role="discovery",
        mounts=(config_map(names.config(run)), secrets(names.role_secret(run, "discovery"))),
        port=names.PORTS["discovery"],
        probes=http_probes(names.PORTS["discovery"]),
    )
    template = pod_template(run, "discovery", [container], grace_seconds=20, config_hash=config_hash)
    return [
        headless_service(names.discovery(run), run, "discovery", {"discovery": names.PORTS["discovery"]}),
        deployment(names.discovery(run), run, "discovery", replicas, template, single=True),
    ]


def orchestrator(run: str, replicas: int, config_hash: str, storage: StorageSpec) -> list[Object]:
    container = Container(
        name="orchestrator",
        image=names.IMAGES["protocol"],
        command=["python", "-m", "shoal.protocol.orchestrator"],
        role="orchestrator",
        mounts=(config_map(names.config(run)), *role_and_store(run, "orchestrator", storage)),
        port=names.PORTS["orchestrator"],
        probes=http_probes(names.PORTS["orchestrator"]),
    )
    template = pod_template(run, "orchestrator", [container], grace_seconds=20, config_hash=config_hash)
    return [
        headless_service(names.orchestrator(run), run, "orchestrator", {"orchestrator": names.PORTS["orchestrator"]}),
        deployment(names.orchestrator(run), run, "orchestrator", replicas, template, single=True),
    ]
