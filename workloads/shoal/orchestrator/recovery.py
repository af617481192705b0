"""Recovery: everything in Redis made again from the object store, and whatever a crash left half done finished.

`rebuild` is called when the orchestrator starts, and when Redis lost its memory or is another process than before, which may lack its last second.
After any other error `repair` reads what that error left in doubt (`doubts`). Both add what is missing and repeat what is idempotent, so
they may run at any time, beside requests, and twice. Order of truth: ledger, verdicts, submissions, leases.

Cost of a rebuild: one read for each lease of an open step, another where its file is not accepted; two for each file that waits (`waiting/`).
Nothing is read of what is closed, however much there was. At the paper's size (40 files a step, five steps open) these are 420 reads. Late files are
listed, a thousand with one request, and not read. A store that an earlier release wrote is read in full once, and then has `indexed.json`. A repair
costs a listing or two and some six reads for each file in doubt.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from redis.exceptions import RedisError

from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import Opinion, Verdict
from shoal.contracts.weights import VersionOpen
from shoal.contracts.work import pools_digest
from shoal.crypto.canonical import document_digest
from shoal.orchestrator.doubts import FileInDoubt, LeasesInDoubt, NodeInDoubt, Part
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.learning import WINDOW_GROUPS
from shoal.orchestrator.verdicts.queue import Job, OpinionNote
from shoal.orchestrator.verdicts.verdicts import evict, key_of, record_verdict
from shoal.orchestrator.work import beacons, parts
from shoal.orchestrator.work.lease_returns import give_up_leases
from shoal.orchestrator.work.open_work import closed, known, openable_steps
from shoal.orchestrator.work.records import LeaseRecord, SubmissionRecord
from shoal.orchestrator.work.sealing import seal_if_full
from shoal.orchestrator.work.uploads import find_record, find_verdict, finish, let_go
from shoal.storage import NotFound, StoreUnavailable, find
from shoal.storage.parallel import in_parallel
from shoal.telemetry import get_logger

FORGOTTEN_SECONDS = 3600.0  # a notice that is repeated comes within minutes
OLD_NOTES = 128
"""Old notes that one look reads: files wait an hour for their verdict where validators are away."""
MOST_LISTINGS = 8  # steps whose leases are listed one by one; a training run has at most five open

BUILT = "built"
"""Key in Redis whose absence says that Redis lost its memory."""
PROCESS_SECONDS = 60.0
"""From one rebuild for another process of Redis to the next: behind a proxy each `INFO` may come from another node."""
AWAY_IN_A_ROW = 2
"""Parts in a row for which store or Redis fail: then they are taken to be away. One alone may be an object that cannot be read."""


def is_built(state: RunState) -> bool:
    """Whether this process has read the run's state once, and Redis still has what `rebuild` put there."""
    return state.is_read and bool(state.redis.exists(f"{state.prefix}:{BUILT}"))


def must_rebuild(state: RunState) -> bool:
    """Whether everything must be read again. Redis writes its file once a second: a process after a killed one lacks what came since."""
    if not is_built(state):
        return True
    built, process = state.redis.get(f"{state.prefix}:{BUILT}"), _redis_process(state)
    return bool(process) and built != process and state.clock() >= state.process_changed_unix + PROCESS_SECONDS


def _redis_process(state: RunState) -> str:
    """What names the process that Redis is: it changes with a restart, and where a replica takes over. Empty where Redis does not tell."""
    return str(state.redis.info("server").get("run_id", ""))


def repair(state: RunState) -> None:
    """Bring in line with the store what errors left in doubt, and nothing else. What cannot be repaired stays in doubt, and its error is raised."""
    left, failed = deque(state.doubts.taken()), dict[Part, Exception]()
    away = 0
    try:
        while left and away < AWAY_IN_A_ROW:  # the others would wait as long for the same answer
            part = left.popleft()
            try:
                _repair(state, part)
                away = 0
            except Exception as error:
                failed[part] = error
                away = away + 1 if isinstance(error, StoreUnavailable | RedisError) else 0
    finally:
        state.doubts.add([*left, *failed])  # what failed comes last the next time, and holds up nothing
    for problem in failed.values():
        raise problem


