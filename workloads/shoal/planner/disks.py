"""The volumes of a run against what they must hold: model, kept versions, encoding. Bytes, closed form, pure.

`Disk.least`: with less the run stops, whatever the deltas are like. `Disk.needs`: with deltas as they were measured. Called by `findings`,
by `plan`, and by `shoal init` for the sizes that a first manifest has.
"""

import math
from dataclasses import dataclass

from shoal.planner.facts import WIDTH, RunFacts
from shoal.planner.memory import state_bytes
from shoal.planner.model_shape import ModelShape

RESERVE = 64 << 20
"""Free bytes that a fetch leaves (broadcast/weights_folder.py)."""
RELAY_SHARE = 0.9
"""Of a relay's volume, for versions (children/relay_server.py)."""
GIB = 1 << 30
ASYNC_LEVEL, KEPT_VERSIONS, KEPT_STATES = 2, 5, 3
"""Of a manifest that says nothing: `asyncLevel`, `relayServer.keptVersions`, `trainer.settings.keptStates`."""


@dataclass(frozen=True)
class Disk:
    """One volume. `given`: None for one whose size the manifest does not say."""

    name: str
    field: str
    given: int | None
    needs: int
    least: int
    holds: str
    enforced: bool = True
    """Whether it has no more than `given`. A stranger's disk has at least what is required, and mostly more."""

    @property
    def size(self) -> int:
        """GiB that `field` must have, for what is needed."""
        return math.ceil(max(self.needs, self.least) / GIB)


def held_bytes(version: int, held: int) -> int:
    """A worker's volume: its versions, the one being fetched included, and a reserve (ADR 0065)."""
    return held * version + RESERVE


def served_bytes(version: int, kept: int, anchor_every: int, delta_ratio: float) -> tuple[int, int]:
    """What `kept` served versions take at most, with what they are encoded against: with deltas, and of the versions in full alone."""
    periods = math.ceil((kept - 1) / anchor_every)
    anchors, versions = periods + 1, periods * anchor_every + 1
    full = anchors * version
    deltas = versions if anchor_every > 1 else 0  # one lies beside each version in full too
    return full + round(deltas * version / delta_ratio), full


def disks(
    run: RunFacts,
    version: int,
    parameters: int,
    delta_ratio: float = math.inf,
    rollouts: float = 0.0,
    judged_bytes: float = math.inf,
    shape: ModelShape | None = None,
) -> list[Disk]:
    """Every volume of a run, for versions of `version` bytes in full.

    `rollouts`: bytes of submitted files in the whole run. `judged_bytes`: of weights, that a validator's memory has room for. `shape`: of the
    model; None: not known, and a state has the least that it can.
    """
    held = held_bytes(version, run.held_versions)
    least_held = held_bytes(version, min(run.held_versions, run.steps + 1))
    what = f"{run.held_versions} versions, the one being fetched included"
    found = [
        Disk(f"weights of {pool.name}", f"inferencePools[{number}].weightsSize", pool.volume, held, least_held, what)
        for number, pool in enumerate(run.pools)
        if pool.replicas
    ]
    found += [
        Disk(
            f"strangers of {pool.name}", f"inferencePools[{number}].requirements.diskGib",
            pool.disk or None, held, least_held, what, enforced=False,
        )
        for number, pool in enumerate(run.pools)
        if pool.open
    ]  # fmt: skip
    kept = min(run.relay_versions, run.steps + 1)
    needs, full = served_bytes(version, kept, run.anchor_every, delta_ratio)
    served = f"{kept} versions and what they are encoded against"
    if run.relays:
        by_share = [math.ceil(each / RELAY_SHARE) for each in (needs, full)]
        found.append(Disk("relay", "relayServer.cacheSize", run.relay_disk, by_share[0], by_share[1], served))
    found += [
        Disk("origin", "trainer.scratchSize", run.scratch, needs, full, served),
        Disk(
            "trainer's outbox", "trainer.scratchSize", run.scratch, 3 * version, 2 * version,
            "a version that is written, one that waits, the base of the next delta",
        ),
    ]  # fmt: skip
    state = run.state(parameters, shape)
    judged = int(max(1, min(run.judged_versions, judged_bytes // version)))
    found += [
        Disk(
            "trainer's temporary files", "trainer.temporaryVolume", run.trainer_temporary,
            version + run.trainer_ranks * run.file_bytes, 0,
            "a published version, which a restart reads where the newest state is older, and a rollout file for each rank",
        ),
        Disk(
            "validator's temporary files", "validator.temporaryVolume", run.validator_temporary, (judged + 1) * version, 0,
            f"versions in memory, {judged} at most, and one that is fetched",
        ),
        Disk(
            "store", "storage.folderSize", run.store,
            (run.kept_states + 1) * state + needs + 3 * version + round(rollouts),
            min(run.kept_states, run.steps + 1) * state + 2 * version,
            f"{run.kept_states} training states and a new one, versions, base and final model, rollouts",
        ),
    ]  # fmt: skip
    return found


@dataclass(frozen=True)
class Volumes:
    """Bytes of a run's volumes, for a first manifest."""

    worker: int
    relay: int
    scratch: int
    store: int


def volumes(shape: ModelShape, steps: int) -> Volumes:
    """Sizes with room for benchmarks, and for deltas that are as large as versions in full."""
    version, state = WIDTH * shape.parameters, state_bytes(shape.parameters)
    served = (KEPT_VERSIONS + 2) * version
    rollouts = steps * (64 << 20)  # measured at the paper's size: some tens of megabytes a step
    return Volumes(
        worker=held_bytes(version, ASYNC_LEVEL + 3),
        relay=served,
        scratch=served + 3 * version,
        store=(KEPT_STATES + 1) * state + (KEPT_VERSIONS + 3) * version + rollouts,
    )
