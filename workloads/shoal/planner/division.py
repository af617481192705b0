"""How a run divides GPUs between trainer, workers and validators, and with which settings it starts: a table by model size. Pure.

In: a `ModelShape`, the number of GPUs and the memory of one. Out: a `Division` with its `StartingSettings`, and what does not fit, in words.
The settings are starting points with their sources beside them; nothing here was tuned on a run. Called by `shoal init`.
"""

from dataclasses import dataclass, replace
from functools import partial

from shoal.planner.memory import (
    JUDGED_SHARE,
    USABLE,
    MemoryPart,
    Method,
    engine,
    offloaded,
    total,
    trainer_rank,
    validator,
)
from shoal.planner.model_shape import ModelShape

GPUS_A_NODE = 8
RANKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Whole nodes from eight on."""
INFERENCE_SHARE = 4.5 / 5.5
"""Of the compute, for inference: the paper's training to inference was 1 : 4.5 (INTELLECT-2, section 4.2)."""
FULL_SEQUENCES = 16
"""Sequences of full length that an engine should hold at once; vLLM's cache is paged, so that shorter ones are more."""
LORA_LEARNING_RATE = 10.0
"""Adapters learn at about ten times the rate of all weights (Schulman et al. 2025, "LoRA Without Regret")."""
SEPARATE_GPUS = 3
"""A trainer, a worker and a validator with a GPU each; with fewer they share the first one of a single machine (`shoal up`)."""
CPU_BYTES = 64 * 10**9
"""A manifest is warned about a trainer on CPUs that needs more than this: no ordinary machine has it."""
SHARED_ENGINE = 0.3
"""Share of one GPU for the engine, where trainer and validator use the same one."""


@dataclass(frozen=True)
class StartingSettings:
    """How a model of some size starts to learn. Lengths in tokens."""

    prompts_per_step: int
    group_size: int
    optimizer_steps: int
    learning_rate: float
    max_sequence_length: int
    max_completion_tokens: int


TINY = 10_000_000
SETTINGS: tuple[tuple[int, StartingSettings], ...] = (
    (TINY, StartingSettings(24, 8, 3, 1.5e-4, 64, 32)),  # of examples/arithmetic, which learns in minutes
    # Larger rates for smaller models: 1e-6 is DeepScaleR's at 1.5B, 5e-7 SimpleRL-Zoo's at 7B (arXiv:2503.18892), 3e-7 the paper's at 32B.
    (300_000_000, StartingSettings(32, 8, 2, 5e-6, 1024, 768)),
    (1_000_000_000, StartingSettings(32, 8, 2, 2e-6, 2048, 1536)),
    (4_000_000_000, StartingSettings(64, 8, 4, 1e-6, 8192, 7168)),
    (20_000_000_000, StartingSettings(128, 16, 4, 5e-7, 16_384, 14_336)),
    (1 << 62, StartingSettings(256, 16, 8, 3e-7, 16_384, 14_336)),
)
"""Up to this number of parameters: these settings. From 20B on, the paper's batch of 4,096 rows (section 4.1) at half its length."""
ON_A_CPU = StartingSettings(16, 8, 2, 5e-6, 512, 384)
"""A core decodes some thousand tokens a second of the smallest models: steps are short, so that one ends in minutes."""


