"""TrainingRun: one run, from a base model and a task set to a trained model. The only kind that most people write."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel
from shoal.contracts.pools import Quantization
from shoal.contracts.settings import RunSettings
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.trainer import TrainerSettings
from shoal_operator.api.base import Conditions, ObjectMeta, ObjectName, Resources, Size, Time
from shoal_operator.api.exposure import Exposure
from shoal_operator.api.inference_pool import InferencePoolTemplate
from shoal_operator.api.islands import IslandsSpec, IslandsStatus
from shoal_operator.api.keys import KeysSpec, KeyStatus
from shoal_operator.api.last_words import MOST_CAUSES, LastWords
from shoal_operator.api.pods import Gpus, Images, LabelValue, ObjectRef, PodTemplate, PodWithVariables, PrepareTemplate
from shoal_operator.api.relay_server import RelayServerTemplate
from shoal_operator.api.runner import RunnerTemplate
from shoal_operator.api.trackers import TrackersTemplate
from shoal_operator.api.ui import UiTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.api.volumes import StoreVolume, Volume, temporary_field


class TrainerTemplate(SpecModel):
    """The trainer: one Indexed Job whose pods do the updates together, restarted as a whole."""

    replicas: int = Field(
        1, ge=1, le=1024, description="Pods of the trainer. Weights and optimizer state are sharded over all of them."
    )
    gpu: Gpus = Field(default_factory=Gpus, description="Accelerators of one pod.")
    processes_per_replica: int | None = Field(
        None, ge=1, le=64, description="Ranks in each pod; absent: one for each GPU, or one without GPUs."
    )
    settings: TrainerSettings = Field(default_factory=TrainerSettings, description="How the trainer computes.")
    islands: IslandsSpec | None = Field(
        None,
        description="Several trainers that exchange rarely, in this run or in a group of runs; absent: one trainer.",
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of one trainer container.")
    scratch_size: Size = Field(
        "20Gi", description="Size of the volumes for unpublished checkpoints and for the origin."
    )
    scratch_volume: Volume | None = Field(
        None,
        description="Claims of those volumes. Further islands then have such a claim too, while their pod lives.",
    )
    temporary_volume: Volume | None = temporary_field(
        "a published version that a restart reads, and a rollout file for each rank"
    )
    pod_template: PodWithVariables = Field(
        default_factory=PodWithVariables, description="Environment, placement and labels of the pods."
    )

    @property
    def processes(self) -> int:
        """Ranks in each pod."""
        return self.processes_per_replica or max(1, self.gpu.count)


class ControlPlaneTemplate(SpecModel):
    """Orchestrator, discovery and Redis: one pod each."""

    resources: Resources = Field(default_factory=Resources, description="Resources of the orchestrator.")
    redis_volume: Volume | None = Field(None, description="Claim of Redis's volume; absent: 1Gi.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pods.")
    exposure: Exposure = Field(
        default_factory=Exposure, description="How strangers' machines reach discovery and orchestrator."
    )


Release = Annotated[str, StringConstraints(max_length=63, pattern=r"^[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?$")]
"""A release of Shoal, such as 0.3.0: also the key of an entry of a Secret."""


class TrainingRunSpec(RunSettings):
    """Settings of a run: its mode, data, recipe and parts."""

    data_claim: ObjectRef | None = Field(
        None,
        description="Your PersistentVolumeClaim with the files that `path` fields and tasks of lm-evaluation-harness name. Prepare mounts it"
        " read-only at /shoal/data. Without effect on one machine, where paths are the machine's own.",
    )
    store_volume: StoreVolume | None = Field(
        None,
        description="Claim of the folder store; absent: storage.folderSize, ReadWriteMany, deleted with the run.",
    )
    prepare: PrepareTemplate | None = Field(
        None,
        description="The Job that fetches model and data sets: its hub token, endpoint, proxy and certificates; absent: none of them.",
    )
    trainer: TrainerTemplate = Field(default_factory=TrainerTemplate, description="The trainer.")
    inference_pools: list[InferencePoolTemplate] = Field(
        [InferencePoolTemplate()],
        max_length=16,
        description="Pools of rollout workers that the run makes; absent: one named `pool`.",
    )
    inference_pool_refs: list[ObjectName] = Field(
        [],
        max_length=64,
        description="InferencePools that others made for this run. It waits for them and counts them; unnamed pools may serve it too.",
    )
    relay_server: RelayServerTemplate | None = Field(
        None, description="The relays; absent without relayServerRef: relays with the defaults."
    )
    relay_server_ref: ObjectName | None = Field(
        None, description="A RelayServer in this namespace that others made for this run, instead of relayServer."
    )
    validator: ValidatorTemplate | None = Field(
        None, description="The validators; absent without validatorRef: validators with the defaults."
    )
    validator_ref: ObjectName | None = Field(
        None, description="A Validator in this namespace that others made for this run, instead of validator."
    )
    runner: RunnerTemplate | None = Field(
        None,
        description="Pods that judge programs; absent: one if the environment is `code`, else none.",
    )
    control_plane: ControlPlaneTemplate = Field(
        default_factory=ControlPlaneTemplate, description="Orchestrator, discovery and Redis."
    )
    ui: UiTemplate | None = Field(None, description="The page of the run (docs/ui.md); absent: none.")
    trackers: TrackersTemplate | None = Field(
        None, description="Send metrics to Weights & Biases, trackio or TensorBoard; absent: no."
    )
    images: Images = Field(default_factory=Images, description="Images instead of the release's.")
    release: Release | None = Field(
        None,
        description="Release of Shoal that makes the run's parts: the operator's, or one that made them before. A change replaces the parts one by"
        " one, the trainer last and after a version. Absent: they stay as the release that made them.",
    )
    queue_name: LabelValue | None = Field(
        None,
        description="Kueue LocalQueue that admits the whole run, all its pods at once (docs/adr/0095); absent: it starts at once. What refs name"
        " is not part of it.",
    )
    queue_priority: Annotated[int, Field(ge=-2_147_483_648, le=2_147_483_647)] | None = Field(
        None, description="Priority in the queue; runs of a higher one may preempt. Absent: 0."
    )
    managed_by: Literal["kueue.x-k8s.io/multikueue"] | None = Field(
        None,
        description="Who runs it instead of this cluster's operator, which then leaves it alone; absent: the operator.",
    )
    active_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=315_360_000,
        description="Seconds that the run may be active before it fails; a suspension restarts the count. Absent: no limit.",
    )
    progress_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=31_536_000,
        description="Seconds without progress after which the condition `Stalled` names the cause; longer than the longest step with its broadcast."
        " Absent: an hour.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=315_360_000,
        description="Seconds to keep a finished run before deleting it and its folder store, unless that is retained. Absent: never delete it.",
    )
    keys: KeysSpec | None = Field(
        None, description="Replace keys of the run, as planned or after a leak (docs/security.md); absent: none."
    )
    suspend: bool = Field(False, description="Stop every part and keep the run's data; false resumes the run.")


class TrainerStatus(SpecModel):
    """The trainer's current attempt."""

    attempt: int = Field(0, ge=0, description="Number of the current Job; grows when a new Job replaces it.")
    started_at_version: int = Field(0, ge=0, description="Newest policy version when the attempt began.")
    failures: int = Field(0, ge=0, description="Attempts in a row that failed without a new policy version.")
    last_failed: int = Field(0, ge=0, description="Number of the last attempt that `failures` counts.")


