"""Uploads: from a lease to a file in the validators' queue.

In: `UploadRequest` (gets a grant for one staging key) and `SubmissionNotice` (the file is uploaded). The file is noted under `waiting/`,
promoted to its final name and hashed there, because a staging object may change until its grant expires.
Then the store binds the lease to it, then the submission record is created, then the job is queued, then staging is cleared. After a crash at any
point the repeated notice, one with another file of that lease, or `recovery`, finishes the rest; nothing is queued twice. What is refused is deleted.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.contracts import keys
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.contracts.file_size import MAX_FILE_BYTES, largest_bytes
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import SubmissionNotice, SubmissionReceipt, UploadGrant, UploadRequest
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Outcome, Verdict
from shoal.orchestrator.doubts import FileInDoubt
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.queue import Job
from shoal.orchestrator.work import parts
from shoal.orchestrator.work.leases import is_open, other_file, upload_seconds
from shoal.orchestrator.work.open_work import closed, known
from shoal.orchestrator.work.records import LeaseRecord, SubmissionRecord
from shoal.storage import NotFound, find
from shoal.storage.grants import make_grant
from shoal.telemetry import get_logger

HOUR_SECONDS = 3600
FILES_AN_HOUR = 1200
"""Files of one node an hour: one every three seconds, far more than an engine makes. A node cannot fill the store faster."""

_STATUS: dict[Outcome, str] = {
    "accept": "accepted",
    "reject": "rejected",
    "expired": "expired",
    "inconclusive": "queued",
}


def largest_file(config: RunConfig, benchmarks: Sequence[BenchmarkTerms] = (), route_bytes: int = 0) -> int:
    """Bytes that an honest file cannot exceed, from the recipe and the run's benchmarks; larger files are refused before the upload.

    `route_bytes`: of the routes of a sampled token, where the run records them.
    """
    longest = max(each.max_completion_tokens for each in (config.sampling, *(each.sampling for each in benchmarks)))
    of_slices = [each.sampling.groups_per_submission * each.samples for each in benchmarks]
    of_a_step = config.sampling.groups_per_submission * config.recipe.group_size * config.recipe.rows_each
    rows = max([of_a_step, *of_slices])
    return min(MAX_FILE_BYTES, largest_bytes(rows, config.recipe.max_sequence_length, longest, route_bytes))


def grant_upload(state: RunState, request: UploadRequest) -> UploadGrant:
    """A grant for the staging key of the node's lease; raises `Refusal`."""
    member = state.nodes.require_member(request.node)
    routes = state.prepared.routes
    limit = largest_file(state.config, state.plan.benchmarks, routes.bytes_a_token if routes is not None else 0)
    if request.size > limit:
        raise Refusal(ProblemCode.FILE_TOO_LARGE, f"file has {request.size} bytes, allowed in this run are {limit}")
    now = state.clock()
    with state.lease_lock:
        record = state.leases.require(request.lease, request.node)
        if record.status == "submitted":
            raise Refusal(
                ProblemCode.ALREADY_SUBMITTED, f"lease {request.lease} has its file already: ask for the receipt"
            )
        _require_time_left(record, now)
        expires = now + upload_seconds(request.size)
        if record.sha256 is None:
            _take_from_quota(state, request.node, now)
        else:  # time for the upload is given once: asking again and again must not keep the place forever
            expires = min(expires, record.lease.expires_unix)
        state.leases.name_file(record, request.sha256, request.size, expires)
    return make_grant(
        state.config,
        keys.staging(request.node, request.lease),
        max_bytes=request.size,
        expires_unix=expires,
        run_secret=state.run_secret,
        outside=bool(member.outside),
    )


def _take_from_quota(state: RunState, node: str, now_unix: float) -> None:
    """Count a file of this node in this hour; raises `Refusal`. A repeated request for the same file is not counted again."""
    if _count_file(state, node, now_unix) > FILES_AN_HOUR:
        raise _too_many(ProblemCode.QUOTA_USED, now_unix)


