"""What cannot work, with its reason and what to change; and what may not. Pure.

`certain` takes only what is known without a doubt, because the operator says it in a condition. `likely` adds what follows from estimates, for
`shoal plan`.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.planner.disks import Disk, disks
from shoal.planner.facts import RunFacts, Surroundings
from shoal.planner.memory import JUDGED_SHARE, USABLE, MemoryPart, total
from shoal.planner.model_shape import shares_heads
from shoal.planner.rates import Gpu

MOST_SHARDS = 99_999
"""Of one version (broadcast/cut.py)."""

Reason = Literal[
    "VolumeTooSmall", "MemoryTooSmall", "TooManyShards", "BroadcastTooSlow", "HeadsNotShared", "ExpertsNotDivided"
]


@dataclass(frozen=True)
class Misfit:
    """One thing that does not fit. `certain`: the run cannot work; else it may not."""

    reason: Reason
    field: str
    problem: str
    remedy: str
    certain: bool = True

    def __str__(self) -> str:
        return f"spec.{self.field}: {self.problem}; {self.remedy}"


def gigabytes(nbytes: float) -> str:
    """`65.5 GB`; less than 0.1 GB in megabytes."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def certain(
    run: RunFacts, version: int, parameters: int, step_seconds: float | None = None, *, volumes: bool = True
) -> list[Misfit]:
    """What cannot work with versions of `version` bytes of a model that has at least `parameters`.

    `step_seconds`: of the last step, where there was one; then a version must reach the nodes before the next. `volumes`: their sizes are enforced.
    """
    found = [
        _too_small(disk, disk.least)
        for disk in disks(run, version, parameters)
        if volumes and disk.enforced and _lacks(disk, disk.least)
    ]
    found += _weights(run, version, parameters)
    shards = -(-version // run.shard_bytes)
    if shards > MOST_SHARDS:
        found.append(
            Misfit(
                "TooManyShards",
                "broadcast.shardBytes",
                f"{run.shard_bytes} makes {shards:,} shards of a version, and at most {MOST_SHARDS:,} are allowed",
                f"set {-(-version // MOST_SHARDS):,} or more",
            )
        )
    requests = run.relays * run.relay_requests
    if step_seconds and requests and shards / requests > step_seconds:
        found.append(
            Misfit(
                "BroadcastTooSlow",
                "relayServer.rateLimits.requestsPerSecond",
                f"a node needs {shards / requests:,.0f} s to ask for the {shards:,} shards of a version, and a step takes {step_seconds:,.0f} s",
                "raise it, or broadcast.shardBytes",
            )
        )
    return found


def _lacks(disk: Disk, needed: int) -> bool:
    return disk.given is not None and disk.given < needed


def _too_small(disk: Disk, needed: int, *, sure: bool = True) -> Misfit:
    given = gigabytes(disk.given or 0)
    unit = "Gi" if disk.enforced else ""
    return Misfit(
        "VolumeTooSmall",
        disk.field,
        f"{disk.name} has {given} and needs {gigabytes(needed)} for {disk.holds}",
        f"set {disk.size}{unit} or more",
        sure,
    )


def _weights(run: RunFacts, version: int, parameters: int) -> list[Misfit]:
    """Weights that are larger than the memory of the GPUs that the manifest names."""
    found = []
    for number, pool in enumerate(run.pools):
        if pool.gpu is not None and pool.gpus and version > pool.gpus * pool.gpu.nbytes:
            engine = f"an engine of {pool.name}"
            found.append(_memory(f"inferencePools[{number}].gpu", engine, "the weights", version, pool.gpus, pool.gpu))
    found += _judged_weights(run, version)
    ranks = run.trainer_pods * run.trainer_ranks
    if run.trainer_gpu is not None and run.trainer_gpus and run.method == "Full":
        # Weights, gradients and one or two moments, float32, where these are on the GPU; the reference model and activations come on top.
        # Of PRIME's two models one has gradients at a time; the reward model is AdamW's.
        moments = 0 if run.on_host.optimizer else 4 if run.muon else 8
        beside = run.reward_model * (4 if run.on_host.optimizer else 12)
        needed = (4 + moments + beside + 4) * parameters
        if needed > ranks * run.trainer_gpu.nbytes:
            holds = "weights and what is trained of them"
            found.append(_memory("trainer", "the trainer", holds, needed, ranks, run.trainer_gpu))
    return found


def _judged_weights(run: RunFacts, version: int) -> list[Misfit]:
    """A version that a validator refuses to load, or cannot (validation/policies.py)."""
    allowed, gpu, gpus = run.validator_weights, run.validator_gpu, run.validator_gpus
    if allowed is not None and version > allowed:
        return [
            Misfit(
                "MemoryTooSmall",
                "validator.validation.weightsMemoryBytes",
                f"a validator may hold {gigabytes(allowed)} of weights, and a version has {gigabytes(version)}",
                f"set {version} or more, or leave it out",
            )
        ]
    if gpu is None or not gpus:
        return []
    each = gpu.nbytes if allowed is not None else int(JUDGED_SHARE * gpu.nbytes)
    if version <= gpus * each:
        return []
    return [
        Misfit(
            "MemoryTooSmall",
            "validator.gpu",
            f"a validator has {gpus} x {gigabytes(gpu.nbytes)} of {gpu.name}, {gigabytes(gpus * each)} of it for weights, and a version has"
            f" {gigabytes(version)}",
            f"give it {-(-version // each)} such GPUs or more",
        )
    ]


def _memory(field: str, who: str, holds: str, needed: int, gpus: int, gpu: Gpu) -> Misfit:
    have = f"{gpus} x {gigabytes(gpu.nbytes)} of {gpu.name}"
    least = -(-needed // gpu.nbytes)
    return Misfit(
        "MemoryTooSmall",
        field,
        f"{who} has {have} and needs {gigabytes(needed)} for {holds}",
        f"give it {least} such GPUs or more",
    )


def likely(
    run: RunFacts, around: Surroundings, found: list[Disk], memory: dict[str, tuple[str, list[MemoryPart], int, Gpu]]
) -> list[Misfit]:
    """What `certain` knows, and what follows from estimates. `memory`: by part, the manifest's field, bytes by cause, its GPUs."""
    sure = certain(run, around.version, around.model.parameters)
    known = {finding.field for finding in sure}
    more = [
        _too_small(disk, disk.needs, sure=False)
        for disk in found
        if _lacks(disk, disk.needs) and disk.field not in known
    ]
    for who, (field, parts, gpus, gpu) in memory.items():
        needed, room = total(parts), USABLE * gpu.nbytes
        if gpus and needed > room and field not in known:
            largest = max(parts, key=lambda part: part.nbytes)
            more.append(
                Misfit(
                    "MemoryTooSmall",
                    field,
                    f"{who} needs {gigabytes(needed)} on each of its GPUs, of which {gigabytes(room)} of {gpu.name} are usable",
                    f"the largest part is {gigabytes(largest.nbytes)} for {largest.cause}; give it more GPUs or larger ones"
                    + (", or set trainer.settings.offload" if field == "trainer" else "")
                    + (" or contextParallel" if field == "trainer" and gpus > 1 else "")
                    + (", or expertParallel: Tokens" if _gathers_experts(field, gpus, run, around) else ""),
                    certain=False,
                )
            )
    return [*sure, *more, *_undividable(run, around), *_undivided(run, around)]


def _gathers_experts(field: str, gpus: int, run: RunFacts, around: Surroundings) -> bool:
    """Whether a rank of the trainer gathers the experts of a layer, which could stay at their ranks."""
    return field == "trainer" and gpus > 1 and around.model.experts > 0 and not run.tokens_travel


def _undivided(run: RunFacts, around: Surroundings) -> list[Misfit]:
    """Experts that the trainer's ranks cannot divide (training/experts.py): its trainer ends when it loads the model."""
    ranks, experts = run.trainer_pods * run.trainer_ranks, around.model.experts
    if experts % ranks == 0:
        return []
    allowed = ", ".join(str(each) for each in range(1, experts + 1) if experts % each == 0)
    return [
        Misfit(
            "ExpertsNotDivided",
            "trainer",
            f"{ranks} ranks cannot divide {experts} experts",
            f"let replicas times GPUs be one of {allowed}",
        )
    ]


def _undividable(run: RunFacts, around: Surroundings) -> list[Misfit]:
    """Heads that the trainer's ranks cannot share (training/context_parallel.py): its trainer ends when it loads the model."""
    if around.model.heads is None or shares_heads(*around.model.heads, run.sharing):
        return []
    queries, keys = around.model.heads
    allowed = ", ".join(str(size) for size in range(1, queries + 1) if shares_heads(queries, keys, size))
    return [
        Misfit(
            "HeadsNotShared",
            "trainer.settings.contextParallel",
            f"{run.sharing} ranks cannot share {queries} query and {keys} key heads",
            f"set one of {allowed}",
        )
    ]
