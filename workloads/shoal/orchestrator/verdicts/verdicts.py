"""Verdicts: what a validator's finding leads to, and how it is recorded.

`decide` is pure: finding, step and earlier opinions in, one `Decision` out. `record_verdict` carries it out: the verdict object is created first (it
exists once, so it decides), then the ledger is told, then the queue is cleared; each part finds by itself whether it was done before. So a crash
anywhere is repaired by the next verdict on the file or by `recovery`. Called for `POST /v1/verdicts`, for files of sealed steps and by `recovery`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.contracts import keys
from shoal.contracts.pools import SAMPLER
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.proof_profile import outliers_in_force
from shoal.contracts.signed import Signed, sign
from shoal.contracts.verdicts import NEVER_ALONE, Opinion, Verdict, findings_needed, votes_of
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.crypto.canonical import document_digest
from shoal.ledger.entries import Accepted, NodeEvicted, Rejected
from shoal.ledger.view import Files
from shoal.orchestrator import key_changes
from shoal.orchestrator.doubts import FileInDoubt
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.queue import Job, OpinionNote, backoff_seconds
from shoal.orchestrator.work import parts, program_time, sizing
from shoal.orchestrator.work.lease_returns import give_up_leases
from shoal.orchestrator.work.open_work import closed, known
from shoal.orchestrator.work.records import SubmissionRecord
from shoal.orchestrator.work.sealing import accepted_file, seal_if_full
from shoal.orchestrator.work.standing import note_accepted, note_rejected
from shoal.orchestrator.work.uploads import find_verdict
from shoal.sampling.tails import too_many
from shoal.telemetry import get_logger

EVICTED = "its node was evicted before this file was judged"
"""The evidence of the verdict on such a file: it is neither paid nor trained on, and no further offence."""


@dataclass(frozen=True)
class Decision:
    """`record`: the verdict stands. `expire`: the file is too late. `second-opinion`: ask another validator. `again`: check again later.
    `lost`: as `expire`, and the lease counts as dropped.
    """

    kind: Literal["record", "expire", "lost", "second-opinion", "again", "repeated"]
    detail: str = ""


def decide(
    verdict: Verdict,
    digest: str,
    opinions: Sequence[OpinionNote],
    *,
    validator: str,
    alone: bool,
    sealed: bool,
    window: tuple[int, int],
    votes: int = 1,
    evicted: bool = False,
    key: str | None = None,
    spent: str = "",
) -> Decision:
    """The action for a finding of `validator` on a file without a recorded verdict.

    `digest` identifies the verdict document: the same document again is a repeated request, not another finding. Two findings agree when they have
    one reason and are of two validators; or, when others had their time and none came (`alone`), of two checks by one, except for `NEVER_ALONE`. With
    `votes` above 1 every reject needs this many validators that agree, and one never counts twice, by its name or by its own `key`. Nothing of an
    `evicted` node is accepted any more, nor a file after which its node has left out too many rows: `spent` says so, or is empty.
    """
    if verdict.outcome == "inconclusive":
        return Decision("again", verdict.evidence)
    if verdict.outcome == "reject":
        if findings_needed(verdict, votes) == 1:
            return Decision("record")
        if any(note.digest == digest for note in opinions):
            return Decision("repeated")
        before = {note.voter for note in opinions if note.reason == verdict.reason}
        lonely = verdict.reason in NEVER_ALONE
        had, have = votes_of(before), votes_of({*before, (validator, key or validator)})
        if votes > 1:
            if have >= votes:
                return Decision("record")
            if have == had and not lonely:
                return Decision("again", f"{had} of {votes} validators agree; more must check the file")
            return Decision("second-opinion")
        agreed = bool(before) and (have > 1 or (alone and not lonely))
        return Decision("record") if agreed else Decision("second-opinion")
    if evicted:
        return Decision("expire", EVICTED)
    if sealed:
        return Decision("expire", f"step {verdict.step} was sealed before this file was accepted")
    if verdict.outcome == "accept" and verdict.policy_version is not None:
        oldest, newest = window
        if not oldest <= verdict.policy_version <= newest:
            return Decision(
                "expire",
                f"policy version {verdict.policy_version} may not feed step {verdict.step}; allowed: {oldest} to {newest}",
            )
    return Decision("lost", spent) if spent else Decision("record")


def receive(state: RunState, signed: Signed[Verdict]) -> None:
    """A validator's verdict, its signature already checked; raises `Refusal` when it is on no file of ours or does not fit it."""
    verdict = signed.document
    program_time.charge(state, verdict.validator, verdict.node, verdict.sha256, verdict.program_seconds)
    with state.settle_lock:
        recorded = find_verdict(state, verdict.node, verdict.sha256)
        if recorded is not None:
            with state.doubts.about(FileInDoubt(recorded.document.step, verdict.node, verdict.sha256)):
                _conclude(state, recorded)
            return
        job = state.queue.get(verdict.node, verdict.sha256)
        if job is None:
            raise Refusal(
                ProblemCode.NO_SUCH_FILE_QUEUED,
                f"file {verdict.sha256} of node {verdict.node[:12]}... was not submitted",
            )
        # Only now is the file known to be ours. The reads before leave nothing half done.
        with state.doubts.about(FileInDoubt(job.record.step, job.record.node, job.record.sha256)):
            _settle(state, signed, job)