def _count_file(state: RunState, node: str, now_unix: float) -> int:
    """How many files this node had in this hour, with this one. One that is refused after its upload counts twice: it cost deletions too."""
    key = _quota_key(state, node, now_unix)
    with state.redis.pipeline() as pipe:
        pipe.incr(key)
        pipe.expire(key, 2 * HOUR_SECONDS)
        return int(pipe.execute()[0])


def require_quota(state: RunState, node: str, open_leases: int, now_unix: float) -> None:
    """Whether a further lease of this node, beside those whose files are to come, will be worth its work; raises `Refusal`.

    What is leased can be handed in then: the hour that follows has a count of its own.
    """
    if _files_of_hour(state, node, now_unix) + open_leases >= FILES_AN_HOUR:
        raise _too_many(
            ProblemCode.QUOTA_LEASED, now_unix
        )  # not 429, which clients wait out: a worker does other things meanwhile


def _files_of_hour(state: RunState, node: str, now_unix: float) -> int:
    return int(state.redis.get(_quota_key(state, node, now_unix)) or 0)


def _quota_key(state: RunState, node: str, now_unix: float) -> str:
    return f"{state.prefix}:files:{int(now_unix // HOUR_SECONDS)}:{node}"


def _too_many(code: ProblemCode, now_unix: float) -> Refusal:
    wait = math.ceil(HOUR_SECONDS - now_unix % HOUR_SECONDS)
    words = f"a node hands in {FILES_AN_HOUR} files an hour at most: wait {wait} s"
    return Refusal(code, words, retry_after_seconds=wait)


def submit(state: RunState, notice: SubmissionNotice) -> SubmissionReceipt:
    """Hash, promote and queue an uploaded file; the same notice again gives the file's present status. Raises `Refusal`."""
    state.nodes.require_member(notice.node)
    with _alone(state, notice.lease):
        return _submit(state, notice)


@contextmanager
def _alone(state: RunState, lease: str) -> Iterator[None]:
    """One confirmation of a lease at a time, since each has a whole file copied and hashed on a thread. Others wait for nothing here: `Refusal`."""
    ours = object()
    if state.confirming.setdefault(lease, ours) is not ours:
        raise Refusal(
            ProblemCode.RECORD_BUSY, "a file of this lease is being confirmed: ask again", retry_after_seconds=1
        )
    try:
        yield
    finally:
        del state.confirming[lease]


def _submit(state: RunState, notice: SubmissionNotice) -> SubmissionReceipt:
    lease = state.leases.require(notice.lease, notice.node)
    record = find_record(state, notice.node, notice.sha256)
    if record is None and (judged := find_verdict(state, notice.node, notice.sha256)) is not None:
        raise _submitted_before(judged.document.lease)  # the file was let go since (`retention`)
    if record is not None:
        if record.lease != notice.lease:
            raise _submitted_before(record.lease)
        with state.doubts.about(FileInDoubt(record.step, record.node, record.sha256)):
            return finish(state, record, lease)
    if (
        _files_of_hour(state, notice.node, state.clock()) > FILES_AN_HOUR
    ):  # refused files count, which no grant was asked for
        raise _too_many(ProblemCode.QUOTA_USED, state.clock())
    part, rest = parts.split(state, lease, notice.part)
    groups = lease.groups if rest is None or part is None else len(part.groups)
    if notice.groups != groups:
        raise Refusal(
            ProblemCode.WRONG_GROUPS, f"the request says {notice.groups} groups, this submission has {groups}"
        )
    with state.lease_lock:
        lease = state.leases.require(notice.lease, notice.node)
        _require_time_left(lease, state.clock())
        # Redis may have forgotten which file was named; then the uploaded bytes alone must fit the notice.
        lease = state.leases.name_file(lease, notice.sha256, notice.size, lease.lease.expires_unix)
    if closed(state, known(state, lease.lease.step)):
        state.leases.put(lease.model_copy(update={"status": "submitted"}))
        state.store.delete(keys.staging(notice.node, notice.lease))
        return SubmissionReceipt(lease=notice.lease, sha256=notice.sha256, status="expired")
    record = SubmissionRecord(
        run=state.config.run,
        node=notice.node,
        lease=notice.lease,
        step=lease.lease.step,
        submission=lease.lease.submission,
        sha256=notice.sha256,
        size=notice.size,
        groups=groups,
        received_unix=state.clock(),
        drawn_by=lease.drawn_by,
        policy_version=notice.policy_version,
        part=part,
        rest=rest,
        keeps_rest=notice.part is not None and notice.part.keep,
    )
    _require_uploaded(state, notice)
    with state.doubts.about(FileInDoubt(record.step, record.node, record.sha256)):
        return _take_in(state, notice, record, lease)


