"""Standing of nodes: what a lease without a file costs its node, and whose leases a step relies on.

Comes in: ends of leases, verdicts. Goes out: how many leases a node may hold and from when on, which nodes are in good standing, and how long a lease
is relied on. A key is free, so a lease that ends without a file must cost one something that a new key does not have:

- A dropped lease halves its node's room, and the node waits before the next one; each accepted file returns an eighth of the full room.
  Who drops a lease by asking for more, by handing it back, or by letting it run out pays the same.
- A node in good standing has an accepted file of the last hours and room for a lease. Others are newcomers. A step relies on leases of the first
  only, so that newcomers never take a place from them; and newcomers together hold a quarter of a step, or what is left over by the others.
- A lease is relied on for as long as files take, not until it runs out: that allows for the longest completion on the slowest machine.

Costs: a request reads the records of all nodes and of the leases of open steps, as it did before: with 500 nodes and 600 leases 2 ms, whatever was
leased before; of a million ended leases two numbers a node are left. The room is in the node's record in Redis and outlives a restart; accepted files
are in the ledger. Called by `handout`, `lease_returns` and `verdicts`.
"""

import statistics
from typing import Any

from shoal.contracts.node_states import EXCLUDED, MEMBERS
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.work import EvaluationSlice, Work
from shoal.orchestrator.nodes.registry import FULL_ROOM, NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.leases import (
    FILES_A_LEASE,
    FIRST_OPEN_LEASES,
    MAX_OPEN_LEASES,
    PROBATION_LEASES,
)
from shoal.orchestrator.work.open_work import closed, known
from shoal.orchestrator.work.records import LeaseRecord

ROOM_A_FILE = FULL_ROOM / 8
"""Four accepted files make good for one dropped lease of a node that had its full room."""
LEAST_ROOM = FULL_ROOM / 512
OVERTAKEN_ROOM = 0.5
"""What late leases of steps that others filled leave at least: below 1, so that no step relies on the node, and with no wait of minutes after its
first drop."""
FIRST_WAIT_SECONDS = 10.0
"""After a first dropped lease: what a worker that crashed needs to start again anyway. It doubles with each further one, up to 43 minutes."""
RECENT_SECONDS = 6 * 3600.0
"""Age of an accepted file that still speaks for its node: the paper's batches take half an hour, and one of ten nodes serves each."""
RELIED_ON = 2.0
"""A lease is relied on for this many times the median time of a file: 95 of 100 files come by then if times are lognormal with a spread of 1.5. A
later one counts as well; a step has then given out one lease more."""
KNOWN_FILES, MOST_KNOWN_FILES = 8, 64
"""Newest accepted files that tell how long one takes; with fewer than the first number `UNKNOWN_SHARE` of a lease is assumed."""
UNKNOWN_SHARE = 0.25
LEAST_RELIED_SECONDS = 30.0
FIRST_RELIED_SECONDS = 60.0
"""Bounds below: files of a second, as of tiny models, say little about the next."""


# Room, pure


def room_after_drop(room: float, most: int) -> float:
    """Half of what a node could hold that may hold `most` leases at most."""
    return max(LEAST_ROOM, min(room, most) / 2)


def room_when_overtaken(room: float, most: int) -> float:
    """The same for a late lease whose step others filled, which costs standing and no more."""
    return max(min(room, OVERTAKEN_ROOM), room_after_drop(room, most))


def room_after_file(room: float) -> float:
    return min(FULL_ROOM, room + ROOM_A_FILE)


def wait_seconds(room: float) -> float:
    """How long a node waits for its next lease after a dropped one left it this room."""
    return FIRST_WAIT_SECONDS / min(1.0, room)


def leases_allowed(room: float, most: int) -> int:
    """How many leases a node may hold of the `most` that its files permit: all with its full room, half with half of it, one at least."""
    return max(1, min(most, int(room * most / FULL_ROOM)))


def relied_on_seconds(file_seconds: list[float], whole_seconds: float) -> float:
    """How long after it was given a lease of `whole_seconds` is expected to bring its file."""
    if len(file_seconds) < KNOWN_FILES:
        return min(whole_seconds, max(FIRST_RELIED_SECONDS, UNKNOWN_SHARE * whole_seconds))
    return min(whole_seconds, max(LEAST_RELIED_SECONDS, RELIED_ON * statistics.median(file_seconds)))


# The run's


