"""A run's plan: seconds of a step by part, idle shares, the first bottleneck with what to change, disks, memory, links, money. Pure.

Parts of one worker run one after the other, those of different machines beside each other. Step s waits for rows of version s - asyncLevel at the
oldest. So a step is as long as its slowest stage, or as the loop from a version to the next by `asyncLevel` + 1.
Called by `shoal plan`; `as_json` is what it prints for machines.
"""

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

from shoal.planner.disks import Disk, disks
from shoal.planner.facts import MBIT, RunFacts, Surroundings
from shoal.planner.findings import Misfit, likely
from shoal.planner.memory import JUDGED_SHARE, USABLE, MemoryPart, engine, total, trainer_rank, validator
from shoal.planner.rates import SLOT_OCCUPANCY, Gpu
from shoal.planner.step_parts import (
    broadcast_seconds,
    delta_bytes,
    fetch_seconds,
    file_bytes,
    file_check_seconds,
    files_a_step,
    forward_units,
    leases,
    lengths,
    mean_version_bytes,
    nodes,
    publish_seconds,
    rollout_seconds,
    rows_looked_at,
    save_seconds,
    slowest_link,
    train_seconds,
    verify_seconds,
)

BROADCAST_CHANGES = {
    "origin": "a faster line of the origin, fewer relays at it (relayServer.sources), or deltas (a broadcast.anchorEvery above 1)",
    "relays": "more relays, faster lines of theirs, or deltas (a broadcast.anchorEvery above 1)",
    "requests": "a higher relayServer.rateLimits.requestsPerSecond, or larger shards",
    "connections": "a higher relayServer.rateLimits.bytesPerSecond, or deltas (a broadcast.anchorEvery above 1)",
    "downlinks": "machines with faster downlinks, or deltas (a broadcast.anchorEvery above 1)",
    "nodes": "machines with more cores, which put versions together faster",
}
"""What to change, by the link that is slowest."""
FORMAT = 1
"""Of the JSON; it grows with a field that goes or changes its meaning."""
ALMOST = 0.999
ROUNDING = 1e-9
"""Of numbers that would be equal except for the order in which they were computed."""


@dataclass(frozen=True)
class StepPart:
    """One part of a step. `stage`: parts of one stage run one after the other, and share their machines."""

    name: str
    stage: str
    seconds: float
    idle_share: float
    """Of the time, in which this part's machines do not do this."""


@dataclass(frozen=True)
class Bottleneck:
    """What makes a step as long as it is, and what to change."""

    part: str
    change: str


@dataclass(frozen=True)
class Counts:
    """Machines of a part, and how many would be enough for the trainer to be the slowest stage."""

    part: str
    have: int
    enough: int | None


@dataclass(frozen=True)
class Link:
    """What passes a link on average, and what it is planned with; 10^6 bits a second."""

    name: str
    mbit: float
    capacity_mbit: float


@dataclass(frozen=True)
class PartMemory:
    """Memory of one GPU, or of a process without one."""

    part: str
    gpus: int
    gpu: str
    usable_bytes: int
    parts: tuple[MemoryPart, ...]


@dataclass(frozen=True)
class Cost:
    """GPU hours of the whole run, and their price where one was given."""

    gpu_hours: float
    stranger_gpu_hours: float
    money: float | None


@dataclass(frozen=True)
class Probation:
    """The run's beginning, in which validators look at more rows than later, nodes have fewer leases, and they cannot keep the later pace."""

    files: float
    """Until they keep that pace."""
    seconds: float
    """They take that long for these files, if there are as many as this all the time."""
    steps: float
    """Of the run, that these files fill."""


@dataclass(frozen=True)
class StepPace:
    """How fast steps follow each other: the seconds of each part by (name, stage), of each stage, of the loop, of a step."""

    parts: dict[tuple[str, str], float]
    stages: dict[str, float]
    loop: float
    step: float


