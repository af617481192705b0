"""Fixed data sampling: which prompts, target lengths and sampling seeds a submission must use (paper section 2.3.3).

The generator is SHA-256 in counter mode with rejection sampling. Its key is the SHA-256 of the length-prefixed (beacon, run, step, node,
submission). So anyone who knows these public values draws the same numbers. A node cannot know them before the step opens. Library generators
are not used because their streams change between releases; tests/golden/seeds.json fixes the stream of this one.

Called by workers (to draw), validators (to draw again) and the orchestrator (the beacon).
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.sampling.curriculum import Pools
from shoal.sampling.mixture import SourceRows, turns, turns_of_file

BEACON_BYTES = 32
SEED_BITS = 63  # a vLLM seed is a signed 64-bit integer; 63 bits keep it non-negative


def _length_prefixed(*parts: bytes) -> bytes:
    """Each part after its length as 8 big-endian bytes, so that no two tuples give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def beacon(run_secret: bytes, run: str, step: int) -> bytes:
    """The 32-byte beacon of a step: HMAC-SHA-256(run secret, run || step). Survives any restart, known to nobody before it is revealed."""
    return hmac.new(run_secret, _length_prefixed(run.encode(), step.to_bytes(8, "big")), hashlib.sha256).digest()


def beacon_commitment(value: bytes) -> str:
    """The commitment in the ledger before the reveal: SHA-256 of the beacon, in hex."""
    return hashlib.sha256(b"shoal/beacon/v1\0" + value).hexdigest()


