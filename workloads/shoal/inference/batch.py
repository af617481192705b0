"""Which rows the engine decodes: those of several leases in one batch, the oldest lease first, and of a lease the longest first. Pure.

In: leases with their planned rows, completions as they end, the time. Out: rows to start, leases that are whole, leases to give up. All rows in the
engine are of one version: whoever feeds this (`generation`) adds no lease of another while any runs. Or it takes the rows out, and has them go on
under the next (`cut`). A turn costs time in the order of the rows that
start; looking whether a lease can be finished while leaving costs that of all rows, a thousand at most.
"""

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace

from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.rollouts import SEGMENT_TOKENS
from shoal.contracts.run import PublicRun
from shoal.contracts.work import Work, may_be_parted
from shoal.environments.episodes import EpisodeTools
from shoal.environments.scored_once import ScoredOnce
from shoal.inference.commitment import HAND_IN_SECONDS, comes_too_late, is_sealed, longest_left
from shoal.inference.completions import Completion
from shoal.inference.lengths import KnownLengths, RowKind, row_kind
from shoal.inference.rollouts import PlannedRow, plan_continuations
from shoal.inference.tool_episodes import Episode
from shoal.inference.weights import VersionOnDisk

AHEAD = 8
"""The next lease is fetched once the rows that wait are fewer than a part of the slots, one in this many: it takes a moment to come."""
REMEMBERED_LIVES = 8
"""Newest leases whose lives by our clock say how long a new one's is by it: the least that one of them lacked is what the clocks differ by."""
LIKELY = 0.9
"""Chance with which a lease must end in time, or it is not fetched yet: a lost one costs ten times what a small pause does."""
SPARE = 1.2
"""Of the time that a lease will take, for steps that become slower and rows longer than any before."""
NOTHING: Mapping[int, Completion] = {}


@dataclass(frozen=True)
class PlannedLease:
    """A lease that may begin: its rows, and the version that they are of. Times are monotonic seconds.

    `life`: of a new lease like this one. One whose answer was lost is given once more, and has less left. `part_seconds`: after this time whole
    groups of it are handed in; None: the orchestrator takes it whole or not at all.
    """

    lease: Lease
    work: Work
    public: PublicRun
    policy: VersionOnDisk
    planned: Sequence[PlannedRow]
    tools: EpisodeTools | None
    given: float
    ends: float
    life: float
    part_seconds: float | None = None
    scored: ScoredOnce | None = None
    """Of its rows so far, which the parts of a lease share."""
    shown: StepInfo | None = None
    """The step as it was when the lease was given; None: its rows are not kept (`journal_files`)."""

    @property
    def places(self) -> list[int]:
        """Its groups' places in the draw."""
        part = self.lease.part
        return list(range(self.work.shape.groups)) if part is None else list(part.groups)

    @property
    def later_rows(self) -> int:
        """Continuations that follow on the planned rows."""
        return len(self.planned) * (self.work.shape.rows_each - 1)


@dataclass(eq=False)
class Row:
    """One row of a lease that is being generated. `started`: the decoding step with which its stretch began."""

    of: "RunningLease"
    index: int
    episode: Episode
    started: int = 0
    kept: int = 0
    """Tokens of it that are in the journal."""

    def left(self, steps: int) -> int:
        """Most tokens that it can still take."""
        return max(0, self.episode.row.request.max_tokens - len(self.episode.tokens) - (steps - self.started))

    @property
    def kind(self) -> RowKind:
        return row_kind(self.episode.row)

    @property
    def tools(self) -> EpisodeTools | None:
        """What may answer its calls. Continuations have none."""
        return None if self.of.continued else self.of.given.tools


