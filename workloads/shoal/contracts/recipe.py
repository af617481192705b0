"""What a person chooses about a run: recipe, sampling, lengths, model, tasks, storage, validation.

These models are both the parts of `TrainingRun.spec` from which the CRD is generated and the parts of `config/run.json` that the processes
read: one definition, one set of defaults. Defaults are those of INTELLECT-2 (paper sections 3 and 4.1) unless the field says otherwise.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from shoal.contracts.algorithm import GROUP_SIZE, GROUP_SIZES, Algorithm, Clip, Dppo, TwoSidedGrpo
from shoal.contracts.base import LARGEST_INTEGER, RunName, SpecModel, unset
from shoal.contracts.corrections import MismatchCorrection
from shoal.contracts.datasets import ColumnName, DatasetSource
from shoal.contracts.muon import MuonSettings
from shoal.contracts.prime import PrimeSettings
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.schedules import Schedules
from shoal.contracts.vine import VineSettings
from shoal.sampling.curriculum import PoolRule

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


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


class Lora(SpecModel):
    """Low-rank adapters instead of full updates (arXiv:2106.09685); what is published is merged into the base weights."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0.0, le=65536.0, description="Scale: an adapter is multiplied by alpha / rank.")
    target_modules: list[ShortText] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        max_length=32,
        description="Names of the linear layers that get an adapter.",
    )


STATE_OF_EACH_PARAMETERS = 2_000_000_000
STATE_OF_LARGE_EVERY = 10


class Offload(SpecModel):
    """What a trainer on GPUs keeps in its pods' host memory, each a copy away: slower, and smaller on the GPU."""

    reference: bool = Field(
        False, description="The reference model of the KL penalty; a layer at a time is copied to the GPU."
    )
    optimizer: bool = Field(
        False, description="AdamW's two moments, 8 bytes a parameter, and Muon's one; copied for each update."
    )
    activations: bool = Field(
        False, description="The layers' inputs between forward and backward; needs activation recomputation."
    )


class TrainerSettings(SpecModel):
    """How the trainer computes; nothing here changes what is computed except for rounding, LoRA apart."""

    data_type: Literal["Auto", "BFloat16", "Float32"] = Field(
        "Auto",
        description="Type of forward and backward; weights, optimizer and reductions are float32. Auto: bfloat16 on an accelerator.",
    )
    activation_recomputation: Literal["Auto", "On", "Off"] = Field(
        "Auto", description="Compute activations again in the backward pass. Auto: from 50 million parameters on."
    )
    cpu_offload: bool = Field(False, description="Keep weights and optimizer state in the host's memory.")
    offload: Offload | None = Field(
        None,
        exclude_if=unset,
        description="What alone is kept in the host's memory, where the GPU's is too small. Absent: nothing.",
    )
    compile: bool = Field(False, description="torch.compile of each layer; off, as in the paper (section 3.5).")
    lora: Lora | None = Field(None, description="Train low-rank adapters only; absent: all weights.")
    context_parallel: int | None = Field(
        None,
        ge=1,
        le=1024,
        exclude_if=unset,
        description="Ranks that share each pack, where one GPU's memory is too small for its activations: a divisor of the ranks and of the model's"
        " query heads, and a divisor or multiple of its key heads. Absent: 1.",
    )
    expert_parallel: Literal["Weights", "Tokens"] | None = Field(
        None,
        exclude_if=unset,
        description="What travels between the trainer's ranks for a layer's experts. Weights: each rank gathers the layer's experts, which suits long"
        " packs and small experts. Tokens: each rank keeps its experts, and tokens are sent there, which suits experts too large to gather. Not with"
        " `cpuOffload` or `compile`. Absent: Weights.",
    )
    kept_states: int = Field(
        3, ge=1, le=1000, description="Training states to keep: the newest, and earlier ones to fall back on."
    )
    state_every: int | None = Field(
        None,
        ge=1,
        le=1000,
        exclude_if=unset,
        description="Save the training state of every n-th version, behind its publication, and of the last one. Absent: of each up to two billion"
        " trained parameters, of every tenth above. With `lora` or islands it is saved of each, and first.",
    )

    @property
    def sharing(self) -> int:
        """Ranks that compute each pack together."""
        return self.context_parallel or 1

    @property
    def offloaded(self) -> Offload:
        """What is kept in the host's memory, each said out."""
        return self.offload or Offload()