class DatasetStatus(SpecModel):
    """Progress of a run of mode Generate."""

    slices: int = Field(0, ge=0, description="Slices of the task table; each is one submission.")
    slices_collected: int = Field(0, ge=0, description="Slices whose completions were read.")
    rows_seen: int = Field(0, ge=0, description="Accepted completions.")
    rows_kept: int = Field(0, ge=0, description="Completions in the dataset.")


class ComponentStatus(SpecModel):
    """Pods of one part."""

    name: Annotated[str, StringConstraints(max_length=64)] = Field(..., description="Name of the part.")
    ready: int = Field(0, ge=0, description="Pods that are ready.")
    desired: int = Field(0, ge=0, description="Pods that the spec asks for.")


class ProofControl(SpecModel):
    """A kind of dishonest proof, as the calibration made it."""

    name: Annotated[str, StringConstraints(max_length=63)] = Field(..., description="Name of the dishonest method.")
    accepted_chunks: float = Field(..., ge=0, le=1, description="Share of its chunks that pass the thresholds.")
    accepted_files: float = Field(..., ge=0, le=1, description="Share of its files in which every chunk passes.")


class ProofStatus(SpecModel):
    """TOPLOC thresholds in force, and how often they were seen to err (docs/toploc.md)."""

    calibrated: bool = Field(..., description="Whether the thresholds are those that the model was calibrated with.")
    thresholds: ProofThresholds = Field(..., description="Tolerances of one chunk.")
    masked_dimensions: int = Field(0, ge=0, description="Dimensions that proofs leave out.")
    quantization: Quantization | None = Field(
        None, description="How the weights are rounded that proofs are of; absent: not at all."
    )
    honest_chunks: int = Field(0, ge=0, description="Honest chunks of the calibration.")
    false_reject_chunks_bound: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Upper 95 % limit of the share of honest chunks that the calibrated thresholds reject.",
    )
    false_reject_files_bound: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Upper 95 % limit of the share of honest files rejected. With continuations it counts the rows drawn from a proven node's file.",
    )
    controls: list[ProofControl] = Field([], max_length=64, description="Dishonest proofs of the calibration.")


