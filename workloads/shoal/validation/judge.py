"""From one file to one verdict: the checks in their order, cheap before dear.

In: the file on disk, the job, facts, policies, a source of randomness. Out: a `Verdict`, always: what goes wrong on
our side is `inconclusive`, which costs nobody anything. Called by `service`. Nothing is remembered between files, so
a validator may die at any point.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import BadRollouts
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.telemetry import busy, get_logger
from shoal.validation.checks import bounds, computation, identity, replay, reward, sampling, termination, token_sampling
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.parsing import parse_file
from shoal.validation.policies import Policy
from shoal.validation.prefill import prefill


class PolicySource(Protocol):
    """What is used of `Policies`."""

    def get(self, version: int) -> Policy: ...


def judge(path: Path, job: ValidationJob, facts: Facts, policies: PolicySource, rng: random.Random) -> Verdict:
    """Check the file at `path`, whose digest the caller has compared with the job's.

    `rng` draws the rows whose proofs are verified; it must not be known to anybody (`secrets.SystemRandom`).
    """
    started = time.monotonic()
    file: File | None = None
    rewards: list[RowReward] = []
    drawn: list[int] = []
    try:
        with busy("parse"):
            file = File(job, *parse_file(path, facts.rows * facts.max_sequence_length))
        finding = cheap_finding(file, facts)
        if finding is None:
            with busy("score"):
                rewards = reward.score_rows(file, facts)
            finding = reward.check(file, rewards)
        if finding is None:
            policy = policies.get(file.policy_version)
            drawn = draw_rows(len(file.rows), facts.validation.proof_rows_share, facts.validation.proof_rows_floor, rng)
            with busy("prefill"):
                finding = next(dear_findings(file, facts, policy, drawn), None)
    except BadRollouts as error:
        finding = reject("format", str(error))
    except Exception as error:  # whatever it is, it is not the worker's fault until shown
        get_logger().exception("file could not be judged", node=job.node[:12], sha256=job.sha256[:12])
        finding = Finding("inconclusive", None, f"{type(error).__name__}: {error}")
    return verdict(job, file, finding, rewards, len(drawn), time.monotonic() - started)


def cheap_finding(file: File, facts: Facts) -> Finding | None:
    """The first finding of the checks that look at every row and need no weights."""
    with busy("cheap_checks"):
        return (
            identity.check(file, facts)
            or bounds.check(file, facts)
            or sampling.check(file, facts)
            or termination.check_ends(file, facts)
            or computation.check_shape(file, facts)
            or replay.check(file)
        )


def dear_findings(file: File, facts: Facts, policy: Policy, drawn: Sequence[int]) -> Iterator[Finding]:
    """Findings of the checks that need the claimed weights, on the drawn rows."""
    weights = identity.check_weights(file, policy.weights_digest)
    if weights is not None:
        yield weights
        return
    prefills = {number: prefill(policy.model, file.rows[number], facts.eos_token_ids) for number in drawn}
    for check in (computation.check, token_sampling.check, termination.check_probabilities):
        finding = check(file, prefills, facts)
        if finding is not None:
            yield finding


def draw_rows(rows: int, share: float, floor: int, rng: random.Random) -> list[int]:
    """Row numbers whose proofs are verified, ascending: `share` of `rows`, at least `floor`, without repeats."""
    return sorted(rng.sample(range(rows), min(rows, max(floor, math.ceil(share * rows)))))


def verdict(
    job: ValidationJob,
    file: File | None,
    finding: Finding | None,
    rewards: Sequence[RowReward],
    proof_rows: int,
    seconds: float,
) -> Verdict:
    """The document for a finding, or for none."""
    accepted = finding is None
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
        completion_tokens=sum(len(row.completion_tokens) for row in file.rows) if file is not None else 0,
        proof_rows=proof_rows,
        check_seconds=seconds,
    )