def _take_in(
    state: RunState, notice: SubmissionNotice, record: SubmissionRecord, lease: LeaseRecord
) -> SubmissionReceipt:
    """Note, promote, bind and queue the uploaded file; raises `Refusal`."""
    # Noted before the bytes: what a crash leaves half done is found by it. A note that is there is written anew: a look at old ones must not
    # take it for forgotten.
    note = keys.waiting(record.step, record.node, record.sha256)
    state.store.put(note, record.to_json())
    try:
        _promote(state, notice)
        with state.lock_of_node(notice.node):
            if not state.store.exists(keys.upload(notice.node, notice.sha256)):
                raise _nothing_uploaded()  # another lease brought it and was refused
            state.store.create(note, record.to_json())  # which that lease took along, if it is of the same step
            record, lease, created = _bind(state, notice, record, lease)
    except Refusal:
        let_go(state, notice.node, notice.sha256, note)
        _count_file(state, notice.node, state.clock())
        raise
    if record.sha256 != notice.sha256:
        if find_record(state, record.node, record.sha256) == record:
            finish(state, record, lease)  # whoever bound the lease may have stopped there
        let_go(state, notice.node, notice.sha256, note)
        _count_file(state, notice.node, state.clock())
        raise other_file(record.lease, record.sha256)
    if not created:
        return _submit(state, notice)  # another orchestrator was first: its record decides
    get_logger().info(
        "submission received", node=notice.node, step=record.step, submission=record.submission, bytes=record.size
    )
    return finish(state, record, lease)


def _bind(
    state: RunState, notice: SubmissionNotice, record: SubmissionRecord, lease: LeaseRecord
) -> tuple[SubmissionRecord, LeaseRecord, bool]:
    """Give the lease its one file and create the record: the file, the lease with it, and whether the record is new; raises `Refusal`."""
    with state.lease_lock:
        # Hashing takes a while: a lease that was handed back meanwhile is free for another file, and hands in one only. Redis may have lost it.
        lease = state.leases.get(notice.lease) or lease
        if lease.status in ("returned", "passed") or lease.sha256 not in (None, notice.sha256):
            raise Refusal(ProblemCode.LEASE_OVER, f"lease {notice.lease} was given back before its file was confirmed")
        record = _the_one_file(state, record)
        created = state.store.create(keys.submission(record.node, record.sha256), record.to_json())
        lease = _with_file(lease, record)
        state.leases.put(lease)
        return record, lease, created


def _submitted_before(lease: str) -> Refusal:
    return Refusal(ProblemCode.SUBMITTED_BEFORE, f"the same bytes were submitted for lease {lease}: make new rollouts")


def _nothing_uploaded() -> Refusal:
    return Refusal(ProblemCode.NOTHING_UPLOADED, "post the file to the grant's URL before confirming")