@dataclass(frozen=True)
class Plan:
    """All of it."""

    run: str
    parameters: int
    version_bytes: int
    delta_bytes: float
    step_seconds: float
    loop_seconds: float
    start_seconds: float
    """From the announcement of the first version until all nodes have it."""
    probation: Probation
    run_seconds: float
    """Of all steps, with the beginning in which validators are slower."""
    tokens_a_step: float
    forward_units: float
    parts: tuple[StepPart, ...]
    slot_occupancy: float
    """Share of `shoal_worker_slot_seconds_total` that rows will have; `engine_idle_share`: of the time, `shoal_worker_engine_idle_seconds_total`."""
    engine_idle_share: float
    bottleneck: Bottleneck
    counts: tuple[Counts, ...]
    links: tuple[Link, ...]
    disks: tuple[Disk, ...]
    memory: tuple[PartMemory, ...]
    cost: Cost
    findings: tuple[Misfit, ...]

    @property
    def works(self) -> bool:
        """False where the run cannot work, or has no end."""
        return math.isfinite(self.step_seconds) and not any(each.certain for each in self.findings)


def pace(run: RunFacts, around: Surroundings, accepted_files: int | None = None) -> StepPace:
    """Of steps while each node has this many accepted files: validators look at more rows of few, and on probation a node has one lease at a time.

    None: of nodes that have shown enough.
    """
    on_probation = accepted_files is not None and accepted_files < run.probation_files
    return _pace(run, around, rows_looked_at(run, accepted_files), on_probation=on_probation)


def _pace(run: RunFacts, around: Surroundings, rows: int, *, on_probation: bool) -> StepPace:
    generate, upload = rollout_seconds(run, around, on_probation=on_probation)
    parts = {
        ("generate", "workers"): generate,
        ("upload", "workers"): upload,
        ("verify", "validators"): verify_seconds(run, around, rows),
        ("train", "trainer"): train_seconds(run, around),
        ("save state", "saving"): save_seconds(run, around),
        ("publish", "handover"): publish_seconds(run, around),
        ("broadcast", "relays"): broadcast_seconds(run, around),
    }
    stages: dict[str, float] = {}
    for (_, stage), each in parts.items():
        stages[stage] = stages.get(stage, 0.0) + each
    # Workers take a step's leases as they finish others. The last lease is made, and its file judged, behind the rest.
    made = [each.latency_alone if on_probation else each.latency for each in leases(run, around)]
    last = min(made, default=math.inf) + file_check_seconds(run, around, rows)
    rollouts = max(stages["workers"], stages["validators"]) + last
    loop = rollouts + stages["trainer"] + stages["handover"] + stages["relays"]
    return StepPace(parts, stages, loop, max(*stages.values(), loop / (run.async_level + 1)))


def probation(run: RunFacts, around: Surroundings) -> Probation:
    """How long new nodes' files make steps slower. All nodes begin together, and share the work equally.

    The first `probation_files` of a node are looked at whole, later ones ever less. Each number of rows is computed once, in 0.2 ms.
    """
    step = pace(run, around).step

    @functools.cache
    def seconds_of(rows: int, on_probation: bool) -> float:
        return _pace(run, around, rows, on_probation=on_probation).step

    def seconds(accepted: int) -> float:
        return seconds_of(rows_looked_at(run, accepted), accepted < run.probation_files)

    workers, a_step = nodes(run, around), files_a_step(run, around)
    found = Probation(0.0, 0.0, 0.0)
    if not (run.validators and workers and math.isfinite(step)):
        return found
    for accepted in range(math.ceil(run.steps * a_step / workers)):
        slower = seconds(accepted)
        if max(slower, seconds(max(accepted, run.probation_files))) <= step * (1 + ROUNDING):
            break
        files = min(workers, run.steps * a_step - found.files)
        found = Probation(found.files + files, found.seconds + files * slower / a_step, (found.files + files) / a_step)
    return found