@dataclass(frozen=True)
class Division:
    """Which part has how many GPUs (0: all on CPUs), what each needs on one GPU, and what does not fit."""

    gpus: int
    gpu_bytes: int
    method: Method
    settings: StartingSettings
    trainer_gpus: int
    engines: int
    engine_gpus: int
    validator_gpus: int
    shared: bool
    """Trainer, worker and validator use one and the same GPU."""
    trainer: list[MemoryPart]
    engine: list[MemoryPart]
    validator: list[MemoryPart]
    problems: tuple[str, ...] = ()

    @property
    def trainer_replicas(self) -> int:
        """Pods of the trainer: a node's GPUs each, from eight on."""
        return max(1, self.trainer_gpus // GPUS_A_NODE)


def settings_for(shape: ModelShape, *, cpu: bool) -> StartingSettings:
    """The table's row, within the positions that the model was made for."""
    found = (
        ON_A_CPU
        if cpu and shape.parameters > TINY
        else next(each for most, each in SETTINGS if shape.parameters <= most)
    )
    if shape.longest is not None and shape.longest < found.max_sequence_length:
        found = replace(
            found,
            max_sequence_length=max(16, shape.longest),
            max_completion_tokens=max(1, max(16, shape.longest) * 3 // 4),
        )
    return found


def divide(shape: ModelShape, gpus: int, gpu_bytes: int) -> Division:
    """Divide `gpus` of `gpu_bytes` each: one validator and a trainer that fit, and engines with the rest; all weights if that fits, else adapters."""
    if gpus == 0:
        return _on_cpus(shape)
    settings = settings_for(shape, cpu=False)
    tokens = settings.max_sequence_length
    room = int(USABLE * gpu_bytes)
    needed_by = partial(trainer_rank, shape, tokens=tokens)
    wide = next(
        (each for each in (1, 2, 4, 8) if total(engine(shape, each, FULL_SEQUENCES // 4, tokens)) <= room), GPUS_A_NODE
    )
    judges = (
        1
        if gpus < SEPARATE_GPUS
        else next((each for each in (1, 2, 4, 8) if _judges(shape, tokens, each, gpu_bytes)), GPUS_A_NODE)
    )
    judged = validator(shape, tokens, judges)
    found: tuple[Method, int] | None = None
    if gpus < SEPARATE_GPUS:
        left = room - int(SHARED_ENGINE * gpu_bytes) - total(judged)
        methods: tuple[Method, ...] = ("Full", "LoRA", "LoRA, offloaded")
        found = next(((each, 1) for each in methods if total(needed_by(ranks=1, method=each)) <= left), None)
        found = found if wide == 1 else None
        ranks, engines = 1, 1
    else:
        most = gpus - judges - wide
        for method in ("Full", "LoRA", "LoRA, offloaded"):
            fitting = [
                each
                for each in RANKS
                if each <= most and shape.experts % each == 0 and total(needed_by(ranks=each, method=method)) <= room
            ]
            if fitting:
                # No more than the training's share of the compute, unless memory asks for more.
                fair = [each for each in fitting if each <= max(fitting[0], round(gpus * (1 - INFERENCE_SHARE)))]
                found = (method, fair[-1])
                break
        ranks = found[1] if found is not None else 1
        engines = max(1, (gpus - ranks - judges) // wide)
    method = found[0] if found is not None else "LoRA, offloaded"
    if method != "Full":
        settings = replace(settings, learning_rate=LORA_LEARNING_RATE * settings.learning_rate)
    made = Division(
        gpus, gpu_bytes, method, settings, ranks, engines, wide, judges, gpus < SEPARATE_GPUS,
        needed_by(ranks=ranks, method=method), engine(shape, wide, FULL_SEQUENCES, tokens), judged,
    )  # fmt: skip
    return replace(made, problems=_problems(made, room, wide, fits=found is not None))


def _judges(shape: ModelShape, tokens: int, gpus: int, gpu_bytes: int) -> bool:
    """Whether a validator of this many GPUs can hold a version."""
    needed = validator(shape, tokens, gpus)
    return needed[0].nbytes <= JUDGED_SHARE * gpu_bytes and total(needed) <= USABLE * gpu_bytes


def _problems(made: Division, room: int, wide: int, *, fits: bool) -> tuple[str, ...]:
    """What does not fit, in words."""
    lines = []
    needed, weights = total(made.validator), int(JUDGED_SHARE * made.gpu_bytes)
    if needed > room:
        lines.append(
            f"the validator needs {needed / 1e9:.0f} GB on each of {made.validator_gpus} GPUs, of which {room / 1e9:.0f} GB are usable"
        )
    elif made.validator[0].nbytes > weights:
        lines.append(
            f"the validator has {made.validator[0].nbytes / 1e9:.0f} GB of weights on each of {made.validator_gpus} GPUs and holds at most"
            f" {weights / 1e9:.0f} GB"
        )
    if made.engine[0].nbytes > room:
        lines.append(f"an engine needs {made.engine[0].nbytes / 1e9:.0f} GB of weights on each of {wide} GPUs")
    if made.shared and not fits:
        lines.append(
            f"trainer, engine and validator do not fit on one GPU together: give {SEPARATE_GPUS} or more GPUs, or a smaller model"
        )
    elif not fits:
        lines.append(
            f"no trainer fits beside one engine of {wide} GPUs and a validator of {made.validator_gpus}: give more GPUs"
        )
    return tuple(lines)


def _on_cpus(shape: ModelShape) -> Division:
    settings = settings_for(shape, cpu=True)
    tokens = settings.max_sequence_length
    trained = trainer_rank(shape, 1, tokens, "Full", cpu=True)
    needed = total(trained)
    problems = (f"the trainer needs {needed / 1e9:.0f} GB of memory on CPUs: give GPUs, or a smaller model",)
    return Division(
        0, 0, "Full", settings, 0, 1, 0, 0, False, trained,
        engine(shape, 1, FULL_SEQUENCES, tokens, cpu=True),
        validator(shape, tokens, cpu=True),
        problems if needed > CPU_BYTES else (),
    )  # fmt: skip


def host_bytes(made: Division, shape: ModelShape) -> int:
    """Host memory of the trainer's pods beyond what a process needs anyway: offloaded weights, else the copy that a version is written from."""
    return offloaded(shape) if made.method == "LoRA, offloaded" else 12 * shape.parameters
