"""From one file to one verdict: the checks in their order, cheap before expensive.

In: the file on disk, the job, facts, policies, a source of randomness. Out: a `Verdict`, always: what goes wrong on
our side is `inconclusive`, which costs nobody anything. Called by `service`. Nothing is remembered between files, so
a validator may die at any point.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.contracts.answers import FileAnswers, TurnFaults, together
from shoal.contracts.compute import Compute, compute_of
from shoal.contracts.proof_profile import drawn_gaps_in_force, thresholds_in_force
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import BadRollouts, Rollout, by_version
from shoal.contracts.thresholds import DrawnGaps
from shoal.contracts.verdicts import UNSCORED, RowReward, Verdict
from shoal.contracts.work import WorkKind, kind_of
from shoal.environments.scored_once import ProgramTime
from shoal.telemetry import get_logger
from shoal.validation import sequential
from shoal.validation.answers import file_answers
from shoal.validation.checks import (
    bounds,
    computation,
    copies,
    identity,
    redraw,
    replay,
    reward,
    routes,
    sampling,
    termination,
    token_sampling,
    tools,
)
from shoal.validation.claims import ClaimLostError
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.parsing import ReaderLost, parse_file
from shoal.validation.policies import LoadedPolicy
from shoal.validation.prefill import Prefill, joined, prefill_rows
from shoal.validation.stopwatch import Stopwatch

MOST_TIMES_ROWS = 4
"""A file with more than this many times its rows is refused unread: kilobytes unpack to millions of rows, and each costs what a long one does."""


class PolicySource(Protocol):
    """The part of `Policies` that is used here."""

    def digest(self, version: int) -> str: ...

    def get(self, version: int) -> LoadedPolicy: ...


class FileWeights:
    """The weights of a file's versions, one at a time: where memory holds one version, the next is written over the one before."""

    def __init__(self, file: File, policies: PolicySource, watch: Stopwatch) -> None:
        """Asks for the versions' digests, and loads nothing."""
        self._file, self._policies, self._watch = file, policies, watch
        self._digests = {version: policies.digest(version) for version in file.versions}
        self.loaded: LoadedPolicy | None = None

    @property
    def finding(self) -> Finding | None:
        """What is wrong with the file's claim about its weights."""
        return identity.check_weights(self._file, list(self._digests.values()))

    @property
    def versions(self) -> list[int]:
        """All, the one that is loaded first, so that it is used before another takes its place."""
        first = self.loaded.version if self.loaded is not None else None
        return sorted(self._digests, key=lambda version: (version != first, version))

    def of(self, version: int) -> LoadedPolicy:
        """This version, loaded; what was given before is not to be used any more."""
        if self.loaded is None or self.loaded.version != version:
            self.loaded = None
            with self._watch("load"):
                self.loaded = self._policies.get(version)
            self._digests[version] = self.loaded.weights_digest  # a number may have been sealed again meanwhile
        return self.loaded

    def any(self) -> LoadedPolicy:
        """One of them, the loaded one where there is one."""
        return self.of(self.versions[0])