class ResolvedRevision(SpecModel):
    """What a branch or tag of a hub's repository was when the run was prepared; every part uses that."""

    kind: Literal["model", "dataset"] = Field(..., description="Kind of repository.")
    repository: Annotated[str, StringConstraints(max_length=253)] = Field(..., description="Repository, `owner/name`.")
    revision: Annotated[str, StringConstraints(max_length=253)] = Field(..., description="Revision in the spec.")
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] = Field(
        ..., description="Commit that is used."
    )


class AnswerShown(SpecModel):
    """One answer as the model saw its prompt and gave it. The text is a stranger's."""

    problem_id: Annotated[str, StringConstraints(max_length=253)] = Field(..., description="Problem that was asked.")
    prompt: Annotated[str, StringConstraints(max_length=1200)] = Field(..., description="Prompt, shortened.")
    answer: Annotated[str, StringConstraints(max_length=1200)] = Field(..., description="Answer, shortened.")
    tokens: int = Field(0, ge=0, description="Tokens of the answer.")
    cut: bool = Field(False, description="Whether it ended at the length limit.")
    task_reward: float | None = Field(None, ge=0, le=1, description="Task reward; absent: it could not be scored.")


class AnswersStatus(SpecModel):
    """What became of the newest answers. Shares are of 1; the condition `Learning` says what follows from them."""

    groups: int = Field(0, ge=0, description="Newest accepted groups that this is about.")
    groups_with_signal: int = Field(0, ge=0, description="Those whose rewards differ.")
    groups_right: float = Field(0.0, ge=0, le=1, description="Share of groups whose answers are all right.")
    groups_wrong: float = Field(0.0, ge=0, le=1, description="Share of groups whose answers are all wrong.")
    right: float = Field(0.0, ge=0, le=1, description="Share of answers with task reward 1.")
    cut: float = Field(0.0, ge=0, le=1, description="Share of answers that ended at the length limit.")
    unscorable: float = Field(0.0, ge=0, le=1, description="Share of answers that could not be scored.")
    unanswered: float | None = Field(
        None, ge=0, le=1, description="Share of answers without a final one; absent: the environment cannot tell."
    )
    samples: list[AnswerShown] = Field([], max_length=3, description="Answers of groups without signal.")


class VersionScore(SpecModel):
    """The newest version that was fully scored on a benchmark."""

    benchmark: Annotated[str, StringConstraints(max_length=63)] = Field(..., description="Name of the benchmark.")
    version: int = Field(..., ge=0, description="Policy version.")
    score: float = Field(..., ge=0, le=1, description="Mean task reward (avg@k).")
    low: float | None = Field(None, ge=0, le=1, description="Lower end of its 95 % interval over tasks.")
    high: float | None = Field(None, ge=0, le=1, description="Upper end of its 95 % interval over tasks.")


Components = Annotated[
    list[ComponentStatus],
    Field(max_length=128, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]
Keys = Annotated[
    list[KeyStatus],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]
Scores = Annotated[
    list[VersionScore],
    Field(
        max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["benchmark"]}
    ),
]


