"""What a plan is made from: a run as its manifest has it, and what the manifest cannot say. Pure data.

`RunFacts` are made by the operator (`shoal_operator.plan_facts`), `Surroundings` by whoever asks for a plan. Sizes in bytes, rates in 10^6 bits a
second, seconds; called by all of this package that plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.planner.lengths import SPREAD
from shoal.planner.memory import ADAPTERS, NOTHING_ON_HOST, Adapters, Method, OnHost, state_bytes, trained_parameters
from shoal.planner.model_shape import ModelShape
from shoal.planner.rates import CPU, Gpu

WIDTH = 2
"""Bytes of a parameter as it is published and served: bfloat16."""
MBIT = 1e6 / 8
"""Bytes a second of 10^6 bits a second."""


@dataclass(frozen=True)
class PoolFacts:
    """A pool of workers. `volume`: of each pod, None where pods share one; `disk`: what a stranger's machine must have, 0 for nothing said."""

    name: str
    replicas: int
    open: bool
    gpus: int
    gpu: Gpu | None
    """Named by the manifest and known; else None."""
    volume: int | None
    disk: int = 0
    max_sequences: int | None = None
    memory_share: float = 0.9
    stages: int = 1


@dataclass(frozen=True)
class RunFacts:
    """A run of mode Train. `parameters` of the model are in `Surroundings`, because no manifest says them."""

    name: str
    steps: int
    prompts_per_step: int
    group_size: int
    rows_each: int
    groups_per_file: int
    sequence_tokens: int
    pack_tokens: int
    completion_tokens: int
    learning_rate: float
    async_level: int
    filtered: bool
    """Groups whose task rewards are equal are sampled again."""
    old_share: float
    """Share of the updates for which the old policy is asked for log-probabilities before."""
    reference: bool
    """The base model is asked for log-probabilities, for a KL penalty or a reward model."""
    behaviour: bool
    """Log-probabilities under the sampling versions are computed."""
    benchmarks: bool
    method: Method
    recomputes: bool | None
    """Activations are computed again; None: by the model's size."""
    kept_states: int
    state_every: int | None
    """Versions from a saved state to the next; None: by the model's size."""
    trainer_pods: int
    trainer_ranks: int
    """Of each pod."""
    trainer_gpus: int
    trainer_gpu: Gpu | None
    scratch: int
    store: int | None
    """Of the folder; None for an object store."""
    anchor_every: int
    shard_bytes: int
    relays: int
    relay_versions: int
    relay_disk: int | None
    """None: of relays that others made."""
    relay_requests: int
    """A second, of one node at one relay."""
    relay_connection_bytes: int | None
    """A second, of one connection; None: no limit."""
    validators: int
    validator_gpus: int
    validator_gpu: Gpu | None
    validator_weights: int | None
    """Bytes of weights that a validator may hold; None: a share of its memory."""
    proof_share: float
    proof_floor: int
    probation_files: int
    pools: tuple[PoolFacts, ...]
    on_host: OnHost = NOTHING_ON_HOST
    sharing: int = 1
    """Trainer's ranks that compute each pack together."""
    tokens_travel: bool = False
    """Between the trainer's ranks, instead of the weights of experts."""
    adapters: Adapters = ADAPTERS
    """Where `method` has adapters."""
    muon: bool = False
    """Muon updates the matrices of the layers."""
    reward_model: bool = False
    """PRIME's reward model is trained beside the policy."""
    islands: bool = False
    """The trainer is one of several islands."""
    trainer_temporary: int | None = None
    validator_temporary: int | None = None
    """Bytes of a pod's claim for temporary files; None: they are on the node's disk."""
    file_bytes: int = 0
    """Of the largest rollout file, routes left out: no manifest says how many layers route."""

    @property
    def rows(self) -> int:
        """Rows that a step trains on."""
        return self.prompts_per_step * self.group_size

    @property
    def file_rows(self) -> int:
        """Rows of one submitted file."""
        return self.groups_per_file * self.group_size * self.rows_each

    def trained(self, parameters: int, shape: ModelShape | None = None) -> int:
        """Parameters that the trainer changes, of a model of `parameters`; without `shape` the least that it can be."""
        return trained_parameters(parameters, self.method, self.adapters, shape)

    def state(self, parameters: int, shape: ModelShape | None = None) -> int:
        """Bytes of a training state for a model of `parameters`. Without `shape` a lower bound: Muon updates all, adapters have none."""
        by_muon = (parameters if shape is None else shape.matrices) if self.muon else 0
        trained = self.trained(parameters, shape)
        return state_bytes(trained, by_muon, reward_model=self.reward_model, islands=self.islands)

    @property
    def sampled_share(self) -> float:
        """Of an answer, that a row of a file samples on average: a continuation goes on from a cut in equal parts, so half (`contracts.vine`)."""
        return (1 + (self.rows_each - 1) / 2) / self.rows_each

    @property
    def held_versions(self) -> int:
        """Versions on a worker's disk, the one being fetched included (broadcast/fetch.py)."""
        return self.async_level + (3 if self.benchmarks else 2)

    @property
    def judged_versions(self) -> int:
        """Versions that a validator holds where its memory is large enough (validation/service.py)."""
        return self.async_level + (2 if self.benchmarks else 1)


@dataclass(frozen=True)
class Surroundings:
    """What no manifest says. `shoal plan --help` states what it takes where nobody says it either."""

    model: ModelShape
    gpu: Gpu
    mean_tokens: float
    prompt_tokens: float
    signal_share: float
    uplink_mbit: float
    downlink_mbit: float
    relay_mbit: float
    store_mbit: float
    delta_ratio: float
    strangers: Mapping[str, int]
    """Machines that joined, by open pool."""
    price: float | None
    """Money of one GPU for one hour."""
    train_seconds: float | None
    """Measured in a run: of all the trainer's passes of one step."""
    spread: float = SPREAD

    @property
    def version(self) -> int:
        """Bytes of a version in full."""
        return WIDTH * self.model.parameters

    def device(self, gpus: int, named: Gpu | None) -> Gpu:
        """What a part computes on."""
        return CPU if gpus == 0 else named or self.gpu