def state_every(asked: int | None, trained_parameters: int) -> int:
    """Versions from one saved training state to the next. A state has 12 bytes a trained parameter: up to 24 GB are saved beside any step.

    At 32B it is 393 GB: at 10 Gb/s to the store, 315 s of ten steps of 22 minutes, 2.4 % of the line's time and none of the trainer's.
    """
    return asked or (1 if trained_parameters <= STATE_OF_EACH_PARAMETERS else STATE_OF_LARGE_EVERY)


class Stability(SpecModel):
    """Early warnings of a run that is about to collapse, and what to do (paper section 3.5)."""

    window_steps: int = Field(10, ge=2, le=1000, description="Steps over which a trend is measured.")
    gradient_norm_growth: float = Field(
        3.0,
        gt=1.0,
        le=1e6,
        description="Warn when the window's mean gradient norm exceeds this multiple of the previous window's.",
    )
    entropy_rise: float = Field(
        0.5, gt=0.0, le=100.0, description="Warn when entropy exceeds its minimum so far by this share."
    )
    clip_ratio_growth: float = Field(
        3.0,
        gt=1.0,
        le=1e6,
        description="Warn when the window's mean clip ratio exceeds this multiple of the previous window's.",
    )
    action: Literal["Report", "Pause", "RollBack"] = Field(
        "Report",
        description="What the run does at two warnings at once: report, pause before the next step, or roll back.",
    )
    acknowledged_version: int = Field(
        0, ge=0, le=999_999, description="Ignore warnings up to this policy version. Raise it to end a pause."
    )


class RollBack(SpecModel):
    """Take up an earlier version's training state. Numbers go on: step `atStep` publishes it as version `atStep + 1`."""

    to_version: int = Field(
        ..., ge=0, le=999_998, description="Version whose weights and optimizer state the trainer loads."
    )
    at_step: int = Field(
        ...,
        ge=1,
        le=999_998,
        description="Step that loads them instead of training. The run must not have trained it yet.",
    )


class FailurePolicy(SpecModel):
    """Reactions to failures."""

    bad_data: Literal["LeaveOut", "Stop"] = Field(
        "LeaveOut",
        description="What happens to a row or file that cannot be trained on. LeaveOut: count and skip it. Stop: fail the run.",
    )
    max_trainer_attempts: int = Field(
        10,
        ge=1,
        le=10_000,
        description="The run fails after this many consecutive starts of the trainer without a new policy version.",
    )


class Sampling(SpecModel):
    """How completions are sampled. Truncating samplers (top-p, top-k) bias the ratio and are not offered."""

    temperature: float = Field(1.0, gt=0.0, le=2.0, description="Sampling temperature.")
    max_completion_tokens: int = Field(30_720, ge=1, le=1_048_576, description="Longest completion in tokens.")
    groups_per_submission: int = Field(4, ge=1, le=4096, description="Prompts in one submitted file.")


class LengthReward(SpecModel):
    """The length penalty `alpha * |target - length|` with targets from a discrete set (paper section 3.1.2)."""

    targets: list[Annotated[int, Field(ge=1, le=1_048_576)]] = Field(
        [2000, 4000, 6000, 8000, 10000], min_length=1, max_length=64, description="Target lengths in tokens."
    )
    alpha: float = Field(0.0003, ge=0.0, le=1.0, description="Penalty for each token of difference.")


