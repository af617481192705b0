"""Islands of a run beside its trainer, which is the first: a StatefulSet of one pod each, and the lighthouse where all meet. Pure.

Each has a key of its own and no other. An island that dies is started again in its place, copies what the others share and continues from there; only
the first publishes, so the others have no sidecars, and no key of the trainer's role. A run of a group of islands is one island, its own trainer; the
others are runs, here or elsewhere.
"""

import ipaddress
from collections.abc import Mapping

from shoal.contracts.islands import IslandsSettings, IslandTerms
from shoal.contracts.run import Addresses
from shoal_operator.api import TrainingRun
from shoal_operator.api.islands import IslandGroup
from shoal_operator.children import names
from shoal_operator.children.claims import claimed, temporary
from shoal_operator.children.exposure import way_in
from shoal_operator.children.pods import (
    Container,
    config_map,
    empty,
    ephemeral,
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
    """Islands that are of the run itself: one for a run of a group, 0 where one trainer does it all."""
    islands = run.spec.trainer.islands
    return 0 if islands is None else islands.count or 1


def group_of(run: TrainingRun) -> IslandGroup | None:
    """The group of runs of which this run is an island, if any."""
    return None if run.spec.trainer.islands is None else run.spec.trainer.islands.group


def fellow_runs(run: TrainingRun) -> list[str]:
    """The other runs of its group that it meets, ascending."""
    group = group_of(run)
    return sorted(set(group.members) - {run.metadata.name, *group.excluded}) if group is not None else []


def serves_lighthouse(run: TrainingRun) -> bool:
    group = group_of(run)
    return island_count(run) > 0 and (group is None or group.serve_lighthouse)


def group_problem(run: TrainingRun, own_key: str | None) -> str:
    """What a run of a group still needs to be told, and how to find it out; empty when nothing is missing. `own_key` is the run's public key as an
    island."""
    group, name, where = group_of(run), run.metadata.name, "trainer.islands.group.members"
    if group is None:
        return ""
    members = group.members
    if len(members) < 2:
        # The key comes early: who sees one line of this on a screen wants to copy it.
        return (
            f"waits for {where}; this run's entry is {name}: {own_key}; the other runs of group {group.name} have theirs in"
            " status.islandPublicKey"
        )
    if members.get(name) != own_key:
        return f"waits for {where} to list this run as {name}: {own_key}; it lists {members.get(name, 'missing')}"
    twice = sorted(each for each, key in members.items() if list(members.values()).count(key) > 1)
    if twice:
        return f"waits for distinct keys of {', '.join(twice)} in {where}: they share one"
    for network in group.networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            return f"waits for ranges such as 10.64.0.0/14 in trainer.islands.group.networks: {error}"
    return ""


def island_terms(run: TrainingRun, addresses: Addresses, islands: Mapping[str, str]) -> IslandTerms | None:
    """What the islands of a run know of one another; None for a run of one trainer, and for a run whose group is not known yet. Of islands of one
    run the first publishes. `islands`: public keys of the run's own, by name."""
    spec, group = run.spec.trainer.islands, group_of(run)
    lighthouse = addresses.lighthouse
    if group is not None and group.lighthouse is not None:
        lighthouse = f"http://{group.lighthouse}"
    if spec is None or lighthouse is None or (group is not None and len(group.members) < 2):
        return None
    return IslandTerms(
        peers=dict(sorted((islands if group is None else group.members).items())),
        publisher=names.island_names(1)[0] if group is None else run.metadata.name,
        lighthouse=lighthouse,
        settings=IslandsSettings(inner_steps=spec.inner_steps, exchange=spec.exchange, wait_seconds=spec.wait_seconds),
        group=None if group is None else group.name,
        excluded=[] if group is None else sorted(set(group.excluded)),
    )


def island_children(run: TrainingRun, config_hash: str, *, work: bool) -> list[Object]:
    """The lighthouse and the islands beside the first; nothing for a run without islands."""
    made = _lighthouse(run, work=work) if serves_lighthouse(run) else []
    for island in names.island_names(island_count(run))[1:]:
        made += _island(run, island, config_hash, work=work)
    return made


def lighthouse_way_in(run: TrainingRun) -> list[Object]:
    """The way to the lighthouse from outside. It comes before all else: a cluster chooses its address, which the other runs must know before
    they have keys to tell this one."""
    group, owner = group_of(run), run.metadata.name
    if group is None or not group.serve_lighthouse:
        return []
    way = (LIGHTHOUSE, names.PORTS[LIGHTHOUSE])
    public = names.public(names.lighthouse(owner))
    return way_in(public, owner, LIGHTHOUSE, group.exposure, names.selector(owner, LIGHTHOUSE), way)


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
    name, volume = names.island(owner, island), trainer.scratch_volume
    port = names.PORTS["trainer"]
    container = Container(
        name="trainer",
        image=image_of("trainer", run.spec.images, trainer.gpu),
        command=trainer_command(name, names.ranks(owner), 1, trainer.processes),
        role="trainer",
        mounts=(
            config_map(names.config(owner)),
            *role_and_store(owner, None, run.spec.storage, names.island_secret(owner, island)),
            empty("outbox") if volume is None else ephemeral("outbox", claimed(volume, trainer.scratch_size)),
        ),
        port=port,
        probes=http_probes(port),
        resources=trainer.resources,
        gpu=trainer.gpu,
        shared_memory=True,
        variables=trainer.pod_template,
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
        temporary=temporary(trainer.temporary_volume),
    )
    return [
        headless_service(name, owner, COMPONENT, {"trainer": port}, {names.SET_LABEL: name}),
        stateful_set(name, owner, COMPONENT, int(work), template, claims={}),
    ]
