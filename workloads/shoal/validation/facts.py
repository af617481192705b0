"""What the checks know: about the run (`Facts`), about one file (`File`), and what one of them says (`Finding`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.datasets import Mode
from shoal.contracts.evaluation import BenchmarkTerms, Truncation
from shoal.contracts.pools import Quantization
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout, RolloutMetadata, versions_of
from shoal.contracts.routes import RouteShape
from shoal.contracts.tasks import Task
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import RejectReason
from shoal.contracts.vine import VineSettings, continuations
from shoal.contracts.work import (
    EvaluationSlice,
    FileShape,
    LeasePart,
    PoolsByStep,
    TableSlice,
    TrainingStep,
    Work,
    WorkCodec,
)
from shoal.environments import Environment
from shoal.environments.episodes import EpisodeTools, scored_text, tools_of
from shoal.environments.results import is_repeatable
from shoal.environments.tokens import Tokenizer
from shoal.sampling.mixture import SourceRows


@dataclass(frozen=True)
class Facts:
    """The run as this validator knows it from trusted sources: configuration, prepared run, task table, base
    checkpoint.
    """

    run: str
    model_id: str
    environment: Environment
    environment_digest: str
    tasks: Sequence[Task]
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    vocabulary: int
    hidden_size: int
    group_size: int
    max_sequence_length: int
    sampling: Sampling
    length_reward: LengthReward | None
    validation: Validation
    mode: Mode = "Train"
    async_level: int = 0
    benchmark: BenchmarkTerms | None = None
    """Set in the facts of a benchmark, whose tasks, environment and sampling stand in the fields above."""
    benchmarks: Mapping[str, "Facts"] = field(default_factory=dict)
    """By name, in the order of the run's benchmarks."""
    vine: VineSettings | None = None
    """Which continuations follow on a file's completions; None: none."""
    prompt: PromptTerms | None = None
    """How prompts are made; None: the environment's text."""
    sources: Sequence[SourceRows] = ()
    """Of a run on a mixture."""
    routes: RouteShape | None = None
    """What files of steps must say of each sampled token's experts; None: nothing."""
    part: LeasePart | None = None
    """Set in the facts of a file that holds part of a lease."""
    curriculum: PoolsByStep | None = None
    """Of a run with a curriculum: the pools of its steps."""
    several_versions: bool = False
    """Whether a row may go on under newer weights (`rollouts.versions`)."""
    quantization: Quantization | None = None
    """How the weights are rounded that sample (`rollouts.quantization`)."""
    turn_credit: bool = False
    """Whether rewards that count are told by turn (`recipe.credit`)."""

    rewards_claimed: bool = False
    """Whether workers' rewards count where an environment's scores cannot be made again, as prepare pinned it."""

    def is_claimed(self, row: Rollout) -> bool:
        """Whether the row's reward is the worker's: nobody can score it again."""
        return self.rewards_claimed and not is_repeatable(self.environment, self.tasks[row.prompt_index])

    @property
    def route_bytes(self) -> int:
        """Of the routes of a sampled token."""
        return self.routes.bytes_a_token if self.routes is not None else 0

    @property
    def truncation(self) -> Truncation | None:
        """What the sampler leaves out: of a benchmark only."""
        return self.benchmark.truncation if self.benchmark is not None else None

    def work(self, job: ValidationJob) -> Work:
        """The work that a file belongs to. Raises `UnknownWorkError` for a number that this run does not have."""
        terms = [each.benchmark for each in self.benchmarks.values() if each.benchmark is not None]
        return WorkCodec(
            self.mode, self.whole_shape, len(self.tasks), self.async_level, terms, self.sources, self.curriculum
        ).decode(job.step)

    def of(self, work: Work) -> "Facts":
        """The facts that files of this work are judged by: the run's, or those of a benchmark."""
        match work:
            case TrainingStep() | TableSlice():
                return self
            case EvaluationSlice(benchmark=benchmark):
                return self.benchmarks[benchmark.name]

    def of_file(self, job: ValidationJob) -> "Facts":
        """The facts that this file is judged by. Raises `UnknownWorkError`."""
        return replace(self.of(self.work(job)), part=job.part)

    @property
    def whole_shape(self) -> FileShape:
        """The content of a file of a whole lease."""
        rows_each = self.vine.rows_each if self.vine is not None else 1
        return FileShape.of(self.sampling, self.group_size, self.length_reward, rows_each)

    @property
    def shape(self) -> FileShape:
        """The content that every file judged by these facts must have."""
        whole = self.whole_shape
        return whole if self.part is None else replace(whole, groups=len(self.part.groups))

    @property
    def completions(self) -> int:
        """Rows of every file that are drawn; continuations of them may follow."""
        return self.shape.completions

    @property
    def rows(self) -> int:
        """Rows of every file of this run."""
        return self.shape.rows

    @property
    def strata(self) -> list[range]:
        """Row numbers that are drawn from and summed over apart: all, or completions and then their continuations."""
        return (
            [range(self.rows)] if self.vine is None else [range(self.completions), range(self.completions, self.rows)]
        )

    @cached_property
    def tools(self) -> EpisodeTools | None:
        """The tools of the run's environment, None when it has none."""
        return tools_of(self.environment, self.tokenizer, self.eos_token_ids, self.prompt)

    def scored_text(self, row: Rollout, prefix: int = 0) -> str:
        """The text of a row that its environment scores, with the last tokens of the prompt that it continues (`prefixes`)."""
        continued = row.prompt_tokens[len(row.prompt_tokens) - prefix :]
        mask = [*[True] * prefix, *row.completion_mask]
        return scored_text(self.tools, self.tokenizer, [*continued, *row.completion_tokens], mask, self.eos_token_ids)

    def prefixes(self, rows: Sequence[Rollout]) -> list[int]:
        """How many of each row's last prompt tokens are the beginning of the completion that it continues; 0 where it begins by itself.

        `rows` are as many as `self.rows`: what says so is the completion that is continued, never the continuation.
        """
        found = [0] * self.completions
        for each in continuations(self.completions, self.vine):
            assert self.vine is not None
            found.append(self.vine.positions(len(rows[each.parent].completion_tokens))[each.boundary - 1])
        return found

    def longest_completion(self, row: Rollout, prefix: int = 0) -> int:
        """The length limit of a row's completion, in tokens; what it continues counts towards it (`prefixes`)."""
        return min(self.sampling.max_completion_tokens - prefix, self.max_sequence_length - len(row.prompt_tokens))


@dataclass(frozen=True)
class File:
    """One submitted file, readable, with the job that says whose it must be."""

    job: ValidationJob
    rows: Sequence[Rollout]
    metadata: RolloutMetadata
    only: int | None = None
    """Set where the file stands for what one of its versions sampled: that version."""

    @property
    def policy_version(self) -> int:
        """The version that all rows claim, of several the oldest (`rollouts.check_shapes` has seen that they agree)."""
        return self.rows[0].policy_version if self.only is None else self.only

    @cached_property
    def versions(self) -> list[int]:
        """The versions of its tokens, ascending; one, except for a file with segments."""
        return versions_of(self.rows)


@dataclass(frozen=True)
class Finding:
    """Why a file is not accepted. `evidence` names row and values, so that a third party can look at the same place."""

    outcome: Literal["reject", "expired", "inconclusive"]
    reason: RejectReason | None
    evidence: str


def reject(reason: RejectReason, evidence: str) -> Finding:
    """The usual finding."""
    return Finding("reject", reason, evidence)
