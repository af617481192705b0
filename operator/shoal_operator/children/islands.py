"""Islands of a run beside its trainer, which is the first: a StatefulSet of one pod each, and the lighthouse where all meet. Pure.

Each has a key of its own and no other. An island that dies is started again in its place, copies what the others share and goes on from there; only
the first publishes, so the others have no sidecars, and no key of the trainer's role.
"""

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.pods import (
    Container,
    config_map,
    empty,
    http_probes,
    image_of,
    pod_template,
    tcp_probes,
)
from shoal_operator.children.storage import role_and_store
from shoal_operator.children.trainer import trainer_command
from shoal_operator.children.workloads import headless_service, stateful_set
from shoal_operator.engine.cluster import Object

COMPONENT, LIGHTHOUSE = "island", "lighthouse"


def island_count(run: TrainingRun) -> int:
    """Islands of a run; 0 where one trainer does it all."""
    islands = run.spec.trainer.islands
    return 0 if islands is None else islands.count


def island_children(run: TrainingRun, config_hash: str, *, work: bool) -> list[Object]:
    """The lighthouse and the islands beside the first; nothing for a run without islands."""
    count = island_count(run)
    if count == 0:
        return []
    made = _lighthouse(run, work=work)
    for island in names.island_names(count)[1:]:
        made += _island(run, island, config_hash, work=work)
    return made


def _lighthouse(run: TrainingRun, *, work: bool) -> list[Object]:
    owner, name, islands = run.metadata.name, names.lighthouse(run.metadata.name), run.spec.trainer.islands
    if islands is None:
        return []
    port = names.PORTS[LIGHTHOUSE]
    container = Container(
        name=LIGHTHOUSE,
        image=image_of("trainer", run.spec.images),
        command=["python", "-m", "shoal.islands.lighthouse"],
        args=["$(SHOAL_BIND)", str(port), str(islands.wait_seconds)],
        role=LIGHTHOUSE,
        port=port,
        probes=tcp_probes(port),
    )
    placement = run.spec.control_plane.pod_template
    template = pod_template(
        owner, LIGHTHOUSE, [container], grace_seconds=5, placement=placement, images=run.spec.images
    )
    return [
        headless_service(name, owner, LIGHTHOUSE, {LIGHTHOUSE: port}),
        stateful_set(name, owner, LIGHTHOUSE, int(work), template, claims={}),
    ]


def _island(run: TrainingRun, island: str, config_hash: str, *, work: bool) -> list[Object]:
    owner, trainer = run.metadata.name, run.spec.trainer
    name = names.island(owner, island)
    port = names.PORTS["trainer"]
    container = Container(
        name="trainer",
        image=image_of("trainer", run.spec.images),
        command=trainer_command(name, names.ranks(owner), 1, trainer.processes),
        role="trainer",
        mounts=(
            config_map(names.config(owner)),
            *role_and_store(owner, None, run.spec.storage, names.island_secret(owner, island)),
            empty("outbox"),
        ),
        port=port,
        probes=http_probes(port),
        resources=trainer.resources,
        gpus=trainer.gpu.count,
        shared_memory=True,
    )
    template = pod_template(
        owner,
        COMPONENT,
        [container],
        grace_seconds=60,
        placement=trainer.pod_template,
        images=run.spec.images,
        gpu=trainer.gpu,
        config_hash=config_hash,
    )
    return [
        headless_service(name, owner, COMPONENT, {"trainer": port}, {names.SET_LABEL: name}),
        stateful_set(name, owner, COMPONENT, int(work), template, claims={}),
    ]
