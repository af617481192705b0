"""What a step trains on, and what came of it: `steps/000007/batch.json` and `steps/000007/metrics.json`."""

from typing import Annotated

from pydantic import Field

from shoal.contracts.base import Contract, NodeId, Probability, RunName, Sha256Hex, unset

PromptIndex = Annotated[int, Field(ge=0)]


class BatchFile(Contract):
    """One accepted file of a batch, and which of its groups are used."""

    node: NodeId
    submission: int = Field(ge=0)
    sha256: Sha256Hex
    policy_version: int = Field(ge=0)
    rows: int = Field(ge=1)
    prompt_indices: list[int] = Field(min_length=1, max_length=100_000, description="groups used, by prompt index")


class SourceGroups(Contract):
    """Groups of one source of a mixture that were accepted for a step, and how many of them carry signal. A batch may leave some out at its end."""

    sampled: int = Field(ge=0)
    with_signal: int = Field(ge=0)


class StepBatch(Contract):
    """`batch.json`: written once, when the step is full; exactly `prompts_per_step` groups that carry signal."""

    run: RunName
    step: int = Field(ge=0)
    beacon: Sha256Hex = Field(description="32 bytes in hex, as revealed")
    groups: int = Field(ge=1)
    groups_dropped: int = Field(ge=0, description="accepted groups without signal, dropped by the online filter")
    files: list[BatchFile] = Field(min_length=1, max_length=1_000_000)
    by_source: dict[str, SourceGroups] = Field(
        default_factory=dict, max_length=16, exclude_if=unset, description="of a run on a mixture: each source"
    )
    solved: list[tuple[PromptIndex, Probability]] = Field(
        default_factory=list,
        max_length=1_000_000,
        exclude_if=unset,
        description="of a run with a curriculum: row of the task table and share of right answers for each group that was accepted before the step"
        " was full, in the ledger's order",
    )


class Beacon(Contract):
    """`beacons/000007.json`: the beacon of a step, or of a version's evaluation, since it was revealed. The ledger's commitment vouches for it."""

    run: RunName
    step: int = Field(ge=0)
    beacon: Sha256Hex


class TypeMeans(Contract):
    """Rows of one task type in one step: how many groups, and what came of them. A task type is a source of a mixture, where there is one."""

    groups: int = Field(ge=1, description="that were trained on")
    rows: int = Field(ge=1)
    task_reward: float
    reward: float
    completion_length_mean: float = Field(ge=0.0)
    share: float | None = Field(
        default=None, ge=0.0, le=1.0, exclude_if=unset, description="of the groups that were trained on"
    )
    sampled_share: float | None = Field(
        default=None, ge=0.0, le=1.0, exclude_if=unset, description="of the groups that were sampled, which weights set"
    )
    signal_share: float | None = Field(
        default=None, ge=0.0, le=1.0, exclude_if=unset, description="of its sampled groups: those that carry signal"
    )
    objective: str | None = Field(
        default=None, max_length=63, exclude_if=unset, description="of its rows, where `recipe.sources` names it"
    )
    loss_weight: float | None = Field(default=None, exclude_if=unset, description="factor of its rows' loss")
    loss: float | None = Field(
        default=None, exclude_if=unset, description="mean over its completion tokens, without the factor"
    )
    entropy: float | None = Field(default=None, exclude_if=unset, description="nats, mean over its completion tokens")
    clip_ratio: float | None = Field(
        default=None, exclude_if=unset, description="share of its completion tokens whose ratio was cut"
    )