def _settle(state: RunState, signed: Signed[Verdict], job: Job) -> None:
    """What a verdict means for its file, which waits for one; raises `Refusal` when it does not fit. The caller holds `settle_lock`."""
    verdict = signed.document
    work = known(state, job.record.step)
    if work is None:
        expire(state, job.record, over(state, job.record))
        return
    _check_fits(job.record, work, verdict)
    job = key_changes.believed_opinions(state, job)
    digest = document_digest(verdict)
    decision = decide(
        verdict,
        digest,
        job.opinions,
        validator=validator_of(verdict, job),
        alone=state.clock() >= job.prefer_another_until_unix,
        sealed=closed(state, work),
        window=work.window,
        votes=state.config.validation.slash_votes,
        evicted=verdict.node in state.view.evicted,
        key=key_of(verdict),
        spent=_spent(state, verdict),
    )
    get_logger().info(
        "verdict", node=verdict.node, step=verdict.step, submission=verdict.submission, outcome=verdict.outcome,
        reason=verdict.reason, decision=decision.kind,
    )  # fmt: skip
    match decision.kind:
        case "record":
            record_verdict(state, signed)
        case "expire":
            expire(state, job.record, decision.detail)
        case "lost":
            # Before the verdict, which ends the file: a crash charges twice, never not at all.
            note_rejected(state, verdict.node)
            expire(state, job.record, decision.detail)
        case "second-opinion":
            _ask_another(state, job, signed, digest)
        case "again":
            count = job.inconclusive + 1
            again = job.model_copy(update={"inconclusive": count})
            state.queue.again(again, state.clock() + backoff_seconds(count))
            state.redis.incr(f"{state.prefix}:inconclusive")


def _spent(state: RunState, verdict: Verdict) -> str:
    """Why an accepted file is one too many that leaves out rows, or nothing.

    Rounding leaves out few rows of a node, whoever it is. A liar who makes outliers of disliked answers leaves out no more, for such files are then
    lost. An owner's own pods are no exception: their rate is the same.
    """
    if not verdict.left_out:
        return ""
    outliers = outliers_in_force(state.config.validation.thresholds, state.prepared.proof_profile)
    files = state.view.files_of.get(verdict.node, Files())
    rows, tokens = files.left_out + len(verdict.left_out), files.looked_at + verdict.looked_at
    if outliers is not None and not too_many(rows, outliers * tokens):
        return ""
    return f"{rows} rows of its node's files were left out of {tokens} tokens looked at; rounding explains {(outliers or 0.0) * tokens:.2g}"