def _repair(state: RunState, part: Part) -> None:
    match part:
        case NodeInDoubt(node=node):
            state.ledger.catch_up()
            _restore_nodes(state, [node] if node in state.view.joined or node in state.view.evicted else [])
            if node in state.view.evicted:
                give_up_leases(state, node)
        case LeasesInDoubt(step=step, node=node):
            _restore_leases_of(state, step, node)
        case FileInDoubt(step=step, node=node, sha256=sha256):
            state.ledger.catch_up()  # another orchestrator may have concluded the verdict: it counts once
            _restore_leases_of(state, step, node)  # the one for the rest that the file left is among them
            file = WaitingFile(keys.waiting(step, node, sha256), (node, sha256), state.clock())
            with state.settle_lock:  # no verdict comes between the queue and the lease
                if not _conclude_verdicts(state, [file]):
                    _restore_queue(state, [file], serving=True)
                record = find_record(state, node, sha256)
                lease = state.leases.get(record.lease) if record is not None else None
                if record is not None and lease is not None:
                    receipt = finish(state, record, lease)
                    if receipt.status in ("rejected", "expired"):  # the verdict came before the lease was closed
                        parts.free_again(state, record.lease)


def _restore_leases_of(state: RunState, step: int, node: str) -> None:
    """The leases of one node for one step that Redis lacks; of closed work it may have forgotten them."""
    if closed(state, known(state, step)):
        return
    held = {each.lease.submission for each in state.leases.all() if (each.lease.step, each.lease.node) == (step, node)}
    found = {keys.lease(step, node, number) for number in held}
    listed = [info.key for info in state.store.list(f"{keys.LEASES}{step:06d}/{node}/")]
    _restore_leases(state, [key for key in listed if key not in found])


def rebuild(state: RunState) -> None:
    """Bring Redis and the ledger in line with the store. What is in doubt stays so: a Redis that kept its memory may have it half done."""
    redis_process, serving = _redis_process(state), is_built(state)
    process_before = state.redis.get(f"{state.prefix}:{BUILT}")
    state.ledger.catch_up()
    state.terms.open()
    _publish_settings(state)
    evaluations.load(state)
    if not state.store.exists(keys.INDEXED):
        _index(state)
    waiting = _waiting(state)
    judged = _conclude_verdicts(state, waiting)
    state.files_expired = max(state.files_expired, len(state.store.list(keys.EXPIRED)))
    state.terms.keep()  # after what the orchestrator before us decided, which was by the terms of its time
    if state.config.validation.slashing == "Evict":
        for node in state.view.to_evict - state.view.evicted:  # what was rejected under Discard cost that file
            evict(state, node, "a file was rejected")
    _restore_nodes(state, [*state.view.joined])
    _restore_queue(state, [file for file in waiting if file.name not in judged], serving=serving)
    _restore_leases(state, _lease_keys(state))
    for step in openable_steps(state):
        seal_if_full(state, step)
        pools_digest(state.codec.step(step))  # read from the batches before anybody waits for a lease
    beacons.commit_steps(state, state.schedule.beacons_ahead)
    latest = state.view.latest_version
    beacons.commit_evaluation(state, 0 if latest is None else state.plan.next_due(latest))
    evaluations.fold(state)
    evaluations.write_best(state)
    _restore_last_step(state)
    _restore_version_bytes(state)
    _restore_answers(state)
    state.redis.set(f"{state.prefix}:{BUILT}", redis_process)
    if state.is_read and process_before not in (None, redis_process):
        state.process_changed_unix = state.clock()
    state.is_read = True
    get_logger().info(
        "rebuilt the state from the store",
        ledger_entries=state.view.next_number,
        files_waiting=state.queue.size(),
        nodes=len(state.view.joined),
    )


def _publish_settings(state: RunState) -> None:
    """The configuration beside the ledger, signed, so that whoever reads the store can recompute the run (`shoal ledger audit`)."""
    data = sign(state.config, state.key).to_json()
    if find(state.store, keys.SETTINGS, bytes) != data:
        state.store.put(keys.SETTINGS, data)


def _restore_version_bytes(state: RunState) -> None:
    """The size of the newest version, by its opening record; one that cannot be read leaves it to the next announcement."""
    latest = state.view.latest_version
    if latest is None:
        return
    try:
        signed = Signed[VersionOpen].from_json(state.store.get(keys.version_open(latest)))
        state.version_bytes = signed.verified(state.keys.of("trainer")).total_size
    except (NotFound, BadSignature, ValidationError) as error:
        get_logger().warning("the size of the newest version is not known", version=latest, reason=str(error)[:500])


def _names(state: RunState, folder: str) -> set[tuple[str, str]]:
    """(node, file digest) of every object `<folder>/<node>/<sha256>.json`."""
    found = set()
    for info in state.store.list(folder):
        _, node, file = info.key.split("/")
        found.add((node, file.removesuffix(".json")))
    return found