def judge(
    path: Path,
    job: ValidationJob,
    facts: Facts,
    policies: PolicySource,
    rng: random.Random,
    validator: str = "",
    progress: Callable[[], None] = lambda: None,
    programs: ProgramTime | None = None,
) -> Verdict:
    """Check the file at `path`, whose digest the caller has compared with the job's.

    `rng` draws the rows whose proofs are verified; it must not be known to anybody (`secrets.SystemRandom`).
    `validator` is the name to sign with; `progress` is called whenever a row was scored and a batch of proofs verified, and
    while the file is read; what it raises as `ClaimLostError` ends the check. `programs` counts the CPU time of what scores the file (`time_of`).
    """
    watch = Stopwatch()
    programs = programs or time_of(job, facts)
    file: File | None = None
    rewards: list[RowReward] = []
    looked_at: dict[int, Prefill] = {}
    outliers: dict[int, redraw.Outliers] = {}
    unscored: frozenset[int] = frozenset()
    compute: Compute | None = None
    answers: FileAnswers | None = None
    turn_faults: list[TurnFaults] = []
    try:
        facts = facts.of_file(job)
        with watch("parse"):
            longest = facts.max_sequence_length
            # A wrong number of rows is for `sampling` to name; a flood of short ones is refused before any is made.
            most = MOST_TIMES_ROWS * facts.rows
            file = File(
                job,
                *parse_file(
                    path, facts.rows * longest, longest, most, route_bytes=facts.route_bytes, progress=progress
                ),
            )
        finding = cheap_finding(file, facts, watch, progress)
        if finding is None:
            with watch("cheap_checks"):  # before minutes of loading: a false claim must not change what is held
                weights = FileWeights(file, policies, watch)
            finding = expensive_finding(file, facts, weights, rng, looked_at, outliers, watch, progress)
            if finding is None:
                parameters = weights.any().parameters
                compute = compute_of(parameters, prompt_tokens(file, facts), completion_tokens(file, outliers))
        if finding is None:
            with watch("tools"):  # which may be programs of the model too
                unscored, finding = tools.run_again(file, facts, programs, progress)
        if (
            finding is None
        ):  # scoring takes minutes where a text is made for it: it is for those who have shown that the model wrote theirs
            rewards, finding = scored(file, facts, watch, progress, programs, turn_faults)
        out = outliers.keys() | unscored
        rewards = [UNSCORED if number in out else each for number, each in enumerate(rewards)]
        if finding is None and kind_of(job.step) is WorkKind.STEP:
            answers = file_answers(file, facts, rewards, together(turn_faults))
    except ClaimLostError:
        raise
    except ReaderLost as error:
        finding = reject("unread", str(error))
    except BadRollouts as error:
        finding = reject("format", str(error))
    except Exception as error:  # whatever it is, it is not the worker's fault until shown
        get_logger().exception("could not judge a file", node=job.node[:12], sha256=job.sha256[:12])
        finding = Finding("inconclusive", None, f"{type(error).__name__}: {error}")
    found = verdict(job, file, finding, rewards, len(looked_at), watch, validator, compute, answers, sorted(outliers))
    claimed = reward.claimed_rows(file, facts, found.rewards) if file is not None and found.outcome == "accept" else 0
    return found.model_copy(update={"program_seconds": round(programs.spent, 3), "claimed_rows": claimed})


def time_of(job: ValidationJob, facts: Facts) -> ProgramTime:
    """What programs and judges of a file may take: as the run says, or the rest of what its node may use."""
    most = facts.validation.program_seconds
    return ProgramTime(most if job.program_seconds is None else min(most, job.program_seconds))


def scored(
    file: File,
    facts: Facts,
    watch: Stopwatch,
    progress: Callable[[], None],
    programs: ProgramTime | None = None,
    turn_faults: list[TurnFaults] | None = None,
) -> tuple[list[RowReward], Finding | None]:
    """The rewards that count, and what is wrong with those that were claimed."""
    with watch("reward"):
        rewards = reward.score_rows(file, facts, progress, programs, turn_faults)
        return rewards, reward.check(file, facts, rewards)


def completion_tokens(file: File, left_out: Collection[int] = ()) -> int:
    """Tokens of all completions, tools' output and continuations included, except for rows that are `left_out`."""
    return sum(len(row.completion_tokens) for number, row in enumerate(file.rows) if number not in left_out)


def prompt_tokens(file: File, facts: Facts) -> int:
    """Tokens of the prompts that were drawn, each group's once: continuations bring none (`ledger_facts.forward_flops`)."""
    return sum(len(row.prompt_tokens) for row in file.rows[: facts.completions : facts.group_size])


def cheap_finding(
    file: File, facts: Facts, watch: Stopwatch, progress: Callable[[], None] = lambda: None
) -> Finding | None:
    """The first finding of the checks that look at every row and need no weights."""
    with watch("cheap_checks"):
        found = identity.check(file, facts) or bounds.check(file, facts) or sampling.check(file, facts)
    with watch("tools"):
        found = found or tools.check(file, facts, progress)
    with watch("cheap_checks"):
        return (
            found
            or termination.check_ends(file, facts)
            or computation.check_shape(file, facts)
            or routes.check_shape(file, facts)
            or replay.check(file, facts)
            or copies.check(file, facts)
        )