def validator_of(verdict: Verdict, job: Job) -> str:
    """The pod that made a verdict, by the card of its key. Without cards the name is its word; the last claim's where an old one says none."""
    return verdict.validator or job.claimed_by


def key_of(verdict: Verdict) -> str | None:
    """The validator's own key, or None where all share one."""
    return verdict.card.document.key if verdict.card is not None else None


def record_verdict(state: RunState, signed: Signed[Verdict]) -> None:
    """Make a verdict the file's verdict, once and for all, and draw its consequences."""
    verdict = signed.document
    with state.settle_lock, state.doubts.about(FileInDoubt(verdict.step, verdict.node, verdict.sha256)):
        if not state.store.create(keys.verdict(verdict.node, verdict.sha256), signed.to_json()):
            signed = find_verdict(state, verdict.node, verdict.sha256) or signed
        _conclude(state, signed)


def expire(state: RunState, record: SubmissionRecord, detail: str) -> None:
    """Record that a file came too late: no pay and no slash. Signed by the orchestrator, who alone knows when a step was sealed."""
    verdict = Verdict(
        run=record.run,
        node=record.node,
        lease=record.lease,
        step=record.step,
        submission=record.submission,
        sha256=record.sha256,
        outcome="expired",
        evidence=detail,
        part=record.part,
    )
    record_verdict(state, sign(verdict, state.key))


def over(state: RunState, record: SubmissionRecord) -> str:
    """Why a waiting file is not to be checked any more, or nothing."""
    work = known(state, record.step)
    if work is None:
        return f"{record.step} is not a slice that this run knows"
    if closed(state, work):
        return f"step {record.step} was sealed before this file was checked"
    if record.drawn_by is not None and record.drawn_by.sampler not in (SAMPLER, None):
        return (
            f"its tokens were drawn by rule {record.drawn_by.sampler} of an earlier release; validators have {SAMPLER}"
        )
    return EVICTED if record.node in state.view.evicted else ""


def evict(state: RunState, node: str, detail: str) -> None:
    """Exclude a node: the ledger first, then its record, then its open leases."""
    state.ledger.append(NodeEvicted(node=node, reason=detail[:4000]))
    record = state.nodes.get(node)
    if record is not None:
        state.nodes.change(record, "evict")
    give_up_leases(state, node)


def _conclude(state: RunState, signed: Signed[Verdict]) -> None:
    """Ledger, queue and step of a recorded verdict. Idempotent: the ledger ignores a repeated entry, and the rest only removes.

    An accept whose entry failed, and whose step was sealed before the next attempt, is late like any other: it has no entry and no pay, since
    nothing of a step may follow its seal.
    """
    verdict = signed.document
    work = known(state, verdict.step)
    settled = (verdict.node, verdict.sha256) in state.view.settled
    closed_step = isinstance(work, TrainingStep | TableSlice) and closed(state, work)
    too_late = verdict.outcome == "accept" and not settled and closed_step
    if too_late:
        get_logger().warning("accepted too late", node=verdict.node, step=verdict.step, submission=verdict.submission)
    elif verdict.outcome == "accept":
        groups, counted = _groups(state, work, verdict)
        if not settled and isinstance(work, TrainingStep):  # an old file that comes again is not among the newest
            state.answers.add(verdict, counted)  # it takes each file once
        entry = state.ledger.append(
            Accepted(
                node=verdict.node,
                step=verdict.step,
                submission=verdict.submission,
                file=verdict.sha256,
                tokens=verdict.completion_tokens,
                groups=groups,
                signal_groups=counted,
                compute=verdict.compute,
                left_out=verdict.left_out or None,
                looked_at=verdict.looked_at if verdict.looked_at < verdict.completion_tokens else None,
                part=verdict.part,
                claimed_rows=verdict.claimed_rows or None,
            )
        )
        # Whoever appends the entry notes it, once. What fails from here on is not noted again: the node's next file makes good for it.
        if entry is not None:
            job = state.queue.get(verdict.node, verdict.sha256)
            if verdict.part is None or not verdict.part.left:
                note_accepted(state, verdict.node, verdict.lease, job.record.received_unix if job else None, work)
            program_time.note_accepted(state, verdict.node, verdict.program_seconds)
            sizing.note_accepted(state, verdict, work, job.record.received_unix if job else None)
    elif verdict.outcome == "reject":
        state.ledger.append(
            Rejected(
                node=verdict.node,
                step=verdict.step,
                submission=verdict.submission,
                file=verdict.sha256,
                finding=f"{verdict.reason}: {verdict.evidence}"[:4000],
            )
        )
        if state.config.validation.slashing == "Evict":
            evict(state, verdict.node, f"file {verdict.sha256} was rejected ({verdict.reason})")
        elif not settled:
            note_rejected(state, verdict.node)
    if verdict.outcome != "accept" and verdict.part is not None:
        parts.free_again(state, verdict.lease)
    state.queue.discard(verdict.node, verdict.sha256)
    if verdict.outcome == "expired" or too_late:
        state.files_expired += state.store.create(keys.expired(verdict.node, verdict.sha256), b"{}")
    state.store.delete(
        keys.waiting(verdict.step, verdict.node, verdict.sha256)
    )  # last: until then recovery repeats this
    if verdict.outcome == "accept" and isinstance(work, TrainingStep | TableSlice):
        seal_if_full(state, work.number)