def plan(run: RunFacts, around: Surroundings) -> Plan:
    """Plan a run of mode Train."""
    usual = pace(run, around)
    stages, loop, step = usual.stages, usual.loop, usual.step
    finite = math.isfinite(step)
    slower = probation(run, around)
    whole = step * (run.steps - slower.steps) + slower.seconds if finite else math.inf
    parts = tuple(
        StepPart(name, stage, each, 1 - each / step if finite else (0.0 if math.isinf(each) else 1.0))
        for (name, stage), each in usual.parts.items()
    )
    idle = next(part.idle_share for part in parts if part.name == "generate")
    memory = _memory(run, around)
    volumes = disks(
        run,
        around.version,
        around.model.parameters,
        around.delta_ratio,
        run.steps * files_a_step(run, around) * file_bytes(run, around),
        _judged_bytes(run, around),
        around.model,
    )
    return Plan(
        run=run.name,
        parameters=around.model.parameters,
        version_bytes=around.version,
        delta_bytes=delta_bytes(run, around),
        step_seconds=step,
        loop_seconds=loop,
        start_seconds=fetch_seconds(run, around, around.version),
        probation=slower,
        run_seconds=whole,
        tokens_a_step=float(run.rows * lengths(around, run).mean),
        forward_units=forward_units(run, around),
        parts=parts,
        slot_occupancy=SLOT_OCCUPANCY * (1 - idle),
        engine_idle_share=idle,
        bottleneck=_bottleneck(run, around, parts, stages, loop, step),
        counts=_counts(run, around, stages),
        links=_links(run, around, step),
        disks=tuple(volumes),
        memory=tuple(
            PartMemory(who, gpus, gpu.name, int(USABLE * gpu.nbytes), tuple(each))
            for who, (_, each, gpus, gpu) in memory.items()
        ),
        cost=_cost(run, around, whole),
        findings=tuple(likely(run, around, volumes, memory)),
    )


def _judged_bytes(run: RunFacts, around: Surroundings) -> float:
    """Of weights, that a validator holds (validation/memory.py). Without GPUs that is a share of its pod's memory, which is not known."""
    if run.validator_weights is not None:
        return run.validator_weights
    gpus = run.validator_gpus
    return JUDGED_SHARE * gpus * around.device(gpus, run.validator_gpu).nbytes if gpus else math.inf


def _bottleneck(
    run: RunFacts, around: Surroundings, parts: tuple[StepPart, ...], stages: dict[str, float], loop: float, step: float
) -> Bottleneck:
    slow = max(stages, key=lambda name: stages[name])
    if stages[slow] < ALMOST * step:
        largest = max((part for part in parts), key=lambda part: part.seconds)
        more = "raise asyncLevel" if run.async_level < 4 else "asyncLevel is at its limit"
        return Bottleneck(
            "asynchrony", f"{more}, or shorten {largest.name}: the way from a version to its rows is long"
        )
    part = max((each for each in parts if each.stage == slow), key=lambda each: each.seconds)
    others = max((each for name, each in stages.items() if name != slow), default=0.0)
    others = max(others, loop / (run.async_level + 1) - stages[slow] / (run.async_level + 1))
    factor = stages[slow] / others if others and math.isfinite(stages[slow]) else math.inf
    return Bottleneck(part.name, _change(part.name, run, around, factor))


def _change(name: str, run: RunFacts, around: Surroundings, factor: float) -> str:
    """What to change, and how far until another part is the slowest."""
    workers = nodes(run, around)
    by = f" ({factor:,.1f} times makes another part the slowest)" if math.isfinite(factor) else ""
    if name == "generate":
        if not workers:
            return "give an inferencePool replicas, or plan with --strangers"
        return f"more workers: {math.ceil(workers * factor):,} instead of {workers:,} make another part the slowest"
    if name == "upload":
        return f"faster uplinks{by}, or more workers"
    if name == "verify":
        if not run.validators:
            return "give the validator replicas"
        return f"more validators: {math.ceil(run.validators * factor):,} instead of {run.validators:,}, or a lower proofRowsShare"
    if name == "train":
        ranks = run.trainer_pods * run.trainer_ranks
        return f"more GPUs for the trainer: {math.ceil(ranks * factor):,} instead of {ranks:,}"
    if name == "broadcast":
        if not run.relays:
            return "give the relayServer replicas"
        return f"{BROADCAST_CHANGES[slowest_link(run, around)]}{by}"
    if name == "save state":
        return f"a faster line to the object store{by}, or a larger trainer.settings.stateEvery"
    return f"more ranks and cores a trainer's pod, and a faster line to the store{by}: its ranks write a version, its cores cut it"