class GeneratedModel(SpecModel):
    """A tiny model made on the spot: for demos and tests, where no model hub is needed."""

    name: Literal["arithmetic", "calculator"] = Field(
        "arithmetic",
        description="What the model is made for: `arithmetic` for the environment of that name, `calculator` for the environment `tool`.",
    )
    hidden_size: int = Field(128, ge=128, le=4096, description="Width of the model; a proof needs 128 values.")
    layers: int = Field(3, ge=1, le=64, description="Transformer layers.")
    warm_start_pass_rate: Probability = Field(
        0.3, description="The supervised warm start ends when this share of sampled answers is correct."
    )
    warm_start_max_steps: int = Field(400, ge=1, le=100_000, description="Most updates of the supervised warm start.")
    warm_start_slips: Probability = Field(
        0.5,
        description="Share of the taught answers that have a mistake, which the rewards then teach the model to avoid. Of `calculator` the mistake is"
        " to make up what the calculator says.",
    )


class ModelSource(SpecModel):
    """Where the base model comes from: exactly one of the fields."""

    hugging_face: ShortText | None = Field(None, description="Repository on a Hugging Face hub, `owner/name`.")
    revision: ShortText | None = Field(None, description="Revision of the repository; required with huggingFace.")
    path: ShortText | None = Field(None, description="Folder with a Hugging Face checkpoint, mounted into prepare.")
    generated: GeneratedModel | None = Field(None, description="A tiny model made on the spot.")
    run: RunName | None = Field(
        None,
        description="Take the model that another run of this namespace and storage trains. This run waits until that run is complete.",
    )


class OfflineFilter(SpecModel):
    """Sample every task before the run and keep those of middling difficulty (paper section 3.3.1)."""

    samples: int = Field(8, ge=2, le=1024, description="Completions sampled for each problem.")
    min_correct: Probability = Field(
        0.125, description="Drop a problem when a smaller share of its samples is correct."
    )
    max_correct: Probability = Field(0.5, description="Drop a problem when a greater share of its samples is correct.")
    model: ModelSource | None = Field(None, description="Model that is sampled; absent: the run's base model.")
    solve_rate: ColumnName | None = Field(
        None,
        exclude_if=unset,
        description="Column of the dataset with the share of right answers that some model gave, from 0 to 1. Given: it decides, nothing is sampled,"
        " and problems without a rate are dropped.",
    )


class TaskOrigin(SpecModel):
    """Which environment gives or judges tasks, where they come from, how many, and how they are asked."""

    environment: ShortText | None = Field(
        None,
        description="Name of an installed environment (`shoal env list`). It judges answers, and makes the tasks when there is no dataset.",
    )
    count: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Number of tasks. Absent: all of a dataset, or 4096 that the environment makes.",
    )
    dataset: DatasetSource | None = Field(
        None, description="Files that the tasks come from; absent: the environment makes them."
    )
    offline_filter: OfflineFilter | None = Field(
        None, description="Sample every problem first, and keep those of middling difficulty only; absent: keep all."
    )
    prompt: PromptSettings | None = Field(
        None, exclude_if=unset, description="How prompts are made; absent: by the tokenizer's template."
    )

    @property
    def judged_by(self) -> str:
        """The environment's name; empty for a mixture, which has none of its own."""
        return self.environment or ""

    @property
    def is_sampled_first(self) -> bool:
        """Whether an offline filter needs these tasks sampled before the run. With the data set's own solve rates it does not."""
        return self.offline_filter is not None and self.offline_filter.solve_rate is None


MOST_SOURCES = 16
LARGEST_WEIGHT = 1000
"""With 16 sources a cycle of turns has at most 16,000 prompts (`sampling.mixture`)."""
SourceName = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


class MixtureSource(TaskOrigin):
    """One source of a mixture of tasks."""

    name: SourceName = Field(
        ..., description="Name in metrics, reports and problem ids; also the `task_type` of the source's tasks."
    )
    environment: ShortText = Field(
        ...,
        description="Name of an installed environment without tools. It judges answers, and makes the tasks when there is no dataset.",
    )
    weight: int = Field(
        1,
        ge=1,
        le=LARGEST_WEIGHT,
        description="The source's share of the prompts that are sampled: this number of the sum of all weights. The shares hold in every step:"
        " exactly where they are whole prompts of a file (sampling.groupsPerSubmission), else within two prompts for each node.",
    )
    length_targets: list[Annotated[int, Field(ge=1, le=1_048_576)]] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Target lengths of this source, in tokens, with the alpha of lengthReward. Absent: lengthReward.targets.",
    )