class CounterGenerator:
    """A stream of uniform integers: blocks SHA-256(key || counter), cut into 8-byte big-endian words."""

    def __init__(self, key: bytes) -> None:
        self._words = self._stream(key)

    @staticmethod
    def _stream(key: bytes) -> Iterator[int]:
        counter = 0
        while True:
            block = hashlib.sha256(key + counter.to_bytes(8, "big")).digest()
            for start in range(0, 32, 8):
                yield int.from_bytes(block[start : start + 8], "big")
            counter += 1

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), without modulo bias: words past the last whole multiple of `bound` are dropped."""
        if not 1 <= bound <= 1 << 64:
            raise ValueError(f"bound must be 1 to 2**64, got {bound}")
        limit = (1 << 64) - (1 << 64) % bound
        while True:
            word = next(self._words)
            if word < limit:
                return word % bound

    def distinct(self, count: int, bound: int) -> list[int]:
        """`count` different integers in [0, bound), in the order drawn (a partial Fisher-Yates shuffle over a sparse array)."""
        if not 0 <= count <= bound:
            raise ValueError(f"cannot draw {count} different numbers below {bound}")
        moved: dict[int, int] = {}
        drawn = []
        for position in range(count):
            other = position + self.below(bound - position)
            drawn.append(moved.get(other, other))
            moved[other] = moved.get(position, position)
        return drawn


def continuation_seed(parent_seed: int, boundary: int, number: int) -> int:
    """The seed of continuation `number` (from 0) at inner boundary `boundary` (from 1) of a completion with this seed (`contracts.vine`), 63 bits.

    The first 63 bits of SHA-256("shoal/continuation/v1" 0 parent seed, boundary, number), each as 8 big-endian bytes. ValueError for values that do
    not fit.
    """
    if not 0 <= parent_seed < 1 << SEED_BITS or boundary < 1 or number < 0:
        raise ValueError(
            f"seed {parent_seed}, boundary {boundary}, number {number}: a seed has {SEED_BITS} bits, boundaries count from 1, numbers from 0"
        )
    place = b"".join(value.to_bytes(8, "big") for value in (parent_seed, boundary, number))
    return int.from_bytes(hashlib.sha256(b"shoal/continuation/v1\0" + place).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class DrawnGroup:
    """One group of a submission: the same prompt and target length, one sampling seed a completion."""

    prompt_index: int
    target_length: int | None
    seeds: tuple[int, ...]


def slice_tasks(place: int, task_count: int, groups: int) -> range:
    """Rows of a task table that slice number `place` of it holds, `groups` of them.

    The last slice is as long as the others and so begins inside of the one before it (`slice_count`, `own_tasks`). ValueError when the table is
    shorter than a slice.
    """
    if task_count < groups:
        raise ValueError(f"the task table has {task_count} rows; allowed: at least groupsPerSubmission, {groups}")
    first = min(place * groups, task_count - groups)
    return range(first, first + groups)


def slice_count(task_count: int, groups: int) -> int:
    """Slices of `groups` rows that cover the task table; at least one."""
    return -(-task_count // groups)


def own_tasks(place: int, task_count: int, groups: int) -> range:
    """Rows of a task table that slice number `place` alone answers for: what the last slice shares with the one before belongs to that."""
    return range(place * groups, min((place + 1) * groups, task_count))


def draw_submission(
    *,
    beacon: bytes,
    run: str,
    step: int,
    node: str,
    submission: int,
    task_count: int,
    groups: int,
    group_size: int,
    targets: Sequence[int] | None,
    first_task: int = 0,
    sources: Sequence[SourceRows] = (),
) -> list[DrawnGroup]:
    """The groups that submission number `submission` of `node` must hold for `step`.

    Prompts are drawn first (different ones of the `task_count` rows from `first_task` on); then for each group its target
    length (when the run has `targets`; with `sources` those of the row's own source) and its seeds. Raises ValueError when
    `groups` is larger than `task_count` or the beacon is not 32 bytes.
    """
    generator = _generator(b"shoal/draw/v1\0", beacon, run, step, node, submission)
    prompts = [first_task + place for place in generator.distinct(groups, task_count)]
    own = {prompt: source.targets for source in sources for prompt in prompts if prompt in source.rows}
    return _drawn_groups(generator, [(prompt, own.get(prompt, targets)) for prompt in prompts], group_size)


def draw_mixture(
    *,
    beacon: bytes,
    run: str,
    step: int,
    node: str,
    submission: int,
    groups: int,
    group_size: int,
    sources: Sequence[SourceRows],
) -> list[DrawnGroup]:
    """The same of a mixture: as many prompts of each source as it has turns (`mixture.turns_of_file`), different ones of its rows, in the order of
    the turns. Raises ValueError when a source has fewer rows than turns or the beacon is not 32 bytes.
    """
    weights = tuple(source.weight for source in sources)
    start = _generator(b"shoal/mixture/v1\0", beacon, run, step, node).below(len(turns(weights)))
    order = turns_of_file(weights, start, submission, groups)
    generator = _generator(b"shoal/draw/v1\0", beacon, run, step, node, submission)
    rows = [
        iter([source.rows[place] for place in generator.distinct(order.count(number), len(source.rows))])
        for number, source in enumerate(sources)
    ]
    asked = [(next(rows[number]), sources[number].targets) for number in order]
    return _drawn_groups(generator, asked, group_size)


def draw_from_pools(
    *, beacon: bytes, run: str, step: int, node: str, submission: int, groups: int, pools: Pools
) -> list[int]:
    """The rows of the task table that a file of a run with a curriculum is on: of each pool as many different ones as it has turns.

    Raises ValueError for more groups than rows, or a beacon that is not 32 bytes.
    """
    start = _generator(b"shoal/curriculum-turn/v1\0", beacon, run, step, node).below(len(turns(pools.cycle)))
    order = pools.order(start, submission, groups)
    generator = _generator(b"shoal/curriculum/v1\0", beacon, run, step, node, submission)
    rows = [
        iter([rows[place] for place in generator.distinct(order.count(number), len(rows))])
        for number, rows in enumerate(pools.rows)
    ]
    return [next(rows[number]) for number in order]


def draw_for_prompts(
    *,
    beacon: bytes,
    run: str,
    step: int,
    node: str,
    submission: int,
    prompts: Sequence[int],
    group_size: int,
    targets: Sequence[int] | None,
) -> list[DrawnGroup]:
    """Target lengths and seeds of a file whose prompts are known (`draw_from_pools`). Raises ValueError when the beacon is not 32 bytes."""
    generator = _generator(b"shoal/draw/v1\0", beacon, run, step, node, submission)
    return _drawn_groups(generator, [(prompt, targets) for prompt in prompts], group_size)


def _generator(
    tag: bytes, beacon: bytes, run: str, step: int, node: str, submission: int | None = None
) -> CounterGenerator:
    """The stream of a file, or without `submission` of all files that a node makes for a step."""
    if len(beacon) != BEACON_BYTES:
        raise ValueError(f"a beacon has {BEACON_BYTES} bytes, got {len(beacon)}")
    parts = [beacon, run.encode(), step.to_bytes(8, "big"), bytes.fromhex(node)]
    if submission is not None:
        parts.append(submission.to_bytes(8, "big"))
    return CounterGenerator(hashlib.sha256(tag + _length_prefixed(*parts)).digest())


def _drawn_groups(
    generator: CounterGenerator, asked: Sequence[tuple[int, Sequence[int] | None]], group_size: int
) -> list[DrawnGroup]:
    """For each prompt its target length, where there are any to draw from, and its seeds."""
    return [
        DrawnGroup(
            prompt_index=prompt,
            target_length=targets[generator.below(len(targets))] if targets else None,
            seeds=tuple(generator.below(1 << SEED_BITS) for _ in range(group_size)),
        )
        for prompt, targets in asked
    ]