def on_probation(state: RunState, node: str) -> bool:
    """Whether a key has yet to show that its files are good: fewer than `probationFiles` were accepted since its last rejected one."""
    return state.view.accepted_in_a_row[node] < state.config.validation.probation_files


def most_leases(state: RunState, node: str) -> int:
    """How many leases a node may hold that dropped none."""
    if on_probation(state, node):
        return PROBATION_LEASES
    shown = state.view.accepted_in_a_row[node] - state.config.validation.probation_files
    return min(MAX_OPEN_LEASES, FIRST_OPEN_LEASES + shown // FILES_A_LEASE)


def require_no_wait(record: NodeRecord, now_unix: float) -> None:
    """Raises `Refusal` for a node that dropped a lease and has not waited yet."""
    left = record.waits_until_unix - now_unix
    if left > 0:
        raise Refusal(
            ProblemCode.LEASE_DROPPED,
            f"this node dropped a lease; it gets the next one in {left:.0f} s. Each accepted file shortens the wait after another",
            retry_after_seconds=left,
        )


def good_nodes(state: RunState) -> dict[str, int]:
    """Members in good standing, with the leases that each may hold and would: a worker that does not say has two at most. The run's own pods are
    until they drop one: nobody else can make their keys."""
    since = state.clock() - RECENT_SECONDS
    accepted = state.view.accepted_unix
    return {
        record.node: min(
            leases_allowed(record.room, most_leases(state, record.node)), record.together or FIRST_OPEN_LEASES
        )
        for record in state.nodes.all()
        if record.state in MEMBERS
        and record.room >= 1.0
        and (record.outside is False or accepted.get(record.node, 0.0) > since)
    }


def relied_on(state: RunState) -> float:
    """How long a lease of the run's steps is relied on, in seconds."""
    files = [float(each) for each in state.redis.lrange(_times(state), 0, -1)]
    return relied_on_seconds(files, state.codec.shape.lease_seconds)


def drop(state: RunState, lease: LeaseRecord) -> None:
    """Charge a node for its lease that ended without a file. Those that it held together cost what one does: a process that ends drops them all.

    Where the step was sealed meanwhile by others, a lease that was young costs nothing. Late ones that were held together cost once room,
    but no wait, however often: a slow machine is then relied on no more, and goes on.
    """
    now, overtaken = state.clock(), closed(state, known(state, lease.lease.step))
    held = now - lease.given_unix if lease.given_unix is not None else 0.0
    if not overtaken or held > relied_on(state):
        _charge(state, lease.lease.node, waits_from=None if overtaken else now, given=lease.given_unix)


def note_rejected(state: RunState, node: str) -> None:
    """A file that was no good kept its place like a dropped lease."""
    _charge(state, node, waits_from=state.clock())


def note_accepted(state: RunState, node: str, lease: str, received_unix: float | None, work: Work | None) -> None:
    """Give a node room for an accepted file, and remember how long the file took; `received_unix`: None when nobody knows."""
    with state.standing_lock:
        record = state.nodes.get(node)
        if record is not None and record.room < FULL_ROOM:
            state.nodes.change(record, room=room_after_file(record.room))
    given = state.leases.get(lease)
    if given is None or given.given_unix is None or received_unix is None or isinstance(work, EvaluationSlice):
        return
    with state.redis.pipeline() as pipe:
        pipe.lpush(_times(state), repr(max(0.0, received_unix - given.given_unix)))
        pipe.ltrim(_times(state), 0, MOST_KNOWN_FILES - 1)
        pipe.execute()


def _charge(state: RunState, node: str, waits_from: float | None, given: float | None = None) -> None:
    """`given`: when the lease was given that was dropped; None: nothing was charged with it."""
    with state.standing_lock:
        record = state.nodes.get(node)
        if record is None or record.state in EXCLUDED:
            return
        charged = record.dropped_unix if waits_from is not None else max(record.dropped_unix, record.overtaken_unix)
        if given is not None and given <= charged:
            return
        most = most_leases(state, node)
        changes: dict[str, Any] = {"abandoned_leases": record.abandoned_leases + 1}
        if waits_from is None:
            changes |= {"room": room_when_overtaken(record.room, most), "overtaken_unix": state.clock()}
        else:
            room = room_after_drop(record.room, most)
            changes |= {"room": room, "waits_until_unix": waits_from + wait_seconds(room)}
            changes |= {"dropped_unix": waits_from} if given is not None else {}
        state.nodes.change(record, **changes)


def _times(state: RunState) -> str:
    return f"{state.prefix}:file-seconds"