@dataclass(eq=False)
class RunningLease:
    """A lease under generation."""

    given: PlannedLease
    planned: list[PlannedRow]
    waiting: deque[Row]
    running: dict[str, Row] = field(default_factory=dict)
    """By the engine's name."""
    asking: set[Row] = field(default_factory=set)
    """Paused at a call, until the tool answers."""
    made: dict[int, Completion] = field(default_factory=dict)
    continued: bool = False
    dropped: bool = False
    """It left the batch before it was whole."""
    places: list[int] = field(default_factory=list)
    """Of the groups that it still has, in the draw."""
    rest: "RunningLease | None" = None
    """Of a part that is handed in: what is left, whose lease it is under."""
    keeps_rest: bool = False
    """Of a part: the rest goes on here."""
    next_part: float = 0.0
    """When its whole groups are looked for next (monotonic)."""
    parting: bool = False
    """A part of it is being handed in, and it goes on."""
    spoiled: bool = False
    """A part of it was not taken: what is left is no whole any more."""

    @property
    def drawn(self) -> int:
        """Rows that are drawn for it; continuations follow on these."""
        return len(self.places) * self.given.public.group_size

    @property
    def holder(self) -> "RunningLease":
        """Whose lease it is handed in under, which changes with each part that was taken."""
        return self.rest or self

    @property
    def completions(self) -> list[Completion]:
        """Of all rows, in their order; for a whole lease."""
        return [self.made[index] for index in range(len(self.planned))]

    @property
    def tokens(self) -> int:
        """Sampled so far, in stretches that have ended."""
        begun = (*self.running.values(), *self.waiting, *self.asking)
        return sum(each.sampled for each in self.made.values()) + sum(sum(row.episode.mask) for row in begun)

    def limits(self, steps: int) -> list[int]:
        """Most tokens that each of its rows can still take, those of continuations too."""
        rows = [row.left(steps) for row in self.running.values()]
        rows += [row.left(row.started) for row in (*self.waiting, *self.asking)]
        if not self.continued:
            rows += [max(row.request.max_tokens for row in self.planned)] * self.given.later_rows
        return rows