def expensive_finding(
    file: File,
    facts: Facts,
    weights: FileWeights,
    rng: random.Random,
    looked_at: dict[int, Prefill],
    outliers: dict[int, redraw.Outliers],
    watch: Stopwatch,
    progress: Callable[[], None] = lambda: None,
) -> Finding | None:
    """The first finding of the checks that need the claimed weights, on rows that are drawn here, look by look.

    What was seen is left in `looked_at`, by row number and without states, and in `outliers` the rows that the file goes without. Each of
    `facts.strata` is a file by itself here: completions, the only rows that are trained on, are neither missed by the draw nor hidden in sums
    behind the many rows that continue them.
    """
    if weights.finding is not None:
        return weights.finding
    strata = facts.strata
    facts = replace(facts, validation=sequential.of_a_stratum(facts.validation, len(strata)))
    copied = copies.agreements(file, facts) if facts.vine is not None and file.job.sampler is None else {}
    for rows in strata:
        seen: dict[int, Prefill] = {}
        far: dict[int, redraw.Outliers] = {}
        finding = _expensive_finding_among(rows, file, facts, weights, rng, copied, seen, far, watch, progress)
        looked_at |= seen
        outliers |= far
        if finding is not None:
            return finding
    return None


def _expensive_finding_among(
    rows: range,
    file: File,
    facts: Facts,
    weights: FileWeights,
    rng: random.Random,
    copied: copies.Agreements,
    seen: dict[int, Prefill],
    outliers: dict[int, redraw.Outliers],
    watch: Stopwatch,
    progress: Callable[[], None],
) -> Finding | None:
    """The first finding among these rows of the file; what was looked at is left in `seen`, those to leave out in `outliers`."""
    order = rng.sample(rows, len(rows))
    looks = sequential.looks(len(rows), sequential.first_rows(len(rows), file.job, facts.validation))
    chance = sequential.chance_of_a_part(facts.validation, len(looks))
    for until in looks:
        drawn = {number: file.rows[number] for number in order[len(seen) : until]}
        finding = _row_by_row(
            file, facts, weights, drawn, copied, seen, outliers, chance, watch, progress
        ) or _all_together(file, facts, weights.any(), chance, seen, outliers, watch)
        if finding is not None or not sequential.undecided(seen.values(), len(rows), facts.validation):
            return finding
    return None


def budget_of(facts: Facts, policy: LoadedPolicy) -> DrawnGaps:
    """How far a file's tokens may be from those that their seeds draw."""
    return drawn_gaps_in_force(facts.validation.thresholds, policy.profile, policy.dtype)


def _row_by_row(
    file: File,
    facts: Facts,
    weights: FileWeights,
    drawn: Mapping[int, Rollout],
    copied: copies.Agreements,
    looked_at: dict[int, Prefill],
    outliers: dict[int, redraw.Outliers],
    chance: float,
    watch: Stopwatch,
    progress: Callable[[], None],
) -> Finding | None:
    """Checks for which a row is right or wrong by itself: its proofs, and the sampler's choices. Rows that the latter leave out are few.

    Version by version: of a row with segments each version is shown what it sampled itself, with all that came before as context.
    """
    of_this_look = [*(file.rows[number] for number in looked_at), *drawn.values()]
    seen: dict[int, dict[int, Prefill]] = {}
    for version in weights.versions:
        pieces = by_version(drawn, version)
        if not pieces:
            continue
        policy = weights.of(version)
        if weights.finding is not None:
            return weights.finding
        finding = _of_one_version(
            of_version(file, pieces, version),
            facts,
            policy,
            pieces,
            copied,
            of_this_look,
            seen,
            looked_at,
            outliers,
            chance,
            watch,
            progress,
        )
        if finding is not None:
            return finding
    return None


def of_version(file: File, pieces: Mapping[int, Rollout], version: int) -> File:
    """The file as one of its versions made it: `pieces` in the place of their rows. Itself where it has one version."""
    if len(file.versions) == 1:
        return file
    return replace(file, rows=[pieces.get(number, row) for number, row in enumerate(file.rows)], only=version)


