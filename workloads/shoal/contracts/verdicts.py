"""The verdict on one submitted file, signed by a validator.

Only `accept` is trained on and credited; only `reject` can slash; `expired` and `inconclusive` cost a node nothing. The rewards that the trainer
uses are those in here, computed again by the validator.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from shoal.contracts.answers import FileAnswers
from shoal.contracts.base import Contract, LeaseId, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.compute import Compute
from shoal.contracts.protocol import PrintableText
from shoal.contracts.signed import Signed
from shoal.contracts.work import LeasePart

Outcome = Literal["accept", "reject", "expired", "inconclusive"]

RejectReason = Literal[
    "format",  # not a readable Rollout Parquet v1 file
    "unread",  # every process that read it died or took too long; a validator short of memory or time finds this too
    "identity",  # run, node, step, submission or version are not those of the lease
    "replay",  # the same bytes, or the same completions, were submitted before
    "sampling",  # prompts, targets or seeds are not those drawn from the beacon
    "bounds",  # a value out of range
    "reward",  # a claimed reward differs from the one computed again
    "termination",  # ended early: neither the length limit nor a likely end-of-sequence token
    "tools",  # what is given as a tool's output is not, or a call went without it
    "token_sampling",  # tokens were not sampled from the claimed policy
    "redraw",  # a token is not the one that the row's seed draws from the claimed policy
    "computation",  # a TOPLOC proof does not fit the claimed weights
]

STATISTICAL: frozenset[RejectReason] = frozenset({"termination", "token_sampling", "redraw", "computation", "unread"})
"""Rejects that need a second finding (DESIGN section 4): an honest node can fall under a threshold by bad luck, or meet a validator without memory
or time for its file. Some rejects for these reasons are certain (a completion that ends nowhere, a malformed proof); they are found a second time
without fail."""

NEVER_ALONE: frozenset[RejectReason] = frozenset({"unread"})
"""Of those, what one validator never confirms by itself, whoever else came: what it lacked at its first check it lacks at its next."""


LATER_FIELDS = (
    "validator", "seconds_by_check", "completion_lengths", "cut_rows", "compute", "answers", "program_seconds", "card", "left_out", "part",
    "claimed_rows",
)  # fmt: skip
"""Of a verdict, that releases added."""


MOST_TURNS = 1000
"""Of an episode: more than any environment may have (`apart.Described`)."""
TurnReward = Annotated[float, Field(ge=-1.0, le=1.0)]


class RowReward(Contract):
    """Rewards of one row; all None when the validator could not score it, which leaves the row out of its group."""

    task_reward: float | None = Field(ge=0.0, le=1.0)
    length_penalty: float | None = Field(ge=0.0, le=1e6)
    reward: float | None = Field(ge=-1e6, le=1.0)
    turns: Annotated[tuple[TurnReward, ...], Field(min_length=1, max_length=MOST_TURNS)] | None = Field(
        default=None,
        exclude_if=unset,
        description="what of the task reward each turn earned; None: the run has no credit by turns",
    )


SMALLEST_GROUP = 2
"""Scored rows of a group: a single one has nothing to be compared with."""
UNSCORED = RowReward(task_reward=None, length_penalty=None, reward=None)


class ValidatorCard(Contract):
    """Whose key a validator's is: made by the validator role's key when the validator starts."""

    run: RunName
    validator: str = Field(min_length=1, max_length=200, pattern=r"^[\x20-\x7e]*$", description="name of the pod")
    key: NodeId
    unix: float = Field(ge=0.0)


class Verdict(Contract):
    """One validator's finding on one file. `rewards` has one entry for every row, in order, when accepted."""

    run: RunName
    node: NodeId
    lease: LeaseId
    step: int = Field(ge=0)
    submission: int = Field(ge=0)
    sha256: Sha256Hex = Field(description="of the file")
    policy_version: int | None = Field(default=None, ge=0)
    outcome: Outcome
    reason: RejectReason | None = None
    evidence: str = Field(default="", max_length=4000, description="enough for a third party to check again")
    rewards: list[RowReward] = Field(default_factory=list, max_length=1_000_000)
    rows: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0, description="tokens of all completions in the file")
    proof_rows: int = Field(default=0, ge=0, description="rows whose proofs were verified")
    check_seconds: float = Field(default=0.0, ge=0.0)
    validator: str = Field(
        default="", max_length=200, description="name of the pod that checked; empty in old verdicts"
    )
    seconds_by_check: dict[str, float] = Field(
        default_factory=dict, max_length=64, description="where `check_seconds` went; what is missing is overhead"
    )
    completion_lengths: list[int] = Field(
        default_factory=list, max_length=1_000_000, description="of an evaluation's accepted file: tokens of each row"
    )
    cut_rows: list[int] = Field(
        default_factory=list, max_length=1_000_000, description="of such a file: rows that ended at the length limit"
    )
    compute: Compute | None = Field(default=None, description="of an accepted file; None in old verdicts")
    answers: FileAnswers | None = Field(
        default=None, description="of an accepted file of a step: what became of its answers; None in old verdicts"
    )

    program_seconds: float = Field(
        default=0.0, ge=0.0, description="CPU seconds that programs and judges of the file took this validator"
    )
    card: Signed[ValidatorCard] | None = Field(
        default=None, description="of the key that signed; None: the role's own key, which all validators shared"
    )

    left_out: list[int] = Field(
        default_factory=list,
        max_length=1_000_000,
        description="of an accepted file: rows with a token behind by more than one may be, ascending. They are neither trained on nor paid",
    )
    part: LeasePart | None = Field(
        default=None, description="that the file had to hold; None: all that is drawn for its number"
    )

    claimed_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="of an accepted file: rows whose reward is the worker's, since their environment's scores cannot be made again",
    )

    @model_serializer(mode="wrap")
    def _as_it_was_signed(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Fields that came later are left out while they are empty: the signatures of verdicts without them still fit."""
        document: dict[str, Any] = dump(self)
        for name in LATER_FIELDS:
            if not document.get(name):
                document.pop(name, None)
        return document

    @property
    def looked_at(self) -> int:
        """Tokens of the rows that the validator looked at, in proportion to the rows."""
        return self.completion_tokens * min(self.proof_rows, self.rows) // max(1, self.rows)

    @property
    def voter(self) -> tuple[str, str]:
        """Whose vote it is where several validators must agree: name and key, or twice the name where all share one key."""
        return self.validator, self.card.document.key if self.card is not None else self.validator

    @model_validator(mode="after")
    def _fields_fit_the_outcome(self) -> "Verdict":
        if (self.outcome == "reject") != (self.reason is not None):
            raise ValueError("a reject names a reason, and nothing else does")
        if self.outcome == "accept" and (
            self.policy_version is None or not self.rewards or len(self.rewards) != self.rows
        ):
            raise ValueError("an accept carries policy_version and one reward for every row")
        if self.outcome != "accept" and (self.rewards or self.left_out):
            raise ValueError("only an accept carries rewards and leaves out rows")
        if self.left_out != sorted({row for row in self.left_out if 0 <= row < self.rows}):
            raise ValueError("left_out names rows of the file, ascending, each once")
        if any(self.rewards[row] != UNSCORED for row in self.left_out):
            raise ValueError("a row that is left out has no reward")
        return self


class Opinion(Contract):
    """`opinions/<node>/<sha256>/<digest of the verdict>.json`: a reject that stands only when other checks find the same."""

    validator: PrintableText = Field(
        description="pod that checked, as the orchestrator recorded it; the signed name is in the verdict"
    )
    verdict: Signed[Verdict]


def votes_of(voters: Iterable[tuple[str, str]]) -> int:
    """How many validators these are: no name counts twice, and no key does."""
    found = set(voters)
    return min(len({name for name, _ in found}), len({key for _, key in found}))


def findings_needed(verdict: Verdict, slash_votes: int) -> int:
    """How many findings of one reason a reject takes: `slash_votes` of as many validators, and two at least for `STATISTICAL`."""
    return max(slash_votes, 2 if verdict.reason in STATISTICAL else 1)