class TrainingRunStatus(SpecModel):
    """State of the run; only the operator writes it."""

    observed_generation: int | None = Field(
        None, ge=0, description="Generation of the spec that the operator acted on last."
    )
    release: str | None = Field(
        None, description="Release that made the run's parts; while they are rolled, the one that they leave."
    )
    phase: str | None = Field(None, description="One word for printer columns; the conditions say more.")
    start_time: Time | None = Field(None, description="When the run was started or last resumed, RFC 3339.")
    completion_time: Time | None = Field(None, description="When the run became complete or failed, RFC 3339.")
    last_progress_time: Time | None = Field(
        None,
        description="When a version, step, group with signal or other result was seen last; absent: nothing is due.",
    )
    step: int | None = Field(None, ge=0, description="Open rollout step.")
    policy_version: int | None = Field(None, ge=0, description="Newest announced policy version.")
    reward: float | None = Field(None, description="Mean task reward of the last trained step.")
    gradient_norm: float | None = Field(None, description="Gradient norm of the last trained step, before the clip.")
    clip_ratio: float | None = Field(None, description="Share of completion tokens that were clipped.")
    policy_lag: float | None = Field(None, description="Mean versions between sampling and training.")
    epoch: float | None = Field(None, ge=0, description="Mode SFT: passes over the rows so far.")
    loss: float | None = Field(None, description="Mode SFT: mean loss of a completion token in the last step.")
    held_out_loss: float | None = Field(None, description="Mode SFT: mean loss of a completion token of held-out rows.")
    groups_kept: int | None = Field(None, ge=0, description="Accepted groups that the online filter kept.")
    groups_dropped: int | None = Field(None, ge=0, description="Accepted groups that the online filter dropped.")
    dataset: DatasetStatus | None = Field(None, description="Progress of a run of mode Generate.")
    answers: AnswersStatus | None = Field(None, description="What became of the newest answers of a run of mode Train.")
    revisions: Annotated[list[ResolvedRevision], Field(max_length=64)] | None = Field(
        None, description="Commits of the hub repositories that prepare read."
    )
    best_version: int | None = Field(
        None, ge=0, description="Version with the best score on the benchmark that decides (spec.evaluation)."
    )
    best_score: float | None = Field(None, ge=0, le=1, description="Mean task reward of bestVersion on that benchmark.")
    scores: Scores | None = Field(None, description="Scores of the newest version, by benchmark (spec.evaluation).")
    accepted: int | None = Field(None, ge=0, description="Files accepted by validators.")
    rejected: int | None = Field(None, ge=0, description="Files rejected by validators.")
    slashed: int | None = Field(None, ge=0, description="Nodes that were evicted or banned.")
    nodes: int | None = Field(None, ge=0, description="Healthy nodes, including strangers' machines.")
    eta_seconds: float | None = Field(None, ge=0, description="Estimated seconds to the end.")
    eta: str | None = Field(None, description="The same for people, such as `3 h 20 min`.")
    endpoint: str | None = Field(None, description="URL of discovery, where machines join. See controlPlane.exposure.")
    run_public_key: str | None = Field(None, description="Public key of the run: what strangers' machines trust.")
    island_public_key: str | None = Field(
        None, description="Public key of this run in its group of islands: what the manifests of all its runs list."
    )
    lighthouse: str | None = Field(
        None,
        description="`host:port` of the lighthouse that this run serves to its group, from outside if it is exposed.",
    )
    trainer: TrainerStatus | None = Field(None, description="The trainer's current attempt.")
    islands: IslandsStatus | None = Field(None, description="Exchanges with other islands, if the run has any.")
    proofs: ProofStatus | None = Field(None, description="Thresholds of proofs in force and their error rates.")
    keys: Keys = Field(default_factory=list, description="Keys that hold now: the run's and those of its roles.")
    last_failures: list[LastWords] = Field(
        [], max_length=MOST_CAUSES, description="How containers ended that failed, newest first, one for each cause."
    )
    components: Components = Field(default_factory=list, description="Ready and desired pods by part.")
    conditions: Conditions = Field(default_factory=list, description="Conditions, one of each type.")


class TrainingRun(SpecModel):
    """A TrainingRun trains a base model on a task set with a recipe."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["TrainingRun"] = "TrainingRun"
    metadata: ObjectMeta
    spec: TrainingRunSpec
    status: TrainingRunStatus | None = None
