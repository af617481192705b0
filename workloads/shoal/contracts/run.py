"""Configuration files of a run: `config/run.json` for trusted roles, `config/node.json` for pool pods and strangers.

Made by the operator's builders from a `TrainingRun` and by nothing else; read once by every process at start. Holds no secret.
"""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.curriculum import pools_of_steps
from shoal.contracts.datasets import GenerateSettings, Mode
from shoal.contracts.evaluation import BenchmarkTerms, Truncation
from shoal.contracts.hub import HubCommit
from shoal.contracts.islands import IslandTerms
from shoal.contracts.mixture import SourceTerms, rows_of_sources
from shoal.contracts.newer import from_newer_json
from shoal.contracts.packages import MOST_PACKAGES, PinnedPackage
from shoal.contracts.pools import EngineSettings, Logits, PoolTerms, Quantization, Requirements, Sampler, is_whole
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.proof_profile import ProofProfile
from shoal.contracts.protocol import Assignment, NodeState, Url
from shoal.contracts.roster import Roster, verified_roster
from shoal.contracts.routes import RouteShape
from shoal.contracts.settings import RunSettings
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch
from shoal.contracts.trainer import TrainerSettings
from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.contracts.validation import Validation
from shoal.contracts.vine import VineSettings
from shoal.contracts.weights import VersionNumber
from shoal.contracts.work import FileShape, WorkCodec


class Addresses(Contract):
    """Where the parts of a run are; given by the operator, so nobody resolves service names."""

    discovery: Url
    orchestrator: Url
    origin: Url
    relays: list[Url] = Field(max_length=1000)
    redis: str = Field(max_length=500, description="redis://host:port/0")
    runners: list[Url] = Field(
        default_factory=list, max_length=64, description="where programs are judged; none: in the container that judges"
    )
    lighthouse: Url | None = Field(default=None, description="where the islands of a run meet, if it has islands")
    public_discovery: Url | None = Field(default=None, description="for strangers' machines; None: the same")
    public_orchestrator: Url | None = Field(default=None, description="for strangers' machines; None: the same")
    public_relays: list[Url] = Field(
        default_factory=list, max_length=1000, description="for strangers' machines; none: the same"
    )


class RunConfig(RunSettings):
    """Everything that a trusted process must know about its run: its settings, and what the operator worked out."""

    model_config = ConfigDict(alias_generator=str)  # snake_case, as every document between processes

    schema_version: Literal[1] = 1
    run: RunName
    # Two settings are filled in where the manifest has none, so that no reader has to.
    steps: int = Field(
        default=0, ge=0, le=999_999, description="0 in mode Generate: the task table says how many there are"
    )
    generate: GenerateSettings = GenerateSettings()
    model_id: str = Field(min_length=1, max_length=253)
    trainer: TrainerSettings = TrainerSettings()
    islands: IslandTerms | None = Field(default=None, description="of a run whose trainer is several islands")
    validation: Validation
    kept_versions: int = Field(
        default=5, ge=2, le=100, description="versions that origin and relays hold (paper section 2.2)"
    )
    pools: list[PoolTerms] = Field(
        default_factory=list,
        max_length=10_000,
        description="pools that nodes may join; nobody joins a run that has none",
    )
    addresses: Addresses
    roster: Signed[Roster]
    run_key: NodeId

    @field_validator("steps", "generate", mode="before")
    @classmethod
    def _filled_in(cls, given: Any, info: ValidationInfo) -> Any:
        """The default instead of a setting that the manifest leaves out."""
        return cls.model_fields[str(info.field_name)].default if given is None else given

    def trusted_roster(self) -> Roster:
        """The roster, its signature checked against the run key; raises `BadSignature`."""
        return verified_roster(self.roster, self.run_key)

    @cached_property
    def trust(self) -> TrustedKeys:
        """The keys to believe, which this process keeps up to date (`transport.keys_watch`); raises `BadSignature`."""
        return TrustedKeys(self.roster, self.run_key)


class NodeConfig(Contract):
    """The document that a pool's pod or a stranger gets: enough to find discovery and to know the run's key. It does not know the orchestrator."""

    schema_version: Literal[1] = 1
    run: RunName
    pool: RunName
    engine: EngineSettings = EngineSettings()
    quantization: Quantization | None = Field(
        default=None, exclude_if=unset, description="of the pool, which this node agrees to sample by"
    )
    runners: list[Url] = Field(
        default_factory=list, max_length=64, description="where programs are judged; none: in the worker's container"
    )
    discovery: Url
    roster: Signed[Roster]
    run_key: NodeId

    @cached_property
    def trust(self) -> TrustedKeys:
        """See `RunConfig.trust`."""
        return TrustedKeys(self.roster, self.run_key)


