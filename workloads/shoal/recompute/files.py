"""One judged file checked again: what was drawn for it, what it was worth, and its proofs against the weights.

In: an entry of the ledger, the run's facts, a source of weights. Out: findings by stage, and why a stage could not say anything. The checks are the
validators' own (`validation.judge`). What differs is who chooses the rows, and that the verdict is compared with the findings. Memory: one file, and
one batch of its prefill.
"""

import random
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.contracts.compute import compute_of
from shoal.contracts.rollouts import BadRollouts, by_version
from shoal.contracts.verdicts import STATISTICAL, RowReward, Verdict
from shoal.contracts.work import UnknownWorkError
from shoal.environments.base import runs_programs
from shoal.environments.scored_once import takes_time
from shoal.ledger.audit import first_line
from shoal.recompute.evidence import CannotCheck, Evidence, LedgerFile, WrongEvidence
from shoal.recompute.record import OF_FILES, Stage
from shoal.storage import StoreUnavailable
from shoal.validation import judge
from shoal.validation.checks import redraw
from shoal.validation.checks.reward import claimed_rows
from shoal.validation.facts import Facts, File, Finding
from shoal.validation.parsing import ReaderLost, parse_file
from shoal.validation.prefill import prefill_rows
from shoal.validation.stopwatch import Stopwatch

STAGE_OF_REASON: dict[str, Stage] = {
    "reward": "rewards",
    "token_sampling": "proofs",
    "redraw": "proofs",
    "computation": "proofs",
    "termination": "proofs",
}
"""Where the fault of a rejected file shows; every other one shows among the draws."""


@dataclass
class FileOutcome:
    """What the stages found on one file, and by stage why one could not check it."""

    found: dict[Stage, list[str]] = field(default_factory=dict)
    unchecked: dict[Stage, str] = field(default_factory=dict)

    def add(self, stage: Stage, what: str) -> None:
        self.found.setdefault(stage, []).append(what)


@dataclass(frozen=True)
class Looks:
    """How closely files are looked at: which stages, which share of their rows, and the seed that draws them."""

    stages: Collection[Stage]
    rows: float
    seed: str


def check_file(
    evidence: Evidence, facts: Facts, policies: judge.PolicySource, looks: Looks, ledger_file: LedgerFile, path: Path
) -> FileOutcome:
    """Check one file; `path` is where its bytes may lie meanwhile. Raises `StoreUnavailable`, and nothing for what the store holds.

    `policies` raises `CannotCheck` for weights that are not available.
    """
    outcome = FileOutcome()
    fact = ledger_file.fact
    rejected = fact.kind == "rejected"
    stages = [stage for stage in OF_FILES if stage in looks.stages]
    try:
        verdict = evidence.verdict(fact)
        evidence.fetch(fact, path)
        job = evidence.job(fact, verdict, every_row=rejected)
        facts = facts.of_file(job)
        longest = facts.max_sequence_length
        file = File(
            job,
            *parse_file(
                path, facts.rows * longest, longest, judge.MOST_TIMES_ROWS * facts.rows, route_bytes=facts.route_bytes
            ),
        )
        check = _FileCheck(facts, policies, looks, file, verdict, outcome)
        if rejected:
            check.rejected()
        else:
            for stage in stages:
                check.stage(stage)
    except (WrongEvidence, UnknownWorkError) as error:
        outcome.add(stages[0], str(error))
    except ReaderLost as error:
        if not rejected:  # what this machine could not read, another one read
            outcome.unchecked |= dict.fromkeys(stages, str(error))
    except BadRollouts as error:
        if not rejected:
            outcome.add(stages[0], f"it was accepted, and is not readable: {first_line(error)}")
    except CannotCheck as error:
        outcome.unchecked |= dict.fromkeys(stages, str(error))
    except StoreUnavailable:
        raise
    except Exception as error:  # of ours or of the store's making: nobody is accused by it
        outcome.unchecked |= dict.fromkeys(stages, f"{type(error).__name__}: {first_line(error)}")
    finally:
        path.unlink(missing_ok=True)
    return outcome