class Batch:
    """Leases under generation, oldest first."""

    def __init__(self, slots: int, made: Callable[[Row, Completion], None] = lambda row, completion: None) -> None:
        """`slots`: sequences that the engine decodes together. `made` is told each row that is whole."""
        self._made = made
        self.slots = slots
        self.segment_tokens = SEGMENT_TOKENS
        """Segments begin at multiples of this many tokens. What a benchmark's clock calls a token is longer."""
        self.leases: list[RunningLease] = []
        self.steps = 0
        self.pace = 0.0
        """Seconds of a decoding step, lately."""
        self.lengths = KnownLengths()
        self._by_name: dict[str, Row] = {}
        self._newest: PlannedLease | None = None  # as which the next lease will be
        self._lacking: deque[float] = deque(maxlen=REMEMBERED_LIVES)

    @property
    def running(self) -> int:
        return len(self._by_name)

    @property
    def waiting(self) -> int:
        return sum(len(lease.waiting) for lease in self.leases)

    @property
    def runs_short(self) -> bool:
        """Whether slots will soon be free that no row waits for."""
        return self.waiting < max(1, self.slots // AHEAD)

    def next_is_in_time(self) -> bool:
        """Whether a lease like the newest one, given now, would end in time: if all rows were as long as the longest known, or very probably.

        Its clock runs while its rows wait. Where its rows would start at once it is tried all the same.
        """
        newest = self._newest
        planned = newest.planned if newest is not None else []
        kinds = [row_kind(planned[index]) for index in self._longest_first(planned)]
        turns, last = divmod(max(0, self.waiting + len(kinds) - 1), self.slots)
        free = self.slots - self.running
        if newest is None or (turns == 0 and last < free) or (not self.waiting and not self.running):
            return True
        longest = max(row.request.max_tokens for row in newest.planned)
        known = [self.lengths.known(kind) for kind in set(kinds)]
        if all(known):
            longest = min(longest, max(lengths[-1] for lengths in known))
        left = sorted(max(1, longest - self.steps + row.started) for row in self._by_name.values())
        starts = turns * longest + ([0] * free + left)[last]
        rounds = 2 if newest.later_rows else 1
        steps = (newest.life - HAND_IN_SECONDS) / (SPARE * self.pace) if self.pace > 0 else 0.0
        return starts + rounds * longest <= steps or (rounds == 1 and self._chance_of(kinds, steps) >= LIKELY)

    def _chance_of(self, kinds: Sequence[RowKind], steps: float) -> float:
        """Of rows of these kinds that join the queue now to end within this many steps; 0 while too few lengths are known.

        When slots become free is played through once, with lengths drawn from the known ones, for a running row from those above what it has. A
        thousand rows take 2 ms.
        """
        draw = random.Random(0)  # the same rows get the same answer
        free_at = [0] * (self.slots - self.running)
        for row in self._by_name.values():
            known, age = self.lengths.known(row.kind), self.steps - row.started
            longer = bisect_right(known, age)
            left = known[draw.randrange(longer, len(known))] - age if longer < len(known) else row.left(self.steps)
            free_at.append(left)
        heapify(free_at)
        for waiting in (row.kind for lease in self.leases for row in lease.waiting):
            known = self.lengths.known(waiting)
            if not known:
                return 0.0
            heapreplace(free_at, free_at[0] + draw.choice(known))
        found = 1.0
        for kind in kinds:
            known = self.lengths.known(kind)
            if not known:
                return 0.0
            found *= bisect_right(known, steps - free_at[0]) / len(known)
            heapreplace(free_at, free_at[0] + draw.choice(known))
        return found

    def _longest_first(self, planned: Sequence[PlannedRow]) -> list[int]:
        """The order in which rows start: those that will probably be long first, so that no short ones end while a long one has yet to begin."""
        expected = [self.lengths.expected(row_kind(row)) for row in planned]
        return sorted(range(len(planned)), key=lambda index: -expected[index])

    def begin(self, given: PlannedLease, kept: Mapping[int, Completion] = NOTHING) -> RunningLease:
        """Its rows wait for slots from now on. `kept`: what rows have already, by index; `cut` are those that go on behind it."""
        self._newest = given
        self._lacking.append(given.life - (given.ends - given.given))
        lease = RunningLease(given, list(given.planned), deque(), places=given.places)
        lease.next_part = given.given + (given.part_seconds or 0.0)
        lease.waiting += [
            Row(lease, index, Episode(given.planned[index])) for index in self._longest_first(given.planned)
        ]
        self.leases.append(lease)
        for row in [each for each in lease.waiting if each.index in kept]:
            row.episode.add(kept[row.index])
            row.kept = len(row.episode.tokens)
            if kept[row.index].finish_reason != "cut":
                lease.waiting.remove(row)
                self._is_made(row, kept[row.index])
        return lease

    def next_row(self, now: float) -> Row | None:
        """The row that takes a free slot, of the oldest lease that has one; none of a lease that will more probably expire (`too_late` names it)."""
        if self.running >= self.slots:
            return None
        for lease in self.leases:
            if lease.waiting and not self._comes_too_late(lease, now):
                return lease.waiting.popleft()
        return None

    def too_late(self, now: float) -> list[RunningLease]:
        """Leases that should be given up, so that somebody with more time has them."""
        if self.running >= self.slots:  # no row could start now; asked again when one could
            return []
        return [lease for lease in self.leases if lease.waiting and self._comes_too_late(lease, now)]

    def started(self, row: Row, name: str) -> None:
        row.started = self.steps
        row.of.running[name] = self._by_name[name] = row

    def stepped(self, seconds: float) -> None:
        """A decoding step of all running rows took this long."""
        self.steps += 1
        self.pace = seconds if self.steps == 1 else self.pace + (seconds - self.pace) / min(self.steps, 64)

    def row(self, name: str) -> Row | None:
        """The running row with this name in the engine; None: its lease is gone."""
        return self._by_name.get(name)

    def cut(self, name: str, completion: Completion, version: int) -> tuple[Row | None, int]:
        """A running row was taken out of the engine: the row, to be started again, and how many tokens are dropped. None: its lease is gone."""
        row = self._by_name.pop(name, None)
        if row is None:
            return None, 0
        del row.of.running[name]
        return row, row.episode.cut(completion, version, self.segment_tokens)

    def ended(self, name: str, completion: Completion, version: int | None = None) -> Row | None:
        """A stretch has ended. Returns its row where that now asks a tool; `answered` comes next then.

        `version`: that sampled it, in a run whose rows may be of several. There are no tools then.
        """
        row = self._by_name.pop(name, None)
        if row is None:  # of a lease that was given up meanwhile
            return None
        del row.of.running[name]
        if version is not None:
            self._is_made(row, row.episode.ends(completion, version))
            return None
        goes_on = bool(row.episode.tokens)
        row.episode.add(completion)
        tools = row.tools
        if tools is not None and tools.asks(completion.finish_reason):
            row.of.asking.add(row)
            return row
        self._is_made(row, row.episode.completion() if goes_on or tools is not None else completion)
        return None

    def answered(self, row: Row, goes_on: bool) -> None:
        """The tool has answered: the row goes on before all that wait, or is whole."""
        row.of.asking.discard(row)
        if row.of not in self.leases:
            return
        if goes_on:
            row.started = self.steps
            row.of.waiting.appendleft(row)
        else:
            self._is_made(row, row.episode.completion())

    def whole(self) -> list[RunningLease]:
        """Leases all of whose rows are there; they leave the batch. Continuations begin once the rows that they continue are there."""
        for lease in self.leases:
            if len(lease.made) == len(lease.planned) and not lease.continued:
                lease.continued = True
                continued = plan_continuations(lease.planned, lease.completions, lease.given.public)
                first = len(lease.planned)
                lease.waiting += [Row(lease, first + n, Episode(row)) for n, row in enumerate(continued)]
                lease.planned += continued
        done = [lease for lease in self.leases if len(lease.made) == len(lease.planned)]
        self.leases = [lease for lease in self.leases if lease not in done]
        return done

    def split(self, lease: RunningLease) -> RunningLease | None:
        """Take whole groups that are there out of a lease that goes on; None where none is, or nothing else. Takes the time of a look at its rows."""
        given, size = lease.given, lease.given.public.group_size
        if given.part_seconds is None or lease.spoiled or not may_be_parted(given.work):
            return None
        groups = range(len(lease.planned) // size)
        done = [group for group in groups if all(row in lease.made for row in range(group * size, (group + 1) * size))]
        if not done or len(done) == len(groups):
            return None
        left = [group for group in groups if group not in done]

        def rows(chosen: Sequence[int]) -> list[int]:
            return [group * size + sample for group in chosen for sample in range(size)]

        def of(chosen: Sequence[int]) -> tuple[list[PlannedRow], list[int]]:
            return [lease.planned[row] for row in rows(chosen)], [lease.places[group] for group in chosen]

        planned, places = of(done)
        part = RunningLease(replace(given, planned=planned), planned, deque(), places=places, rest=lease)
        part.made = {new: lease.made[old] for new, old in enumerate(rows(done))}
        numbers = {old: new for new, old in enumerate(rows(left))}
        lease.planned, lease.places = of(left)
        lease.made = {numbers[old]: made for old, made in lease.made.items() if old in numbers}
        for row in (*lease.waiting, *lease.running.values(), *lease.asking):
            row.index = numbers[row.index]
        return part

    def drop(self, lease: RunningLease) -> list[str]:
        """Take a lease out; returns its names in the engine, to be aborted."""
        self.leases.remove(lease)
        lease.dropped = True
        for name in lease.running:
            del self._by_name[name]
        return list(lease.running)

    def tokens_running(self, lease: RunningLease) -> int:
        """Tokens that its running rows have sampled in this stretch, about."""
        return sum(self.steps - row.started for row in lease.running.values())

    def sealed(self, info: StepInfo | None) -> list[RunningLease]:
        """Leases whose files would expire, by what the orchestrator says now."""
        return [lease for lease in self.leases if is_sealed(lease.given.work, info)]

    def unfinishable(self, seconds: float) -> list[RunningLease]:
        """Leases that cannot be finished within this time even if each row goes on to its limit; those with the least to do are kept first."""
        kept: list[int] = []
        dropped = []
        for lease in sorted(self.leases, key=lambda each: longest_left(each.limits(self.steps), self.slots)):
            limits = [*kept, *lease.limits(self.steps)]
            if longest_left(limits, self.slots) * self.pace > seconds:
                dropped.append(lease)
            else:
                kept = limits
        return dropped

    def _is_made(self, row: Row, made: Completion) -> None:
        row.of.made[row.index] = made
        self._made(row, made)
        self.lengths.add(row.kind, made.sampled)

    def _comes_too_late(self, lease: RunningLease, now: float) -> bool:
        given = lease.given
        if given.ends - given.given <= 0:  # its clock is not ours
            return False
        whole = given.life - min(self._lacking)
        kinds = [row.kind for row in lease.waiting]
        return comes_too_late(kinds, self.lengths, self.pace, given.ends - now, whole)
