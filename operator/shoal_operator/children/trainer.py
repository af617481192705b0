"""The trainer's Job, one attempt of it, with publisher and origin nginx as sidecars: the Job is complete when the trainer alone is done. Pure."""

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.pods import (
    Container,
    claim,
    config_map,
    headless_service,
    http_probes,
    job,
    pod_template,
    tcp_probes,
)
from shoal_operator.children.storage import role_and_store
from shoal_operator.engine.cluster import Object

COMPONENT = "trainer"

BACKOFF_LIMIT = 6
"""Restarts within one attempt (Kubernetes' own default). An attempt that made progress is followed by another, see `reconcile/decisions.py`."""


def trainer_service(run: str) -> Object:
    """Names the origin, whichever attempt is current."""
    ports = {part: names.PORTS[part] for part in ("nginx", "trainer", "publisher")}
    return headless_service(names.trainer(run), run, COMPONENT, ports)


def trainer_job(run: TrainingRun, attempt: int, config_hash: str) -> Object:
    """The Job of one attempt. It resumes from the newest complete state in the store."""
    name = run.metadata.name
    config = config_map(names.config(name))
    role_mounts = role_and_store(name, "trainer", run.spec.storage)
    outbox, www = claim("outbox", names.outbox(name)), claim("www", names.www(name))
    containers = [
        Container(
            name="nginx",
            image=names.IMAGES["relay"],
            command=["python", "-m", "shoal.broadcast.nginx", "origin"],
            role="trainer",
            mounts=(config, www),
            port=names.PORTS["nginx"],
            probes=tcp_probes(names.PORTS["nginx"]),
            sidecar=True,
        ),
        Container(
            name="publisher",
            image=names.IMAGES["relay"],
            command=["python", "-m", "shoal.broadcast.origin"],
            role="trainer",
            mounts=(config, *role_mounts, outbox, www),
            port=names.PORTS["publisher"],
            probes=http_probes(names.PORTS["publisher"]),
            sidecar=True,
        ),
        Container(
            name="trainer",
            image=names.IMAGES["trainer"],
            command=["python", "-m", "shoal.training"],
            role="trainer",
            mounts=(config, *role_mounts, outbox),
            port=names.PORTS["trainer"],
            probes=http_probes(names.PORTS["trainer"]),
            resources=run.spec.trainer.resources,
        ),
    ]
    # A step may be in flight: the grace period lets it end or be dropped cleanly.
    template = pod_template(
        name, COMPONENT, containers, grace_seconds=60, restart_policy="OnFailure", config_hash=config_hash
    )
    made = job(names.trainer_job(name, attempt), name, COMPONENT, template, backoff_limit=BACKOFF_LIMIT)
    made["metadata"]["labels"][names.ATTEMPT_LABEL] = str(attempt)
    return made