class _FileCheck:
    """The checks of one file that is readable."""

    def __init__(
        self,
        facts: Facts,
        policies: judge.PolicySource,
        looks: Looks,
        file: File,
        verdict: Verdict,
        outcome: FileOutcome,
    ) -> None:
        self._facts, self._policies, self._looks = facts, policies, looks
        self._file, self._verdict, self._outcome = file, verdict, outcome
        self._watch = Stopwatch()

    def stage(self, stage: Stage) -> None:
        """Check an accepted file in one respect."""
        try:
            checks = {"draws": self._draws, "rewards": self._rewards, "proofs": self._proofs}
            for what in checks[stage]():
                self._outcome.add(stage, what)
        except CannotCheck as error:
            self._outcome.unchecked[stage] = str(error)
        except WrongEvidence as error:
            self._outcome.add(stage, str(error))

    def rejected(self) -> None:
        """Whether a rejected file is as wrong as it was found: every row is looked at."""
        reason = str(self._verdict.reason)
        stage = STAGE_OF_REASON.get(reason, "draws")
        if stage not in self._looks.stages:
            return
        try:
            finding = judge.cheap_finding(self._file, self._facts, self._watch)
            if finding is None and stage == "rewards":
                finding = judge.scored(self._file, self._facts, self._watch, lambda: None)[1]
            if finding is None and stage == "proofs":
                finding = self._proof_finding(every_row=True)
        except CannotCheck as error:
            self._outcome.unchecked[stage] = str(error)
            return
        if finding is None and reason not in ("unread", "format"):
            self._outcome.add(stage, f"it was rejected for {reason}, and nothing of the kind is wrong with it")
        elif finding is None:
            self._outcome.add(stage, f"it was rejected for {reason}, and it can be read")

    def _draws(self) -> list[str]:
        """Prompts, targets, seeds, ends, proofs' shapes, copies; and what the verdict counted."""
        finding = judge.cheap_finding(self._file, self._facts, self._watch)
        if finding is not None:
            return [_accepted_although(finding)]
        counted = judge.verdict(
            self._file.job, self._file, None, self._verdict.rewards, 0, self._watch, "", left_out=self._verdict.left_out
        )
        names = ("policy_version", "rows", "completion_tokens", "completion_lengths", "cut_rows")
        return [
            f"its verdict says {name} {getattr(self._verdict, name)}, counted again it is {getattr(counted, name)}"
            for name in names
            if getattr(counted, name) != getattr(self._verdict, name)
        ]

    def _rewards(self) -> list[str]:
        """The rewards that training used, computed again. A row that we cannot score says nothing of the verdict.

        A program's reward is a measurement: it counts against the verdict only where the worker measured what we did, and the verdict another reward.
        A row that the verdict leaves out may have come when its node or its file had no time for programs and judges left.
        """
        ours, finding = judge.scored(self._file, self._facts, self._watch, lambda: None)
        said, left_out = self._verdict.rewards, set(self._verdict.left_out)
        if len(ours) != len(said):
            return [f"its verdict has {len(said)} rewards for {len(ours)} rows"]
        differing = [
            row
            for row, found in enumerate(ours)
            if found != said[row] and found.task_reward is not None and row not in left_out
        ]
        wrong = [row for row in differing if not self._may_differ(row, said[row], ours[row])]
        if wrong:
            row = wrong[0]
            return [
                f"its verdict rewards {len(wrong)} of {len(ours)} rows otherwise than they score; row {row}: {_words(said[row])}, computed again"
                f" {_words(ours[row])}"
            ]
        if differing:
            raise CannotCheck(f"{len(differing)} rows score otherwise here, which their verdict alone does not explain")
        if finding is not None:
            return [_accepted_although(finding)]
        counted = claimed_rows(self._file, self._facts, said)
        if counted != self._verdict.claimed_rows:
            return [
                f"its verdict says that {self._verdict.claimed_rows} rows were not scored again, counted it is {counted}"
            ]
        if counted:
            raise CannotCheck(
                f"{counted} rows have the reward that their worker claimed, and nobody can score them again"
            )
        return []

    def _may_differ(self, number: int, said: RowReward, ours: RowReward) -> bool:
        row = self._file.rows[number]
        environment, task = self._facts.environment, self._facts.tasks[row.prompt_index]
        if said.task_reward is None:
            return takes_time(environment, task)
        return runs_programs(environment, task) and row.task_reward != ours.task_reward

    def _proofs(self) -> list[str]:
        """Proofs and tokens of drawn rows against the weights. What rests on statistics counts when a look at every row says so too."""
        finding = self._proof_finding(every_row=False)
        if finding is not None and finding.reason in STATISTICAL:
            again = self._proof_finding(every_row=True)
            finding = again if again is not None and again.reason == finding.reason else None
        if finding is not None:
            return [_accepted_although(finding)]
        if near := self._near_enough():
            return [f"its verdict leaves out row {near[0]}, whose tokens are nowhere farther behind than one may be"]
        tokens = judge.completion_tokens(self._file, self._verdict.left_out)
        with _ONE_AT_A_TIME:
            parameters = self._policies.get(self._file.versions[-1]).parameters
        compute = compute_of(parameters, judge.prompt_tokens(self._file, self._facts), tokens)
        if self._verdict.compute not in (None, compute):
            return [f"its verdict counts {self._verdict.compute}, it took {compute}"]
        return []

    def _near_enough(self) -> list[int]:
        """Rows that the verdict leaves out and should not: here their tokens are not half as far behind as would be too far."""
        wanted = {row: self._file.rows[row] for row in self._verdict.left_out}
        job, facts, far = self._file.job, self._facts, set[int]()
        for version in self._file.versions if wanted else []:
            pieces = by_version(wanted, version)
            file = judge.of_version(self._file, pieces, version)
            with _ONE_AT_A_TIME:
                policy = self._policies.get(version)
                budget = judge.budget_of(facts, policy)
                half = budget.model_copy(update={"largest": budget.largest / 2})
                for batch in prefill_rows(
                    policy.model, pieces, facts.eos_token_ids, job.sampler, facts.truncation, facts.routes
                ):
                    far |= redraw.outliers(file, batch, half).keys()
        return [row for row in wanted if row not in far]

    def _proof_finding(self, *, every_row: bool) -> Finding | None:
        settings = self._facts.validation.model_copy(
            update={"proof_rows_share": self._looks.rows, "proof_rows_floor": 1, "probation_files": 0}
        )
        file = replace(self._file, job=self._file.job.model_copy(update={"on_probation": every_row}))
        chance = random.Random(f"{self._looks.seed} {file.job.sha256}")  # shown, so that others look at the same rows
        with _ONE_AT_A_TIME:
            weights = judge.FileWeights(self._file, self._policies, self._watch)
            return judge.expensive_finding(
                file, replace(self._facts, validation=settings), weights, chance, {}, {}, self._watch
            )


_ONE_AT_A_TIME = threading.Lock()
"""A forward pass takes all cores, or the device, by itself; other threads parse, draw and score meanwhile.

Who asks for weights holds it too, for as long as they are used: the next version may be written over them.
"""


def _accepted_although(finding: Finding) -> str:
    return f"it was accepted although: {finding.reason or finding.outcome}: {finding.evidence}"


def _words(reward: RowReward) -> str:
    return f"task reward {reward.task_reward}, length penalty {reward.length_penalty}, reward {reward.reward}"
