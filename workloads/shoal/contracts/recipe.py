"""How a run learns: `recipe` of a manifest.

`Recipe` is a part of `TrainingRun.spec`, from which the CRD is generated, and a part of `config/run.json`, which the processes read.
So is each `SpecModel`: one definition, one set of defaults. They are those of INTELLECT-2 (paper sections 3 and 4.1) unless the field says otherwise.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shoal.contracts.algorithm import GROUP_SIZE, GROUP_SIZES, Algorithm, Clip, Dppo, TwoSidedGrpo
from shoal.contracts.base import SpecModel, unset
from shoal.contracts.corrections import MismatchCorrection
from shoal.contracts.muon import MuonSettings
from shoal.contracts.prime import PrimeSettings
from shoal.contracts.schedules import Schedules
from shoal.contracts.sources import MOST_SOURCES, SourceObjective
from shoal.contracts.vine import VineSettings


class OverlongShaping(SpecModel):
    """DAPO's soft penalty on completions that come near the limit (arXiv:2503.14476, section 3.4)."""

    buffer_tokens: int = Field(
        4096,
        ge=1,
        le=1_048_576,
        description="The penalty grows linearly over this many tokens before the limit.",
    )
    penalty: float = Field(1.0, gt=0.0, le=100.0, description="Penalty at the limit, subtracted from the reward.")


def _without_default(schema: dict[str, Any]) -> None:
    """For a default that depends on another field: an API server must not fill one in."""
    schema.pop("default", None)


INTELLECT_2 = Algorithm(two_sided_grpo=TwoSidedGrpo())
"""The paper's algorithm, which a recipe has where it names none."""