def let_go(state: RunState, node: str, sha256: str, note: str) -> None:
    """A refused file leaves no note and no bytes, unless the node brought the same bytes for another lease: it could fill the store with them.

    Other nodes wait for none of it: keys of files name their node, so the node's own lock is enough.
    """
    with state.lock_of_node(node):
        if find_record(state, node, sha256) is None:
            state.store.delete(keys.upload(node, sha256))
            state.store.delete(note)


def _the_one_file(state: RunState, record: SubmissionRecord) -> SubmissionRecord:
    """The file of its lease: this record, or the one of another file that came first, here or at another orchestrator."""
    key = keys.lease_file(record.lease)
    if state.store.create(key, record.to_json()):
        return record
    return SubmissionRecord.from_json(state.store.get(key))


def find_record(state: RunState, node: str, sha256: str) -> SubmissionRecord | None:
    return find(state.store, keys.submission(node, sha256), SubmissionRecord.from_json)


def find_verdict(state: RunState, node: str, sha256: str) -> Signed[Verdict] | None:
    """The recorded verdict on a file, if there is one."""
    return find(state.store, keys.verdict(node, sha256), Signed[Verdict].from_json)


def finish(state: RunState, record: SubmissionRecord, lease: LeaseRecord) -> SubmissionReceipt:
    """The actions after the record: queue the file unless it has its verdict, close the lease, clear staging. Idempotent."""
    verdict = find_verdict(state, record.node, record.sha256)
    if verdict is None:
        state.queue.add(Job(record=record), state.clock())
    with state.lease_lock:
        if lease.status == "open" or (lease.status != "submitted" and lease.part is None):
            state.leases.put(_with_file(lease, record))
        rest = parts.open_rest(state, record, lease)
    state.store.delete(keys.staging(record.node, record.lease))
    status = _STATUS[verdict.document.outcome] if verdict is not None else "queued"
    kept = rest.lease if rest is not None and record.keeps_rest and is_open(rest, state.clock()) else None
    return SubmissionReceipt.model_validate(
        {"lease": record.lease, "sha256": record.sha256, "status": status, "rest": kept}
    )


def _with_file(lease: LeaseRecord, record: SubmissionRecord) -> LeaseRecord:
    """The lease once it has this file."""
    file = {"sha256": record.sha256, "size": record.size, "part": record.part, "groups": record.groups}
    return lease.model_copy(update={"status": "submitted", **file})


def _require_uploaded(state: RunState, notice: SubmissionNotice) -> None:
    """Raises `Refusal` where there is nothing to promote, at the cost of two looks: nothing was written for it, and nobody waits."""
    staged = keys.staging(notice.node, notice.lease)
    size = state.store.size(staged)
    if size is None and not state.store.exists(keys.upload(notice.node, notice.sha256)):
        raise _nothing_uploaded()
    if size is not None and size != notice.size:
        state.store.delete(staged)
        raise Refusal(ProblemCode.WRONG_SIZE, f"the uploaded file has {size} bytes, announced were {notice.size}")


def _promote(state: RunState, notice: SubmissionNotice) -> None:
    """Give the staged bytes their final name if they match the announcement; raises `Refusal`."""
    target, staged = keys.upload(notice.node, notice.sha256), keys.staging(notice.node, notice.lease)
    try:
        state.store.copy_if_absent(staged, target)
        found = state.store.sha256(target)
    except NotFound as error:
        raise _nothing_uploaded() from error
    if found != (notice.sha256, notice.size):  # `let_go` deletes the target
        state.store.delete(staged)
        raise Refusal(
            ProblemCode.WRONG_DIGEST,
            f"the uploaded file has SHA-256 {found[0]} and {found[1]} bytes, announced were {notice.sha256} and {notice.size}",
        )


def _require_time_left(record: LeaseRecord, now_unix: float) -> None:
    if record.status == "abandoned" or not (is_open(record, now_unix) or record.status == "submitted"):
        raise Refusal(
            ProblemCode.LEASE_OVER, f"lease {record.lease.lease} expired or was given back: ask for a new one"
        )