def _index(state: RunState) -> None:
    """Note what is open in a store of a release that did not: one listing of all verdicts and submissions, and a read of each that is not settled."""
    verdicts, submissions = _names(state, keys.VERDICTS), _names(state, keys.SUBMISSIONS)
    unknown = sorted((submissions | verdicts) - set(state.view.settled))

    def note(name: tuple[str, str]) -> None:
        verdict, record = find_verdict(state, *name), find_record(state, *name)
        if verdict is not None and verdict.document.outcome == "expired":
            state.store.create(keys.expired(*name), b"{}")
        elif verdict is not None:
            state.store.create(
                keys.waiting(verdict.document.step, *name), b"{}" if record is None else record.to_json()
            )
        elif record is not None:
            state.store.create(keys.waiting(record.step, *name), record.to_json())
            state.store.create(keys.lease_file(record.lease), record.to_json())

    in_parallel(note, unknown)
    state.store.put(keys.INDEXED, b"{}")


@dataclass(frozen=True)
class WaitingFile:
    """A file whose verdict is not concluded, and when it was noted, in seconds since 1970."""

    key: str
    name: tuple[str, str]
    """Node and file digest."""
    noted_unix: float


def sweep_waiting(state: RunState) -> None:
    """Look at notes that are an hour old: what a crash left half done is finished, or goes with its bytes.

    Cost: a listing, and five reads for each of `OLD_NOTES` at most."""
    old = [file for file in _noted(state) if _is_old(state, file.noted_unix)]
    some = random.sample(old, min(OLD_NOTES, len(old)))  # those that only wait for a verdict must not hide the others
    judged = _conclude_verdicts(state, some)
    _restore_queue(state, [file for file in some if file.name not in judged], serving=True)


def _noted(state: RunState) -> list[WaitingFile]:
    found = []
    for info in state.store.list(keys.WAITING):
        _, _, node, file = info.key.split("/")
        found.append(WaitingFile(info.key, (node, file.removesuffix(".json")), info.modified_unix))
    return found


def _waiting(state: RunState) -> list[WaitingFile]:
    """What is under `waiting/`. A file that only Redis knows, as of an orchestrator of an earlier release beside this one, is noted there."""
    found = {file.name: file for file in _noted(state)}
    for job in state.queue.all():
        name, key = (
            (job.record.node, job.record.sha256),
            keys.waiting(job.record.step, job.record.node, job.record.sha256),
        )
        if name not in found:
            state.store.create(key, job.record.to_json())
            found[name] = WaitingFile(key, name, state.clock())
    return list(found.values())


def _conclude_verdicts(state: RunState, waiting: Sequence[WaitingFile]) -> set[tuple[str, str]]:
    """Finish verdicts that were made, and whose consequences their writer did not finish; the names of their files."""
    found = set()
    for file, signed in zip(waiting, in_parallel(lambda file: find_verdict(state, *file.name), waiting), strict=True):
        if signed is not None:
            record_verdict(state, signed)
            state.store.delete(file.key)  # which may be under another step, of a lease that brought the same bytes
            found.add(file.name)
    return found


def _restore_nodes(state: RunState, nodes: Sequence[str]) -> None:
    """Admitted nodes get the benefit of the doubt: Healthy as of now, so that a node that is gone is found silent again in due time."""
    now = state.clock()
    for node in nodes:
        if node in state.view.evicted:
            state.nodes.put(NodeRecord(node=node, state="Banned" if node in state.view.banned else "Evicted"))
        elif node in state.view.dead:
            state.nodes.put_if_absent(NodeRecord(node=node, state="Dead"))
        else:
            state.nodes.put_if_absent(NodeRecord(node=node, state="Healthy", last_heartbeat_unix=now))


def _restore_queue(state: RunState, waiting: Sequence[WaitingFile], *, serving: bool = False) -> None:
    """Queue every file without a verdict, in the order received, with the opinions already given on it.

    `serving`: verdicts come in meanwhile, so that one may have come since these files were looked at."""
    records = [record for record in in_parallel(lambda file: _submitted(state, file), waiting) if record is not None]
    for record in sorted(records, key=lambda record: record.received_unix):
        with state.settle_lock:
            judged = serving and find_verdict(state, record.node, record.sha256) is not None
            if not judged and state.queue.get(record.node, record.sha256) is None:
                state.queue.add(Job(record=record, opinions=_opinions(state, record)), state.clock())


def _submitted(state: RunState, file: WaitingFile) -> SubmissionRecord | None:
    """The submission of a waiting file. One whose lease was bound to it, and no more, is finished; a note that led to nothing goes after a while, and
    with it bytes that a crash left without a submission."""
    record = find_record(state, *file.name)
    if record is not None:
        return record
    try:
        noted = SubmissionRecord.from_json(state.store.get(file.key))
        bound = SubmissionRecord.from_json(state.store.get(keys.lease_file(noted.lease)))
        if (bound.node, bound.sha256) == file.name:
            state.store.create(keys.submission(*file.name), bound.to_json())
            return bound
    except NotFound:
        pass
    if _is_old(state, file.noted_unix):
        folder = file.key.rpartition("/")[0]
        now = [info.modified_unix for info in state.store.list(f"{folder}/") if info.key == file.key]
        if all(_is_old(state, noted) for noted in now):  # else its notice was repeated meanwhile
            let_go(state, *file.name, file.key)
    return None