class StepMetrics(Contract):
    """`metrics.json`: what the trainer measured in one step. Seconds are wall-clock; unix times are seconds since 1970."""

    run: RunName
    step: int = Field(ge=0)
    policy_version: int = Field(ge=1, description="the version that this step produced")
    attempt: str = Field(max_length=253, description="pod that trained the step")
    started_unix: float
    finished_unix: float
    reward: float
    task_reward: float
    length_penalty: float
    loss: float = Field(
        description="mean over completion tokens; with recipe.sources over those of all objectives, without weights: not what is minimised"
    )
    gradient_norm: float = Field(description="before the clip, mean over the optimizer steps that were applied")
    gradient_norm_max: float
    skipped_updates: int = Field(ge=0, description="optimizer steps left out because the gradient norm was not finite")
    clip_low: float = Field(
        description="share of completion tokens whose ratio was cut at 1 - epsilon: with recipe.sources by each one's own"
    )
    clip_high: float = Field(description="share cut at 1 + epsilon, likewise")
    clip_delta: float = Field(description="share cut at delta, likewise")
    entropy: float
    kl: float | None = Field(
        description="mean KL estimate to the base model, nats a token; None where recipe.klCoefficient is 0 and no reference model is asked"
    )
    mismatch_kl: float = Field(description="mean of worker log-prob minus recomputed log-prob on the same tokens")
    policy_lag_mean: float = Field(
        description="step minus policy version, over rows; of a row of several versions the mean over its tokens"
    )
    policy_lag_max: int = Field(ge=0)
    rows: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    completion_length_mean: float = Field(ge=0.0)
    packing_density: float
    data_digest: Sha256Hex | None = Field(
        default=None,
        exclude_if=unset,
        description="of what was learnt in which order, with advantages (`StepPlan.digest`); None: an earlier release's",
    )
    learning_rate: float
    rows_left_out: int = Field(default=0, ge=0, description="rows of the batch that could not be trained on")
    importance_capped: float = Field(
        default=0.0, ge=0.0, description="share of tokens whose importance weight was cut at the cap, likewise"
    )
    epoch: float | None = Field(
        default=None,
        ge=0.0,
        description="mode SFT: passes over the rows after the step; None where rollouts are learnt from",
    )
    held_out_loss: float | None = Field(
        default=None, description="mode SFT: mean loss (nats a token) of rows that are not learnt, after the step"
    )
    prm_loss: float | None = Field(
        default=None, description="algorithm prime: mean loss (nats a row) of the reward model, before each update"
    )
    prm_accuracy: float | None = Field(
        default=None, ge=0.0, le=1.0, description="share of rows on whose outcome the reward model was right"
    )
    prm_gradient_norm: float | None = Field(
        default=None, description="of the reward model, before its clip, mean over its applied updates"
    )
    prm_skipped_updates: int = Field(default=0, ge=0, description="updates of the reward model that were left out")
    value_by_boundary: list[float] = Field(
        default_factory=list,
        max_length=65,
        description="algorithm vineppo: mean value at each boundary of a completion, from the prompt (first) to the outcome (last)",
    )
    by_task_type: dict[str, TypeMeans] = Field(
        default_factory=dict,
        max_length=64,
        exclude_if=unset,
        description="of a step with several task types: means of each",
    )
    mismatch_truncated: float | None = Field(
        default=None,
        ge=0.0,
        exclude_if=unset,
        description="share of tokens whose ratio of trainer to engine was cut at the cap",
    )
    mismatch_masked: float | None = Field(
        default=None,
        ge=0.0,
        exclude_if=unset,
        description="share of tokens masked for their ratio of trainer to engine",
    )
    completions_masked: float | None = Field(
        default=None, ge=0.0, exclude_if=unset, description="share of completions masked for their mean ratio"
    )
    kl_coefficient: float | None = Field(
        default=None, ge=0.0, exclude_if=unset, description="of the step, where the recipe has a schedule of it"
    )
    clip_epsilon: float | None = Field(
        default=None, ge=0.0, exclude_if=unset, description="of the step, where the recipe has a schedule of it"
    )
    clip_epsilon_high: float | None = Field(
        default=None, ge=0.0, exclude_if=unset, description="of the step, where the recipe has a schedule of it"
    )
    expert_load_largest: float | None = Field(
        default=None,
        ge=0.0,
        exclude_if=unset,
        description="of a model with experts: tokens of the busiest expert of any layer, by the mean of its layer; 1: even",
    )
    expert_load_entropy: float | None = Field(
        default=None,
        ge=0.0,
        exclude_if=unset,
        description="entropy of the experts' shares of their layer's tokens, by its largest possible value, mean over layers; 1: even",
    )
    experts_unused: float | None = Field(
        default=None, ge=0.0, exclude_if=unset, description="share of all experts that no token was routed to"
    )
    router_replay_mismatch: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        exclude_if=unset,
        description="with recipe.routerReplay: share of (sampled token, layer) pairs to which the trainer's router would give other experts than"
        " the worker's engine gave",
    )
    warnings: list[str] = Field(default_factory=list, max_length=8, description="signs of instability, in words")
    moments_of: int | None = Field(
        default=None,
        ge=-1,
        exclude_if=unset,
        description="of a step that began with published weights after a stop: the older version whose optimizer state it took up; -1: a fresh one",
    )
    rolled_back_to: int | None = Field(
        default=None, ge=0, description="this step took up an earlier version instead of training"
    )
    phase_seconds: dict[str, float] = Field(
        description="wait, read, old_logprobs, reference_logprobs, update, save, and those of extensions; what was not needed is not there"
    )

    @property
    def trained(self) -> bool:
        """False for a step that had nothing to train on or went back to an earlier version: its means mean nothing."""
        return self.rows > 0

    @property
    def supervised(self) -> bool:
        """True for a step of mode SFT: it has no rewards, ratios or lags."""
        return self.epoch is not None

    @property
    def clip_ratio(self) -> float:
        """Share of completion tokens that were cut on either side."""
        return self.clip_low + self.clip_high + self.clip_delta
