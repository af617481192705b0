"""What a person chooses about a run and every trusted process must know: the fields common to `TrainingRun.spec` and `config/run.json`.

`TrainingRunSpec` and `RunConfig` both inherit from `RunSettings`, so that a setting is declared once, with one default. Pure.
"""

from typing import Any, Literal

from pydantic import Field

from shoal.contracts.base import SpecModel, unset
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.datasets import GenerateSettings, Mode
from shoal.contracts.evaluation import EvaluationSettings
from shoal.contracts.failures import FailurePolicy, RollBack, Stability
from shoal.contracts.model_source import ModelSource
from shoal.contracts.pools import Quantization
from shoal.contracts.recipe import Recipe
from shoal.contracts.sft import SftSettings
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource


class Broadcast(SpecModel):
    """How policy versions are cut for relays and workers (paper section 2.2)."""

    shard_bytes: int = Field(16_777_216, ge=1024, le=1 << 34, description="Bytes of a shard of a policy version.")
    anchor_every: int = Field(
        8,
        ge=1,
        le=100,
        description="Send every Nth version in full; the others as lossless deltas. 1 sends all in full.",
    )


VersionsOfARow = Literal["One", "Several"]


class Rollouts(SpecModel):
    """How workers make rollouts, and hand them in."""

    versions: VersionsOfARow = Field(
        "One",
        exclude_if=lambda versions: versions == "One",
        description="Several: rows that are being generated continue under newer weights when these arrive. Validators check each part of a row"
        " against its own version. One: each row comes from one version.",
    )
    quantization: Quantization | None = Field(
        None,
        exclude_if=unset,
        description="fp8: all pools sample with rounded weights, and say so too; proofs have thresholds of their own. Needs"
        " `recipe.mismatchCorrection`. Absent: no pool may (docs/adr/0116).",
    )
    hand_in_every_seconds: int | None = Field(
        None,
        ge=10,
        le=86_400,
        exclude_if=unset,
        description="Whole groups of a lease that takes longer are handed in after this time, and on SIGTERM. A killed worker loses what came since."
        " Slow nodes get leases of fewer groups. Such a lease takes about this time, at least half of a lease's life divided by a node's leases"
        " (docs/adr/0139). Absent: leases are handed in whole, and have all groups.",
    )


class RunSettings(SpecModel):
    """Mode, data and recipe of a run."""

    mode: Mode = Field(
        "Train",
        description="Train: reinforcement learning. Generate: write a dataset of verified traces with the base model. SFT: supervised warm start.",
    )
    model: ModelSource = Field(..., description="Base model.")
    tasks: TaskSource = Field(..., description="Tasks to learn.")
    steps: int | None = Field(
        None,
        ge=1,
        le=999_999,
        description="Steps of the run; each makes one policy version. Required, except in mode Generate, which samples each task once.",
    )
    seed: int = Field(0, ge=0, le=2_147_483_647, description="Seed of everything that the run itself draws.")
    recipe: Recipe = Field(default_factory=Recipe, description="How the run learns.")
    sampling: Sampling = Field(default_factory=Sampling, description="How completions are sampled.")
    rollouts: Rollouts | None = Field(
        None, exclude_if=unset, description="How workers make rollouts; absent: rows of one version, whole leases."
    )
    length_reward: LengthReward | None = Field(None, description="Length targets; absent: length does not count.")
    generate: GenerateSettings | None = Field(
        None, description="What a run of mode Generate keeps; absent: the defaults."
    )
    sft: SftSettings | None = Field(
        None,
        description="What a run of mode SFT learns, and how. Such a run needs no recipe, sampling, pools, relays or validators.",
    )
    evaluation: EvaluationSettings | None = Field(
        None, description="Benchmarks that the run's own workers score on its versions; absent: none."
    )
    async_level: int = Field(
        2, ge=0, le=4, description="Versions that rollouts may be behind; 0 is synchronous (paper section 4.2)."
    )
    storage: StorageSpec = Field(default_factory=StorageSpec, description="Object store: a folder, or S3-compatible.")
    broadcast: Broadcast = Field(default_factory=Broadcast, description="How policy versions are cut.")
    stability: Stability = Field(
        default_factory=Stability, description="Early warnings of a collapse, and what to do about them."
    )
    roll_back: RollBack | None = Field(None, description="Go back to an earlier version; absent: no.")
    failure_policy: FailurePolicy = Field(
        default_factory=FailurePolicy, description="What to do when something is wrong."
    )

    @property
    def several_versions(self) -> bool:
        """Whether a row may go on under newer weights."""
        return self.rollouts is not None and self.rollouts.versions == "Several"

    @property
    def quantization(self) -> Quantization | None:
        """How weights are rounded before they sample; None: not at all."""
        return self.rollouts.quantization if self.rollouts is not None else None

    @property
    def part_seconds(self) -> int | None:
        """After this time whole groups of a lease are handed in; None: leases are taken whole."""
        return self.rollouts.hand_in_every_seconds if self.rollouts is not None else None

    def settings(self) -> dict[str, Any]:
        """The common fields by name, to hand them on whole."""
        return {name: getattr(self, name) for name in RunSettings.model_fields}