PoolWeight = Annotated[int, Field(ge=1, le=LARGEST_WEIGHT)]


class PoolWeights(SpecModel):
    """Shares of the prompts that are sampled: each number of the sum of all. Each is 1 or more, so that every problem comes again some time."""

    unseen: PoolWeight = Field(2, description="Problems that the run has not tried yet.")
    hard: PoolWeight = Field(1, description="Problems whose solve rate is below hardBelow.")
    middle: PoolWeight = Field(4, description="Problems between the two.")
    easy: PoolWeight = Field(1, description="Problems whose solve rate is easyFrom or more.")


class Curriculum(SpecModel):
    """Pools of problems by the solve rate that the run itself measures: how often each pool is drawn from."""

    weights: PoolWeights = Field(default_factory=PoolWeights, description="Each pool's share of the prompts.")
    hard_below: float = Field(
        0.125, gt=0.0, le=1.0, description="Problems with a lower share of right answers are hard."
    )
    easy_from: float = Field(
        0.875, gt=0.0, le=1.0, description="Problems with at least this share of right answers are easy."
    )
    votes: int = Field(
        4,
        ge=1,
        le=1000,
        description="Groups of a problem that its solve rate is a mean over. From then on each new group counts 1 / votes, and older ones fade.",
    )
    most_often: int = Field(
        8,
        ge=1,
        le=1000,
        description="A pool's share is at most this number times its share of the problems, or one prompt in a thousand."
        " A small pool leaves the rest to others.",
    )

    @property
    def rule(self) -> PoolRule:
        """The same for whoever makes pools."""
        weights = (self.weights.unseen, self.weights.hard, self.weights.middle, self.weights.easy)
        return PoolRule(weights, self.hard_below, self.easy_from, self.votes, self.most_often)


class TaskSource(TaskOrigin):
    """Tasks of one environment, or a mixture of several sources."""

    mixture: Annotated[list[MixtureSource], Field(min_length=1, max_length=MOST_SOURCES)] | None = Field(
        None,
        exclude_if=unset,
        description="Sources that are trained on together, each with its own environment, data and weight. Given instead of environment, count,"
        " dataset and offlineFilter; prompt counts for sources that have none. Absent: one environment.",
    )
    curriculum: Curriculum | None = Field(
        None,
        exclude_if=unset,
        description="Draw problems from pools, by the solve rate that the run measures. Absent: all problems are drawn equally often.",
    )

    @property
    def origins(self) -> Sequence[TaskOrigin]:
        """Where tasks come from: the sources of a mixture, or this alone."""
        return self.mixture or [self]

    @property
    def sampled_filter(self) -> OfflineFilter | None:
        """The offline filter, where it needs a run that samples; all sources of a mixture that have one say the same of samples and model."""
        return next((each.offline_filter for each in self.origins if each.is_sampled_first), None)


class WorkloadIdentity(SpecModel):
    """Temporary keys of an S3-compatible store, which its token service gives for a service account's token (AssumeRoleWithWebIdentity)."""

    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] = Field(
        ...,
        description="Service account of the parts that read or write the store; it must exist in the run's namespace.",
    )
    role_arn: ShortText = Field(..., description="Role that the service account may assume.")
    sts_endpoint: ShortText = Field(
        ...,
        description="URL of the token service: on AWS https://sts.REGION.amazonaws.com, of MinIO the store's own.",
    )
    audience: ShortText = Field("sts.amazonaws.com", description="Audience that the token is made for.")
    duration_seconds: int | None = Field(
        None,
        ge=900,
        le=43_200,
        description="Life of the temporary keys, in seconds; absent: what the service gives, on AWS an hour, on MinIO the token's own.",
    )


