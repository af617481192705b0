"""How many groups a node's next lease has: about as many as it makes between two files, by what it handed in before.

Comes in: accepted files, with when their leases were given and when the files came. Goes out: how many of the groups of a draw a lease is for; the
others are for whoever asks next (`parts`). All numbers are the orchestrator's own; what a node says of itself does not count. Only runs with
`rollouts.handInEverySeconds` have such leases, and only nodes in good standing that are past their probation: all others get all groups.

Speed: completion tokens of a node's accepted files over the time that it had for them. That time begins when the file before it came, or when the
lease was given if that was later. So leases that a node works on together count their time once.

Lengths: tokens of a group by its kind, which is its source and the length that it asks for. A file tells the sum of its groups only. So each kind of
a file is moved towards what the file had, by its share of what was expected.

A node chooses nothing by its speed: which groups a number draws does not depend on the size of its leases, and groups of a number count only
together. Cost: a draw for each new lease, milliseconds at 64 groups of 16, and two small writes to Redis for each accepted file. Redis holds
50 bytes for each node with an accepted file, in hashes that an earlier release does not read. What is lost with it is learnt again. Called by
`handout` and `verdicts`.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import TOGETHER, Work, draw, may_be_parted
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.beacons import beacon_of
from shoal.orchestrator.work.standing import on_probation
from shoal.sampling.draw import DrawnGroup

KEPT = 0.75
"""Of what a node did before, with each further file: the last four files are two thirds of its speed."""
LEARNT = 0.25
"""Of the difference between a file's tokens and what was expected. Files of 64 rows vary by about 10 % at the paper's lengths."""


class Speed(NamedTuple):
    """Completion `tokens` of a node's accepted files and the `seconds` that it had for them, older ones counting less; when the last file came."""

    tokens: float = 0.0
    seconds: float = 0.0
    came_unix: float = 0.0


def speed_after(before: Speed, given_unix: float, received_unix: float, tokens: int, *, learns: bool = True) -> Speed:
    """The speed behind one more accepted file. Of a file that it does not learn from only the time counts: it was none of the next file's."""
    came = max(before.came_unix, received_unix)
    if not learns:
        return before._replace(came_unix=came)
    seconds = max(0.0, received_unix - max(given_unix, before.came_unix))
    return Speed(KEPT * before.tokens + tokens, KEPT * before.seconds + seconds, came)


def seconds_between_files(wished: float, lease_seconds: float, leases: int) -> float:
    """The time that a node with `leases` at once should take for one of them: the manifest's, within bounds.

    All its leases together take the life of one at most, else the last ones run out; and half of it at least. A shorter time would leave slots empty
    while long rows end: the node would look slow, and get still less.
    """
    most = lease_seconds / leases
    return min(max(wished, most / 2), most)


def least_groups(group_size: int, leases: int) -> int:
    """Groups of a lease with which all leases of a node fill the smallest engines."""
    return max(1, -(-TOGETHER // (group_size * leases)))


def fitting(group_tokens: Sequence[float], tokens: float, least: int) -> int:
    """How many of the groups with these expected tokens a lease has, from the first on: all where a small rest would be left."""
    found = min(len(group_tokens), max(least, sum(end <= tokens for end in accumulate(group_tokens))))
    return found if len(group_tokens) - found >= found / 2 else len(group_tokens)


def is_sized(state: RunState, node: str, work: Work) -> bool:
    """Whether leases of this node, which takes parts and is in good standing, are as large as it is fast."""
    return (
        state.config.part_seconds is not None
        and may_be_parted(work)
        and speed_of(state, node).seconds > 0
        and not on_probation(state, node)
    )


def groups_of_lease(
    state: RunState, node: str, work: Work, of: tuple[str, int], places: Sequence[int], leases: int
) -> int:
    """How many of these places in the draw `of` a node and its number the lease has that this node, which `is_sized`, gets now."""
    known = _known(state)
    drawn = draw(work, beacon=beacon_of(state, work), run=state.config.run, node=of[0], submission=of[1])
    size, wished = work.shape.group_size, state.config.part_seconds or 0
    tokens = [_expected(known, _kind(work, drawn[place]), size) for place in places]
    seconds, speed = seconds_between_files(wished, work.shape.lease_seconds, leases), speed_of(state, node)
    return fitting(tokens, seconds * speed.tokens / speed.seconds, least_groups(size, leases))


def speed_of(state: RunState, node: str) -> Speed:
    """What a node made so far; of one that nothing was accepted of, 0 in 0 seconds."""
    found = state.redis.hget(_speeds(state), node)
    return Speed(*json.loads(found)) if found is not None else Speed()


def note_accepted(state: RunState, verdict: Verdict, work: Work | None, received_unix: float | None) -> None:
    """Take an accepted file into the speed of its node and the lengths of its groups."""
    lease = state.leases.get(verdict.lease)
    if state.config.part_seconds is None or received_unix is None or lease is None or lease.given_unix is None:
        return
    learns = work is not None and may_be_parted(work)
    with state.standing_lock:
        before = speed_of(state, verdict.node)
        speed = speed_after(before, lease.given_unix, received_unix, verdict.completion_tokens, learns=learns)
        state.redis.hset(_speeds(state), verdict.node, json.dumps(speed))
    if learns and work is not None and verdict.completion_tokens:
        _learn_lengths(state, verdict, work)


def _learn_lengths(state: RunState, verdict: Verdict, work: Work) -> None:
    known, size = _known(state), work.shape.group_size
    groups = draw(
        work,
        beacon=beacon_of(state, work),
        run=state.config.run,
        node=verdict.node,
        submission=verdict.submission,
        part=verdict.part,
    )
    kinds = Counter(_kind(work, group) for group in groups)
    expected = {kind: _expected(known, kind, size) for kind in kinds}
    total = sum(count * expected[kind] for kind, count in kinds.items())
    off = verdict.completion_tokens / total - 1
    for kind, count in kinds.items():
        step = LEARNT * count * expected[kind] / total if kind in known else 1.0
        state.redis.hset(_hash(state), kind, repr(expected[kind] * (1 + step * off)))


def _kind(work: Work, group: DrawnGroup) -> str:
    """A group's source and target length, as a field of the hash."""
    source = next((each.name for each in work.sources if group.prompt_index in each.rows), "")
    return f"{source}/{group.target_length or ''}"


def _expected(known: dict[str, float], kind: str, group_size: int) -> float:
    """Tokens of a group of this kind; of one that no file had yet those that it asks for, or the mean of all kinds."""
    if kind in known:
        return known[kind]
    target = kind.rpartition("/")[2]
    if target:
        return float(int(target) * group_size)
    return sum(known.values()) / len(known) if known else float(group_size)


def _known(state: RunState) -> dict[str, float]:
    """Tokens of a group of each kind that a file had."""
    return {str(kind): float(tokens) for kind, tokens in state.redis.hgetall(_hash(state)).items()}


def _speeds(state: RunState) -> str:
    return f"{state.prefix}:speeds"


def _hash(state: RunState) -> str:
    return f"{state.prefix}:group-tokens"