def _counts(run: RunFacts, around: Surroundings, stages: dict[str, float]) -> tuple[Counts, ...]:
    def enough(have: int, stage: str) -> int | None:
        return math.ceil(have * stages[stage] / stages["trainer"]) if have and math.isfinite(stages[stage]) else None

    workers = nodes(run, around)
    return (
        Counts("workers", workers, enough(workers, "workers")),
        Counts("validators", run.validators, enough(run.validators, "validators")),
        Counts("relays", run.relays, enough(run.relays, "relays")),
        Counts("trainer ranks", run.trainer_pods * run.trainer_ranks, run.trainer_pods * run.trainer_ranks),
    )


def _links(run: RunFacts, around: Surroundings, step: float) -> tuple[Link, ...]:
    if not math.isfinite(step):
        return ()
    workers, relays = nodes(run, around), max(1, run.relays)
    files = files_a_step(run, around) * file_bytes(run, around)
    version, delta = mean_version_bytes(run, around), delta_bytes(run, around)
    found = [
        Link("origin to relays", run.relays * version / step / MBIT, around.relay_mbit),
        Link("each relay to nodes", workers * delta / relays / step / MBIT, around.relay_mbit),
        Link("object store", (files + version + save_seconds(run, around) * around.store_mbit * MBIT) / step / MBIT, around.store_mbit),
    ]  # fmt: skip
    if any(around.strangers.get(pool.name) for pool in run.pools if pool.open):
        each = files / max(1, workers) / step / MBIT
        found += [
            Link("each stranger, up", each, around.uplink_mbit),
            Link("each stranger, down", delta / step / MBIT, around.downlink_mbit),
        ]
    return tuple(found)


def _memory(run: RunFacts, around: Surroundings) -> dict[str, tuple[str, list[MemoryPart], int, Gpu]]:
    """By part: the manifest's field, bytes by cause, GPUs, and their kind."""
    ranks = run.trainer_pods * run.trainer_ranks
    on_cpu = run.trainer_gpus == 0
    found = {
        "a trainer's rank": (
            "trainer",
            trainer_rank(
                around.model,
                ranks,
                run.pack_tokens,
                run.method,
                cpu=on_cpu,
                again=run.recomputes,
                reference=run.reference,
                on_host=run.on_host,
                sharing=run.sharing,
                muon=run.muon,
                reward_model=run.reward_model,
                tokens_travel=run.tokens_travel,
                adapters=run.adapters,
            ),
            run.trainer_gpus,
            around.device(run.trainer_gpus, run.trainer_gpu),
        ),
        "a validator": (
            "validator.gpu",
            validator(around.model, run.sequence_tokens, run.validator_gpus, cpu=run.validator_gpus == 0),
            run.validator_gpus,
            around.device(run.validator_gpus, run.validator_gpu),
        ),
    }
    # An engine takes what memory it may and runs fewer sequences: one of full length must fit.
    found |= {
        f"an engine of {pool.name}": (
            f"inferencePools[{number}].gpu",
            engine(around.model, max(1, pool.gpus), 1, run.sequence_tokens, stages=pool.stages, cpu=pool.gpus == 0),
            pool.gpus,
            around.device(pool.gpus, pool.gpu),
        )
        for number, pool in enumerate(run.pools)
    }
    return found


def _cost(run: RunFacts, around: Surroundings, seconds: float) -> Cost:
    hours = seconds / 3600
    own = run.trainer_pods * run.trainer_gpus + run.validators * run.validator_gpus
    own += sum(pool.replicas * pool.gpus for pool in run.pools)
    lent = sum(pool.gpus * around.strangers.get(pool.name, 0) for pool in run.pools if pool.open)
    return Cost(own * hours, lent * hours, None if around.price is None else (own + lent) * hours * around.price)


def as_json(made: Plan) -> dict[str, Any]:
    """The plan for machines: whole bytes, seconds and shares with four significant digits; None for what has no end."""
    found = {"format": FORMAT, "works": made.works, **asdict(made)}
    for given, each in zip(found["memory"], made.memory, strict=True):
        given["bytes"] = total(each.parts)
    rounded = _rounded(found)
    assert isinstance(rounded, dict)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