class S3Storage(SpecModel):
    """An S3-compatible object store such as MinIO."""

    endpoint: ShortText = Field(..., description="URL of the store as the run's own parts reach it.")
    public_endpoint: ShortText | None = Field(None, description="URL of the store as strangers' machines reach it.")
    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(
        ..., description="Bucket; it must exist."
    )
    region: ShortText = Field("us-east-1", description="Region name that signatures are made for.")
    credentials_secret: ShortText | None = Field(
        None, exclude_if=unset, description="Secret with `accessKey` and `secretKey`."
    )
    workload_identity: WorkloadIdentity | None = Field(
        None, exclude_if=unset, description="Temporary keys for a service account, instead of a Secret."
    )


class AzureWorkload(SpecModel):
    """An access token of Microsoft Entra ID, which it gives for a service account's token (OAuth 2.0 client credentials with an assertion)."""

    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] = Field(
        ...,
        description="Service account of the parts that read or write the store; it must exist in the run's namespace.",
    )
    tenant_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] = Field(
        ..., description="Tenant of the application, by its id or domain."
    )
    client_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}$")] = Field(
        ...,
        description="Application or managed identity whose federated credential names the service account. It needs to read, write and delete blobs.",
    )
    authority: ShortText = Field(
        "https://login.microsoftonline.com", description="URL of the token service; national clouds have others."
    )
    audience: ShortText = Field("api://AzureADTokenExchange", description="Audience that the token is made for.")


class AzureStorage(SpecModel):
    """A container of Azure Blob Storage. The orchestrator takes strangers' uploads, as with a folder."""

    account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{3,24}$")] = Field(..., description="Storage account.")
    container: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9](-?[a-z0-9]){2,62}$")] = Field(
        ..., description="Container; it must exist."
    )
    endpoint: ShortText | None = Field(
        None, description="URL of the blob service; absent: https://ACCOUNT.blob.core.windows.net."
    )
    workload_identity: AzureWorkload = Field(..., description="Who the store is asked as.")

    @property
    def url(self) -> str:
        """URL of the blob service."""
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"


class Retention(SpecModel):
    """What the store keeps of steps that are past. The ledger, batches, beacons, verdicts and findings always stay."""

    keep: Literal["Everything", "Audit", "Verify"] = Field(
        "Audit",
        description="Audit: all that `shoal ledger audit` reads; leases and the bytes of late files go. Verify: all that `shoal ledger verify` reads;"
        " every file of a step goes once it is trained, and an audit cannot check it any more. Everything: nothing goes.",
    )
    steps: int = Field(16, ge=2, le=100_000, description="Newest sealed steps of which everything stays.")


class StorageSpec(SpecModel):
    """The object store: a folder by default, an S3-compatible store when `s3` is given, Azure Blob Storage with `azure`."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        "shoal", description="First part of every object key."
    )
    s3: S3Storage | None = Field(None, description="Use this store instead of a folder.")
    azure: AzureStorage | None = Field(None, exclude_if=unset, description="Use this container instead of a folder.")
    folder_size: ShortText = Field("20Gi", description="Size of the volume that holds the folder store.")
    retention: Retention | None = Field(
        None,
        exclude_if=unset,
        description="What is kept of past steps; absent: what an audit reads, and 16 steps whole.",
    )

    @property
    def is_folder(self) -> bool:
        """Whether the store is a volume of the run."""
        return self.s3 is None and self.azure is None


class FileMean(SpecModel):
    """Bound on the mean of the mantissa errors over a file's verified chunks: for a type of serving in which one chunk says little."""

    bound: float = Field(ge=0.0, le=10.0, description="Greatest mean over a large number of chunks.")
    deviation: float = Field(
        ge=0.0,
        le=10.0,
        description="Standard deviation of one honest chunk. The bound is wider when a file has few verified chunks.",
    )


class DrawnGaps(SpecModel):
    """How far a file's tokens may be behind those that their seeds draw, in nats at temperature 1: rounding decides where two are nearly equal."""

    share: Probability = Field(description="Greatest share of tokens that are behind at all, over many tokens.")
    mean: float = Field(ge=0.0, le=1.0, description="Greatest mean over many tokens; a token that is drawn counts 0.")
    deviation: float = Field(
        ge=0.0, le=1.0, description="Standard deviation of one token. The bound is wider when a file has few tokens."
    )
    largest: float = Field(gt=0.0, le=2.0, description="The farthest that one token may be behind.")
    outliers: float | None = Field(
        None,
        gt=0.0,
        le=0.01,
        exclude_if=lambda share: share is None,
        description="Greatest share of tokens that are farther behind, over many tokens. Its row is left out. Absent: it rejects the file.",
    )