class Recipe(SpecModel):
    """How the run learns (paper sections 3.1 to 3.5 and 4.1)."""

    algorithm: Algorithm = Field(
        INTELLECT_2, description="Algorithm that the run learns with, and its parameters; the default is the paper's."
    )
    prompts_per_step: int = Field(256, ge=1, le=65536, description="Groups with signal that make a full rollout step.")
    group_size: int = Field(
        GROUP_SIZE,
        ge=2,
        le=1024,
        description="Completions sampled for each prompt. Absent: 16, with prime 4, with vineppo 8.",
        json_schema_extra=_without_default,
    )
    optimizer_steps: int = Field(8, ge=1, le=1024, description="Optimizer updates made from one rollout step.")
    learning_rate: float = Field(3e-7, gt=0.0, le=1.0, description="Peak AdamW learning rate.")
    warmup_steps: int = Field(25, ge=0, le=100_000, description="Optimizer steps of linear warm-up, then constant.")
    adam_beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW first-moment decay.")
    adam_beta2: float = Field(0.99, ge=0.0, lt=1.0, description="AdamW second-moment decay.")
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW decoupled weight decay.")
    max_grad_norm: float = Field(0.1, gt=0.0, le=1e6, description="Global gradient-norm clip (paper section 3.5).")
    muon: MuonSettings | None = Field(
        None,
        exclude_if=unset,
        description="Update the matrices of the decoder's layers by Muon, with the same learning rate; absent: AdamW updates all.",
    )
    overlong_shaping: OverlongShaping | None = Field(
        None, description="Penalise completions whose length comes near the limit (DAPO); absent: no penalty."
    )
    overlong_filter: bool = Field(
        False,
        exclude_if=lambda on: not on,
        description="Learn nothing from completions that were cut off at the limit (DAPO, section 3.4).",
    )
    mismatch_correction: MismatchCorrection | None = Field(
        None,
        exclude_if=unset,
        description="Weigh or mask tokens whose probability differs between engine and trainer; absent: no.",
    )
    router_replay: Literal["Report", "Replay"] | None = Field(
        None,
        exclude_if=unset,
        description="Of a model with experts: workers record which experts each sampled token was given to. Report: the trainer says how often"
        " its own choice differs. Replay: it also trains with the recorded ones. Absent: nothing is recorded.",
    )
    schedules: Schedules | None = Field(
        None, exclude_if=unset, description="Learning rate, KL and clip over the run's steps; absent: constant."
    )
    sources: Annotated[list[SourceObjective], Field(min_length=1, max_length=MOST_SOURCES)] | None = Field(
        None,
        exclude_if=unset,
        description="Sources of `tasks.mixture` whose rows have an algorithm or a loss weight of their own. A row adds to the loss what it would add"
        " if all rows had its algorithm, times its weight. Absent: all rows are alike.",
    )
    credit: Literal["Episode", "Turn"] = Field(
        "Episode",
        exclude_if=lambda credit: credit == "Episode",
        description="Which reward a token of an episode with tools is learnt by. Episode: that of the whole. Turn: those of its own turn and of later"
        " ones, against the group's turns (arXiv:2402.03300, section 4.1.3); the environment must reward each turn.",
    )
    kl_coefficient: float = Field(0.001, ge=0.0, le=10.0, description="Weight of the KL penalty to the base model.")
    entropy_coefficient: float = Field(1e-4, ge=0.0, le=10.0, description="Weight of the entropy bonus.")
    online_filter: Literal["TaskReward", "TotalReward", "None"] = Field(
        "TaskReward",
        description="Which reward must differ within a group for it to carry signal (paper section 3.3.2).",
    )
    sampling_cap: int = Field(
        20,
        ge=2,
        le=100_000,
        description="Most groups judged for one step, in multiples of promptsPerStep. A step that still lacks signal waits until a person acts.",
    )
    max_sequence_length: int = Field(
        32_768, ge=16, le=1_048_576, description="Tokens of prompt and completion together."
    )
    pack_length: int | None = Field(
        None,
        ge=16,
        le=4_194_304,
        description="Tokens of one packed micro-batch; absent: maxSequenceLength.",
    )

    @model_validator(mode="before")
    @classmethod
    def _group_size_of_the_algorithm(cls, given: Any) -> Any:
        """Fill in the group size, whose default depends on the algorithm."""
        if not isinstance(given, dict) or {"group_size", "groupSize"} & given.keys():
            return given
        algorithm = given.get("algorithm")
        named = algorithm if isinstance(algorithm, dict) else dict(algorithm or {})
        sizes = [size for name, size in GROUP_SIZES.items() if named.get(name) is not None]
        return {**given, "groupSize": sizes[0]} if sizes else given

    @property
    def objective(self) -> str:
        """Name of the policy's loss; one of `training.objectives.OBJECTIVES`."""
        return self.algorithm.objective

    @property
    def loss(self) -> Clip | Dppo:
        """The numbers of the policy's loss."""
        return self.algorithm.loss

    @property
    def scheduled_steps(self) -> list[int]:
        """The steps at which a schedule has a point, and step 0: values are extreme at one of them."""
        plan = self.schedules or Schedules()
        lists = (plan.learning_rate, plan.kl_coefficient, plan.clip_epsilon, plan.clip_epsilon_high)
        return sorted({0, *(point.step for points in lists for point in points or [])})

    def of_source(self, name: str) -> "Recipe":
        """The recipe by which rows of a source are learnt from: itself, or with the source's algorithm, whose clip no schedule changes."""
        own = next((each.algorithm for each in self.sources or [] if each.name == name), None)
        if own is None:
            return self
        member, numbers = own.given
        plan = self.schedules and self.schedules.model_copy(update={"clip_epsilon": None, "clip_epsilon_high": None})
        return self.model_copy(update={"algorithm": Algorithm(**{member: numbers}), "schedules": plan})

    @property
    def normalizes_advantages(self) -> bool:
        """Whether advantages are divided by a standard deviation: that of their group, or with VinePPO that of the step."""
        return self.algorithm.normalizes_advantages

    @property
    def process_rewards(self) -> PrimeSettings | None:
        """PRIME's settings; None with another algorithm."""
        return self.algorithm.prime

    @property
    def asks_reference(self) -> bool:
        """Whether the base model is asked for log-probabilities: for a KL penalty at some step, or for PRIME's reward model."""
        scheduled = self.schedules is not None and self.schedules.kl_coefficient is not None
        return bool(self.kl_coefficient) or scheduled or self.process_rewards is not None

    @property
    def vine(self) -> VineSettings | None:
        """Where VinePPO cuts completions; None with another algorithm."""
        return self.algorithm.vineppo.cuts if self.algorithm.vineppo is not None else None

    @property
    def rows_each(self) -> int:
        """Rows of a file for each completion that is learnt from."""
        return 1 if self.vine is None else self.vine.rows_each
