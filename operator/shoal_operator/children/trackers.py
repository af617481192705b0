"""The pod that sends a run's metrics to trackers: a StatefulSet of one, with a volume for what trackers write. Pure.

Like the page it has no key of any role and reads the store only. What it sends follows from the store, so it may come later, or come again.
"""

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed
from shoal_operator.children.pods import (
    Container,
    claim_template,
    config_map,
    http_probes,
    image_of,
    outward_mounts,
    pod_template,
)
from shoal_operator.children.storage import store_to_read
from shoal_operator.children.workloads import headless_service, stateful_set
from shoal_operator.engine.cluster import Object

COMPONENT = "tracker"
FOLDER = "tracks"
LAST_LOOK_SECONDS = 60
"""At its end it sends the steps that were trained last, and trackers write out what they hold."""


def tracker_children(run: TrainingRun, replicas: int, config_hash: str) -> list[Object]:
    """None for a run without `spec.trackers`. `replicas` is 1, or 0 for a suspended run."""
    spec, owner = run.spec.trackers, run.metadata.name
    if spec is None:
        return []
    port = names.PORTS[COMPONENT]
    container = Container(
        name=COMPONENT,
        image=image_of(COMPONENT, run.spec.images),
        command=["python", "-m", "shoal.tracking"],
        args=[spec.settings.model_dump_json(by_alias=True, exclude_none=True)],
        role=COMPONENT,
        mounts=(
            config_map(names.config(owner)),
            *store_to_read(owner, run.spec.storage, spec.credentials_secret),
            claim_template(FOLDER),
            *outward_mounts(spec),
        ),
        port=port,
        probes=http_probes(port),
        resources=spec.resources,
        variables=spec.pod_template,
    )
    template = pod_template(
        owner,
        COMPONENT,
        [container],
        grace_seconds=LAST_LOOK_SECONDS,
        placement=spec.pod_template,
        images=run.spec.images,
        config_hash=config_hash,
    )
    return [
        headless_service(names.tracker(owner), owner, COMPONENT, {COMPONENT: port}),
        stateful_set(names.tracker(owner), owner, COMPONENT, replicas, template, claims=tracker_claims(run)),
    ]


def tracker_claims(run: TrainingRun) -> dict[str, VolumeClaim]:
    """The pod's claim, by the name of the volume; none without `spec.trackers`."""
    spec = run.spec.trackers
    return {} if spec is None else {FOLDER: claimed(spec.volume, spec.volume_size)}
