"""CPU time that programs and judges of one node's files take validators: what a node may use, and what is left of it.

"Programs" are below all processes that score a file: programs of the model, judges, others' environments.

Comes in: CPU seconds of claims under way and of verdicts. Goes out: whether a node gets a lease, and how long programs of its next file may run.
A node may use what eight files may use at most (`validation.programSeconds` each, four hours of CPU time by default). What it used fades: of an
hour ago 37 % count. An accepted file gives back three quarters of what its programs took, a sixteenth of `programSeconds` at most. While less than a
file's time is left, the node gets no lease. The owner's own pods are exempt.

So a node has four hours at once, and for long four cores and 112 s for each accepted file; with a file every ten seconds or oftener, 16 cores.

Honest nodes do not come near, whatever the policy writes. A lease of the paper's run lasts 27 minutes and a node holds two, so five files an hour
come. If each used all of its time, 9,000 seconds would count of the 12,600 that stop leases. Ordinary programs take far less: 48 rows of 20 tests
take 50 to 100 s. With such a file every 15 s about 4,500 seconds count. Files of seconds end at their quota of 1,200 an hour.

Each claim tells its own time so far, in renewals and in the verdict, so what was lost or repeated is counted once. A check that is given up loses at
most the answer under way. Several validators that judge files of one node at a time may each spend what was left. The sum is in the node's record in
Redis: it outlives a restart, and is forgiven when Redis is lost. Cost: two small requests to Redis a claim, none a row. Called by `handout`,
`verdicts`, `metrics` and `nodes.admin`.
"""

import math

from shoal.contracts.node_states import EXCLUDED
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState

FILES = 8
"""Files whose programs may use all their time, one after the other, before a node waits."""
FADES_SECONDS = 3600.0
"""What was used counts 1 / e after this time."""
GIVEN_BACK, MOST_GIVEN_BACK = 3 / 4, 1 / 16
"""Of what programs of an accepted file took, and of what those of one file may take."""
CLAIM_KEPT_SECONDS = 24 * 3600
"""How long the time of a claim is remembered: longer than any check."""


def used(record: NodeRecord, now_unix: float) -> float:
    """CPU seconds of a node's programs that count now."""
    age = max(0.0, now_unix - record.program_seconds_unix)
    return record.program_seconds * math.exp(-age / FADES_SECONDS)


def left(record: NodeRecord, file_seconds: float, now_unix: float) -> float:
    """CPU seconds that are left to a node, where a file may use `file_seconds`."""
    return max(0.0, FILES * file_seconds - used(record, now_unix))


def require_left(record: NodeRecord, file_seconds: float, now_unix: float) -> None:
    """Raises `Refusal` for a node, not the owner's, to which less than a file's time is left."""
    count, most = used(record, now_unix), (FILES - 1) * file_seconds
    if count > most and record.outside is not False:
        wait = math.ceil(FADES_SECONDS * math.log(count / most))
        raise Refusal(
            ProblemCode.PROGRAM_TIME_USED,
            f"scoring this node's files took {count:.0f} s of CPU time of late; above {most:.0f} s a node gets no lease. Ask again in {wait} s",
            retry_after_seconds=wait,
        )


def given_back(seconds: float, file_seconds: float) -> float:
    """CPU seconds that do not count once a file is accepted whose programs took `seconds`."""
    return min(GIVEN_BACK * seconds, MOST_GIVEN_BACK * file_seconds)


def left_of_node(state: RunState, node: str) -> float | None:
    """CPU seconds that are left to a node's programs where they are fewer than a file may use; None otherwise."""
    record, file_seconds = state.nodes.get(node), state.config.validation.program_seconds
    if record is None or record.outside is False:
        return None
    seconds = left(record, file_seconds, state.clock())
    return seconds if seconds < file_seconds else None


def begin(state: RunState, validator: str, node: str, sha256: str) -> None:
    """A validator begins with a file: it counts from 0, whatever it told of an earlier check."""
    state.redis.delete(_of_claim(state, validator, node, sha256))


def charge(state: RunState, validator: str, node: str, sha256: str, seconds: float) -> None:
    """Count the programs of a file to its node's account. `seconds`: since the claim, so what it told before is counted already."""
    if seconds <= 0:
        return
    key, now = _of_claim(state, validator, node, sha256), state.clock()
    with state.standing_lock:
        more = seconds - float(state.redis.get(key) or 0.0)
        record = state.nodes.get(node)
        if more <= 0 or record is None or record.state in EXCLUDED:
            return
        # The record first: it may be busy, and what is told again is counted then.
        state.nodes.change(record, program_seconds=used(record, now) + more, program_seconds_unix=now)
        state.redis.set(key, repr(seconds), ex=CLAIM_KEPT_SECONDS)


def note_accepted(state: RunState, node: str, seconds: float) -> None:
    """Give a node back most of the `seconds` that programs of its accepted file took."""
    back, now = given_back(seconds, state.config.validation.program_seconds), state.clock()
    with state.standing_lock:
        record = state.nodes.get(node)
        if back > 0 and record is not None:
            count = max(0.0, used(record, now) - back)
            state.nodes.change(record, program_seconds=count, program_seconds_unix=now)


def _of_claim(state: RunState, validator: str, node: str, sha256: str) -> str:
    return f"{state.prefix}:program-seconds:{node}:{sha256}:{validator}"