def _of_one_version(
    file: File,
    facts: Facts,
    policy: LoadedPolicy,
    drawn: Mapping[int, Rollout],
    copied: copies.Agreements,
    of_this_look: Sequence[Rollout],
    seen: dict[int, dict[int, Prefill]],
    looked_at: dict[int, Prefill],
    outliers: dict[int, redraw.Outliers],
    chance: float,
    watch: Stopwatch,
    progress: Callable[[], None],
) -> Finding | None:
    """The same of what one version sampled. `seen` has what each version says of a row, `looked_at` all of it together."""
    thresholds = thresholds_in_force(facts.validation.thresholds, policy.profile)
    budget = budget_of(facts, policy)
    batches = prefill_rows(policy.model, drawn, facts.eos_token_ids, file.job.sampler, facts.truncation, facts.routes)
    while True:
        with watch("prefill"):
            batch = next(batches, None)
        if batch is None:
            return None
        progress()
        with watch("computation"):
            errors = computation.measure(file, batch, facts, policy.profile)
            finding = routes.check(batch, policy.dtype) or computation.check(file, errors, thresholds)
        with watch("redraw"):
            redraw.add(outliers, redraw.outliers(file, batch, budget))
            finding = finding or redraw.check(outliers, of_this_look, budget, chance)
        if copied:
            with watch("replay"):  # once more by our own log-probabilities, which nobody can choose
                finding = finding or copies.find(copied, {number: ours.logprobs for number, ours in batch.items()})
        for number, ours in batch.items():
            of_row = seen.setdefault(number, {})
            of_row[policy.version] = ours.judged([each.mantissa_error_mean for each in errors[number]])
            looked_at[number] = joined([of_row[version] for version in sorted(of_row)])
        if finding is not None:
            return finding


def _all_together(
    file: File,
    facts: Facts,
    policy: LoadedPolicy,
    chance: float,
    looked_at: Mapping[int, Prefill],
    left_out: Collection[int],
    watch: Stopwatch,
) -> Finding | None:
    """Checks that sum over the rows seen so far. Those that the file goes without count with their proofs only. `policy`: any of the file's."""
    thresholds, budget = thresholds_in_force(facts.validation.thresholds, policy.profile), budget_of(facts, policy)
    with watch("computation"):
        finding = computation.check_mean(file, looked_at, thresholds, chance)
    looked_at = {number: ours for number, ours in looked_at.items() if number not in left_out}
    if not looked_at:
        return finding
    with watch("redraw"):
        finding = finding or redraw.check_budget(file, looked_at, budget, chance)
    with watch("token_sampling"):
        finding = finding or token_sampling.check(file, looked_at, facts, chance)
    with watch("termination"):
        return finding or termination.check_probabilities(file, looked_at, facts, chance)


def verdict(
    job: ValidationJob,
    file: File | None,
    finding: Finding | None,
    rewards: Sequence[RowReward],
    proof_rows: int,
    watch: Stopwatch,
    validator: str,
    compute: Compute | None = None,
    answers: FileAnswers | None = None,
    left_out: Sequence[int] = (),
) -> Verdict:
    """The document for a finding, or for none. `compute`, `answers` and `left_out` are only an accepted file's."""
    accepted = finding is None
    scored = file if accepted and file is not None and kind_of(job.step) is WorkKind.EVALUATION else None
    return Verdict(
        run=job.run,
        node=job.node,
        lease=job.lease,
        step=job.step,
        submission=job.submission,
        sha256=job.sha256,
        policy_version=file.policy_version if file is not None and file.policy_version >= 0 else None,
        outcome="accept" if finding is None else finding.outcome,
        reason=None if finding is None else finding.reason,
        evidence="" if finding is None else finding.evidence[:4000],
        rewards=list(rewards) if accepted else [],
        rows=len(file.rows) if file is not None else 0,
        completion_tokens=completion_tokens(file, left_out if accepted else ()) if file is not None else 0,
        proof_rows=proof_rows,
        check_seconds=watch.total,
        validator=validator,
        seconds_by_check=watch.seconds,
        completion_lengths=[len(row.completion_tokens) for row in scored.rows] if scored is not None else [],
        cut_rows=[number for number, row in enumerate(scored.rows) if row.finish_reason == "length"]
        if scored is not None
        else [],
        compute=compute if accepted else None,
        answers=answers if accepted else None,
        left_out=list(left_out) if accepted else [],
        part=job.part,
    )