class OpenPool(Contract):
    """A pool that strangers' machines may join, and what they need for it."""

    name: RunName
    requirements: Requirements = Requirements()
    listed: bool = Field(default=False, description="machines whose public keys the pool lists may join")
    codes: bool = Field(default=False, description="machines with an invite code may join; with neither: any")
    quantization: Quantization | None = Field(
        default=None, exclude_if=unset, description="how its machines round the weights that they sample with"
    )
    engine: EngineSettings = Field(
        default=EngineSettings(), exclude_if=is_whole, description="how its machines spread the model over their GPUs"
    )


class JoinOffer(Contract):
    """`GET /v1/join` at discovery: what a stranger's machine must know of a run. Believed no further than the run's key, which its owner gives."""

    run: RunName
    run_key: NodeId
    roster: Signed[Roster]
    model_id: str = Field(max_length=253)
    pools: list[OpenPool] = Field(default_factory=list, max_length=10_000)


class PublicRun(Contract):
    """The run's description for an invited node: all it needs to make rollouts."""

    run: RunName
    mode: Mode = "Train"
    steps: int = Field(ge=1, le=10_000_000)
    async_level: int = Field(ge=0, le=4)
    model_id: str
    environment: str
    environment_digest: Sha256Hex
    tasks_digest: Sha256Hex
    task_count: int = Field(ge=1)
    group_size: int = Field(ge=2, le=1024)
    max_sequence_length: int = Field(ge=16)
    sampling: Sampling
    length_reward: LengthReward | None
    redrawn_pools: list[RunName] = Field(
        default_factory=list, max_length=10_000, description="not used; documents of 0.2.0 have it"
    )
    sampler: Sampler = Field(
        default="vllm-cpu",
        exclude_if=lambda rule: rule == "vllm-cpu",
        description="the rule by which seeds draw tokens; absent: that of 0.2",
    )
    benchmarks: list[BenchmarkTerms] = Field(
        default_factory=list, max_length=16, description="scored on versions as work of a second kind"
    )
    vine: VineSettings | None = Field(
        default=None, description="algorithm vineppo: the continuations that files of steps hold"
    )
    prompt: PromptTerms | None = Field(
        default=None, exclude_if=unset, description="how prompts are made; None: the environment's text"
    )
    several_versions: bool = Field(
        default=False,
        exclude_if=lambda several: not several,
        description="rows go on under newer weights (`rollouts.versions`)",
    )
    quantization: Quantization | None = Field(
        default=None,
        exclude_if=unset,
        description="how weights are rounded before they sample (`rollouts.quantization`)",
    )
    logits: Logits | None = Field(
        default=None,
        exclude_if=unset,
        description="how engines keep logits of halves, as the run was calibrated; None: any. Software that does not know this asks for no lease",
    )
    truncation: Truncation | None = Field(
        default=None, exclude_if=unset, description="of a benchmark that stands in the run's place"
    )
    mixture: list[SourceTerms] = Field(
        default_factory=list,
        exclude_if=unset,
        max_length=16,
        description="sources of the tasks, where there are several",
    )
    routes: RouteShape | None = Field(
        default=None, exclude_if=unset, description="of tokens, which files of steps must hold; None: they hold none"
    )
    curriculum: bool = Field(
        default=False,
        exclude_if=lambda curriculum: not curriculum,
        description="leases name their prompts (`tasks.curriculum`). Software that does not know this asks for no lease",
    )
    packages: list[PinnedPackage] = Field(
        default_factory=list,
        exclude_if=unset,
        max_length=MOST_PACKAGES,
        description="wheels to have from the run (`tasks.packages`). Software that does not know this refuses the run",
    )

    @property
    def rows_each(self) -> int:
        """Rows of a file for each completion: itself and its continuations."""
        return 1 if self.vine is None else self.vine.rows_each

    @property
    def codec(self) -> WorkCodec:
        """The meaning of the numbers of this run's work."""
        shape = FileShape.of(self.sampling, self.group_size, self.length_reward, self.rows_each)
        sources = rows_of_sources(self.mixture, self.length_reward)
        return WorkCodec(self.mode, shape, self.task_count, self.async_level, self.benchmarks, sources)