def _is_old(state: RunState, noted_unix: float) -> bool:
    return noted_unix < state.clock() - FORGOTTEN_SECONDS


def _opinions(state: RunState, record: SubmissionRecord) -> list[OpinionNote]:
    notes = []
    for info in state.store.list(keys.opinions(record.node, record.sha256)):
        opinion = Opinion.from_json(state.store.get(info.key))
        verdict = opinion.verdict.document
        if verdict.reason is not None:
            notes.append(
                OpinionNote(
                    validator=opinion.validator,
                    reason=verdict.reason,
                    digest=document_digest(verdict),
                    key=key_of(verdict),
                )
            )
    return notes


def _restore_leases(state: RunState, lease_keys: Sequence[str]) -> None:
    """Leases of open work, by their keys; those that have their file are closed. Submission numbers go on after the highest."""

    accepted = {
        (step, file.node, file.submission): file
        for step in openable_steps(state)
        for file in list(state.view.accepted.get(step, ()))
    }

    def read(key: str) -> LeaseRecord:
        lease = LeaseRecord.from_json(state.store.get(key))
        known = accepted.get((lease.lease.step, lease.lease.node, lease.lease.submission))
        if known is not None and known.part is None:
            return lease.model_copy(update={"status": "submitted", "sha256": known.file})
        file = find(state.store, keys.lease_file(lease.lease.lease), SubmissionRecord.from_json)
        if file is None:
            return lease
        with_file = {"sha256": file.sha256, "size": file.size, "part": file.part, "groups": file.groups}
        lease = lease.model_copy(update={"status": "submitted", **with_file})
        if file.rest is not None:
            unfinished.append((file, lease))
        if known is None and file.part is not None and find_verdict(state, file.node, file.sha256) is not None:
            return parts.without_file(lease)
        return lease

    unfinished: list[tuple[SubmissionRecord, LeaseRecord]] = []
    found = in_parallel(read, lease_keys)
    followed = {lease.follows for lease in found}
    for lease in found:
        state.leases.put_if_absent(lease)
        state.leases.number_is_taken(lease.lease)
    with state.lease_lock:
        for lease in found:
            if lease.lease.lease in followed and lease.status != "submitted":
                _pass_on(state, lease)
        for file, lease in unfinished:
            parts.open_rest(state, file, lease)


def _pass_on(state: RunState, lease: LeaseRecord) -> None:
    """A lease whose part another one is for is over, whatever Redis says of it: whoever gave the other one may have stopped behind that."""
    known = state.leases.get(lease.lease.lease) or lease
    if known.status not in ("submitted", "passed"):
        state.leases.put(known.model_copy(update={"status": "passed"}))


def _lease_keys(state: RunState) -> list[str]:
    steps = [*openable_steps(state), *(work.number for work in evaluations.open_slices(state))]
    if len(steps) <= MOST_LISTINGS:
        return [info.key for step in steps for info in state.store.list(f"{keys.LEASES}{step:06d}/")]
    # Many slices are open at once: one listing of all leases is quicker than one for each of them.
    folders = {f"{step:06d}" for step in steps}
    return [info.key for info in state.store.list(keys.LEASES) if info.key.split("/")[1] in folders]


def _restore_answers(state: RunState) -> None:
    """What became of the newest answers, from the verdicts of the newest accepted files: as many as the window has groups at most."""
    if state.config.mode != "Train" or state.answers.groups >= WINDOW_GROUPS:
        return
    wanted, groups = [], 0
    for step in sorted(state.view.accepted, reverse=True):
        for file in reversed(list(state.view.accepted.get(step, ()))):
            if groups < WINDOW_GROUPS:
                wanted.append(file)
                groups += file.groups
    wanted.reverse()
    found = in_parallel(lambda file: state.store.get(keys.verdict(file.node, file.file)), wanted)
    with state.settle_lock:  # verdicts are served meanwhile
        for file, data in zip(wanted, found, strict=True):
            state.answers.add(Signed[Verdict].from_json(data).document, file.counted_groups)


def _restore_last_step(state: RunState) -> None:
    """The metrics of the newest trained step, for those who ask before the trainer speaks again."""
    if state.last_step is not None:
        return
    written = [info.key for info in state.store.list(keys.STEPS) if info.key.endswith("/metrics.json")]
    if written:
        try:
            state.last_step = StepMetrics.from_json(state.store.get(written[-1]))
        except ValidationError as error:
            get_logger().warning("cannot read step metrics", key=written[-1], problem=str(error)[:300])