class ProofThresholds(SpecModel):
    """TOPLOC tolerances of one chunk; the published bf16 values are the upper bound (TOPLOC, section 4)."""

    max_exponent_mismatches: int = Field(38, ge=0, le=38, description="Most exponents that may differ, of 128 values.")
    max_mantissa_error_mean: float = Field(10.0, ge=0.0, le=10.0, description="Greatest mean error of the mantissas.")
    max_mantissa_error_median: float = Field(8.0, ge=0.0, le=8.0, description="Greatest median error of the mantissas.")
    file_mean: FileMean | None = Field(
        None,
        description="Bound on a whole file, as `shoal calibrate --engine` measures it; absent: chunks alone are judged.",
    )
    drawn_gaps: DrawnGaps | None = Field(
        None,
        exclude_if=lambda gaps: gaps is None,
        description="Budget of a file's tokens, as `shoal calibrate --engine` measures it; absent: one that fits any engine of the data type.",
    )


PROGRAM_SECONDS = 1800


class Validation(SpecModel):
    """How uploads are checked (paper section 2.3)."""

    proof_rows_share: Probability = Field(0.1, description="Share of a file's rows whose proofs are verified.")
    proof_rows_floor: int = Field(
        4, ge=1, le=65536, description="Least number of rows whose proofs are verified, whatever the share."
    )
    thresholds: ProofThresholds | None = Field(
        None,
        description="TOPLOC tolerances of one chunk. Absent: those that prepare calibrated for the model and its data type (docs/toploc.md).",
    )
    min_eos_probability: Probability = Field(
        0.1,
        description="A file is rejected when an end-of-sequence token is less likely than this: somebody stopped the completion early.",
    )
    max_low_probability_share: Probability = Field(
        0.15, description="Greatest share of sampled tokens with a probability below 0.05, beyond the expected share."
    )
    slashing: Literal["Evict", "Discard"] = Field(
        "Evict",
        description="What happens to the node of a rejected file. Evict: it leaves the run forever. Discard: it loses the file only.",
    )
    slash_votes: int = Field(
        1,
        ge=1,
        le=16,
        description="Validators that must agree before a reject stands. With 1, a statistical reject still needs a second finding.",
    )
    claim_seconds: int = Field(
        60,
        ge=1,
        le=3600,
        description="Seconds without progress before a claimed file goes to another validator.",
    )
    probation_files: int = Field(
        10,
        ge=0,
        le=100_000,
        description="Accepted files in a row until which all rows of a node's files are verified. Afterwards the share falls as 1 / files.",
    )
    false_reject_rate: float = Field(
        1e-4, gt=0.0, le=0.05, description="Greatest chance that a statistical check rejects an honest file."
    )
    miss_rate: float = Field(
        0.01, gt=0.0, le=0.5, description="Chance that the sequential test stops early on rows of another temperature."
    )
    program_seconds: int = Field(
        PROGRAM_SECONDS,
        exclude_if=lambda seconds: seconds == PROGRAM_SECONDS,
        ge=1,
        le=86_400,
        description="CPU seconds that the programs of one file may take together. Rows after that are not scored.",
    )
    weights_memory_bytes: int | None = Field(
        None,
        exclude_if=unset,
        ge=1,
        le=LARGEST_INTEGER,
        description="Bytes of weights that one validator holds, on all its GPUs together. At least one version must fit. "
        "Absent: 85 % of the memory of its GPUs; without GPUs 60 % of the pod's.",
    )
    redraw: Literal["Auto", "Off"] = Field(
        "Auto",
        description="Not used: `sampler` of each pool says it. Manifests of 0.2.0 may have this field.",
    )