class Prepared(Contract):
    """`prepared.json` in the store, written last by prepare: the base model and the task table are there."""

    run: RunName
    model_id: str
    environment: str
    environment_digest: Sha256Hex
    tasks_digest: Sha256Hex
    task_count: int = Field(ge=1)
    base_pass_rate: float | None = Field(default=None, ge=0.0, le=1.0, description="of a generated model's warm start")
    proof_profile: ProofProfile | None = Field(default=None, description="that of the base model; None: it has none")
    benchmarks: list[BenchmarkTerms] = Field(
        default_factory=list,
        max_length=16,
        description="in the order of the manifest; their slices do not change any more",
    )
    prompt: PromptTerms | None = Field(
        default=None,
        exclude_if=unset,
        description="how prompts are made; None, as it was before: the environment's text",
    )
    example_prompt: str | None = Field(
        default=None,
        exclude_if=unset,
        max_length=20_000,
        description="the first task as the model sees it, its beginning",
    )
    tasks_digest_found: Sha256Hex | None = Field(
        default=None,
        exclude_if=unset,
        description="of the tasks, with those that were left out for their prompts; None: none were",
    )
    mixture: list[SourceTerms] = Field(
        default_factory=list,
        exclude_if=unset,
        max_length=16,
        description="sources of the tasks, where there are several",
    )
    commits: list[HubCommit] | None = Field(
        default=None,
        exclude_if=unset,
        max_length=64,
        description="of every repository that was read from a hub; None: there was none, or prepare was older",
    )
    routes: RouteShape | None = Field(
        default=None, exclude_if=unset, description="of tokens, where the recipe has routerReplay; None: it has not"
    )
    rewards_claimed: bool = Field(
        default=False,
        exclude_if=lambda claimed: not claimed,
        description="scores of the environment, or of a benchmark's, cannot be made again: workers' count, and no stranger may join",
    )
    packages: list[PinnedPackage] = Field(
        default_factory=list,
        exclude_if=unset,
        max_length=MOST_PACKAGES,
        description="wheels in the store, in the order of `tasks.packages`",
    )

    def codec(self, config: RunConfig, read_batch: Callable[[int], StepBatch]) -> WorkCodec:
        """The meaning of the numbers of this run's work; `read_batch` gives the sealed batch of a step, which a curriculum follows from."""
        shape = FileShape.of(config.sampling, config.recipe.group_size, config.length_reward, config.recipe.rows_each)
        sources = rows_of_sources(self.mixture, config.length_reward)
        pinned = self.benchmarks if config.evaluation is not None else []
        pools = pools_of_steps(config.tasks.curriculum, self.task_count, config.async_level, read_batch)
        return WorkCodec(config.mode, shape, self.task_count, config.async_level, pinned, sources, pools)


class AgentState(Contract):
    """`GET /v1/state` on the agent's socket."""

    node: NodeId
    state: NodeState
    relays: list[Url] = Field(default_factory=list)
    relay_token: str | None = None
    latest_version: VersionNumber | None = None
    trainer_key: NodeId
    notice: KeysNotice | None = Field(
        default=None,
        exclude_if=unset,
        description="the run's keys, once any was changed; None: those of the configuration",
    )
    public: PublicRun | None = None
    restarts: int | None = Field(
        default=None,
        ge=0,
        description="of a pod's containers, each of which ends when it grows; null: not known, or the agent starts its processes again itself",
    )


class PartStatus(Contract):
    """A process that a node's agent runs for its assignment."""

    name: str = Field(max_length=40)
    state: Literal["waiting", "running", "finished"]
    pid: int | None = None
    restarts: int = Field(default=0, ge=0)
    last_exit: int | None = None
    note: str = Field(default="", max_length=500, description="in words, such as when it restarts")


class AgentStatus(Contract):
    """`GET /v1/status` on the agent's socket, and `status.json` beside it: what `shoal node status` shows."""

    run: RunName
    pool: RunName
    node: NodeId
    discovery: Url
    orchestrator: str = Field(default="", max_length=500, description="empty: not invited yet")
    state: NodeState
    waits_for: str = Field(default="", max_length=1000, description="in words; empty while all is well")
    assignment: Assignment | None = None
    parts: list[PartStatus] = Field(default_factory=list, max_length=16)
    held_version: VersionNumber | None = None
    latest_version: VersionNumber | None = None
    files_accepted: int = Field(default=0, ge=0)
    files_rejected: int = Field(default=0, ge=0)
    last_heartbeat_unix: float | None = None
    written_unix: float = Field(ge=0.0)
    owner: str | None = Field(
        default=None, max_length=200, exclude_if=unset, description="how the machine's owner restricts it now, in words"
    )


def home() -> Path:
    """`SHOAL_HOME`: the folder under which everything of this pod lies; `/shoal` in an image."""
    return Path(os.environ.get("SHOAL_HOME", "/shoal"))


def bind_address() -> str:
    """`SHOAL_BIND`: the one address that listeners bind. There is no default, because a wildcard bind would take the port from every pod."""
    address = os.environ.get("SHOAL_BIND")
    if not address:
        raise SystemExit(
            "SHOAL_BIND is not set: give the address to listen on (0.0.0.0 in a pod, the pod's own address on one machine)"
        )
    return address


def pod_name() -> str:
    """`SHOAL_POD`: the name of this pod, for logs and claims."""
    return os.environ.get("SHOAL_POD", "unnamed")


def load_run_config() -> RunConfig:
    """Read `config/run.json`; raises with the path when it is missing or wrong."""
    return from_newer_json(RunConfig, (home() / "config" / "run.json").read_bytes())


def mounted_roster() -> Signed[Roster]:
    """The roster of `config/run.json` as it is now: a mounted file changes while a process runs."""
    return load_run_config().roster


def load_node_config() -> NodeConfig:
    """Read `config/node.json`."""
    return from_newer_json(NodeConfig, (home() / "config" / "node.json").read_bytes())