def _groups(state: RunState, work: Work | None, verdict: Verdict) -> tuple[int, int]:
    """Groups of an accepted file, and how many of them count towards its step; none of an evaluation's file."""
    match work:
        case None:
            return 0, 0
        case EvaluationSlice():
            return work.shape.groups, 0
        case TrainingStep() | TableSlice():
            file = accepted_file(state, verdict)
            return len(file.signal_prompts) + file.dropped_groups, len(file.signal_prompts)


def _ask_another(state: RunState, job: Job, signed: Signed[Verdict], digest: str) -> None:
    """Keep a statistical reject as an opinion. Queue the file for a fresh check of every row, by another validator if one comes in time."""
    verdict = signed.document
    assert verdict.reason is not None
    validator = validator_of(verdict, job)
    opinion = Opinion(validator=validator, verdict=signed)
    state.store.create(f"{keys.opinions(verdict.node, verdict.sha256)}{digest}.json", opinion.to_json())
    now = state.clock()
    note = OpinionNote(validator=validator, reason=verdict.reason, digest=digest, key=key_of(verdict))
    again = job.model_copy(
        update={
            "opinions": [*job.opinions, note],
            # One claim's time: another validator has polled by then if there is one.
            "prefer_another_until_unix": now + state.config.validation.claim_seconds,
        }
    )
    state.queue.again(again, now)


def _check_fits(record: SubmissionRecord, work: Work, verdict: Verdict) -> None:
    for name in ("run", "lease", "step", "submission", "part"):
        given, ours = getattr(verdict, name), getattr(record, name)
        if given != ours:
            raise Refusal(ProblemCode.VERDICT_MISFIT, f"verdict says {name} {given!r}, the submission has {ours!r}")
    rows = work.shape.rows if record.part is None else len(record.part.groups) * work.shape.group_size
    if verdict.outcome == "accept" and verdict.rows != rows:
        raise Refusal(
            ProblemCode.WRONG_ROWS,
            f"verdict accepts {verdict.rows} rows, a submission of this run has {rows}: that is a reject (format)",
        )
    if verdict.outcome == "accept" and isinstance(work, EvaluationSlice) and len(verdict.completion_lengths) != rows:
        raise Refusal(
            ProblemCode.LENGTHS_MISSING,
            f"verdict has {len(verdict.completion_lengths)} completion_lengths, an evaluation's file has {rows} rows",
        )
