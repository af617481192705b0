"""The decoding loop on an engine that only has a clock: which rows run when, and what happens to leases that end early."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
from benchmarks.workers.clock_engine import LIMIT, STRIDE, ClockEngine, length_of
from benchmarks.workers.killed import Journal

from shoal.contracts.protocol import StepInfo
from shoal.contracts.run import PublicRun
from shoal.contracts.weights import WeightsManifest
from shoal.inference import metrics
from shoal.inference.batch import PlannedLease, Row, RunningLease
from shoal.inference.beside import Beside, RowTools
from shoal.inference.commitment import GENERATE_SECONDS
from shoal.inference.completions import Completion, Request
from shoal.inference.generation import Generation, Wish
from shoal.inference.journal_files import EVERY_SECONDS
from shoal.inference.lengths import KnownLengths
from shoal.inference.rollouts import PlannedRow
from shoal.inference.tool_episodes import ToolFailedError
from shoal.inference.weights import VersionOnDisk

SLOTS = 4
MEAN = 1500.0  # tokens: rows of some tens of steps


def policy(number: int, sha256: str = "") -> VersionOnDisk:
    sha256 = sha256 or f"{number:064x}"
    manifest = WeightsManifest(
        run="tiny", version=number, model="m", sha256=sha256, open_digest="0" * 64, shards=["0" * 64]
    )
    return VersionOnDisk(number, Path(), manifest)


def rows_of(seed: int, count: int, first: int = 0) -> list[PlannedRow]:
    request = Request((5,), seed, 1.0, LIMIT)
    return [PlannedRow(tiny_policy.TASKS[0], 0, first + sample, None, request) for sample in range(count)]


class Tools:
    """Ends a row at its second token with a call."""

    by_turns = False

    def pauses(self, tokens: Sequence[int]) -> bool:
        return True

    def asks(self, finish_reason: str) -> bool:
        return finish_reason == "unanswered"

    def turn_room(self, room: int) -> int:
        return room


class World:
    """A desk with leases in a list, tools whose answers the test gives, and what the loop reports."""

    def __init__(self, several: bool = False, keeper: Journal | None = None) -> None:
        self.engine = ClockEngine(SLOTS, (MEAN,))
        self.leases: list[PlannedLease] = []
        self.info: StepInfo | None = None
        self.most, self.shortage = 2, "no-lease"
        self.wish: Wish | None = None
        self.asked: list[Row] = []
        self.answered: list[tuple[Row, bool | Exception]] = []
        self.done: list[RunningLease] = []
        self.lost: list[tuple[int, str]] = []
        self.loaded: list[int] = []
        self.handing_in = 0
        self.newest: VersionOnDisk | None = None
        self.loop = Generation(
            self.engine,
            self,
            self,
            policy(3),
            swap=self._swap,
            finished=self.done.append,
            given_up=lambda lease, reason, error: self.lost.append((lease.given.lease.submission, reason)),
            handing_in=lambda: [str(number) for number in range(self.handing_in)],
            clock=lambda: self.engine.now,
            several=several,
            made=lambda row, made: keeper.whole(row, made) if keeper is not None else None,
            keeper=keeper,
        )

    def _swap(self, new: VersionOnDisk) -> None:
        assert not self.engine.rows
        self.loaded.append(new.version)

    def want(self, wish: Wish | None) -> None:
        self.wish = wish

    def take(self) -> PlannedLease | None:
        """As the desk does: for another version than the engine's only when nothing of that is left."""
        if self.wish is None or not self.leases:
            return None
        same = self.leases[0].policy.is_same(self.wish.loaded)
        self.shortage = "no-lease" if same else "swap"
        return self.leases.pop(0) if same or self.wish.empty else None

    def ask(self, row: Row) -> None:
        self.asked.append(row)

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        answered, self.answered = self.answered, []
        return answered

    def lease(
        self,
        number: int,
        seeds: Sequence[int],
        version: int = 3,
        public: PublicRun = tiny_policy.PUBLIC,
        step: int = 4,
        **more: Any,
    ) -> None:
        """A lease for this step with these rows."""
        rows = [row for sample, seed in enumerate(seeds) for row in rows_of(seed, 1, sample)]
        lease = tiny_policy.LEASE.model_copy(update={"submission": number, "lease": f"{number:032x}"})
        work = public.codec.decode(step)
        given: dict[str, Any] = {"tools": None, "given": self.engine.now, "ends": self.engine.now + 1e6} | more
        given.setdefault("life", given["ends"] - given["given"])
        self.leases.append(PlannedLease(lease, work, public, policy(version), rows, **given))

    def until(self, done: int, most_turns: int = 4 * LIMIT) -> None:
        for _ in range(most_turns):
            if len(self.done) >= done:
                return
            self.loop.turn()
        raise AssertionError(f"{len(self.done)} leases are done of {done}")

    def running(self) -> list[int]:
        return [len(lease.running) for lease in self.loop.batch.leases]


def length(seed: int) -> int:
    return length_of(seed, MEAN)


KIND = (tiny_policy.TASKS[0].task_type, None)


def know(world: World, length: int) -> None:
    """All rows that the worker remembers had this length."""
    world.loop.batch.lengths = KnownLengths()
    for _ in range(40):
        world.loop.batch.lengths.add(KIND, length)


LONG, SHORT = max(range(200), key=length), min((seed for seed in range(200) if length(seed) > 9), key=length)


def test_rows_of_the_next_lease_take_the_slots_that_the_first_ones_leave() -> None:
    world = World()
    world.lease(0, [LONG, SHORT, SHORT, LONG])
    world.lease(1, [SHORT] * 6)
    world.loop.turn()  # says that a lease is wanted
    world.loop.turn()
    assert world.running() == [4]
    world.until(1)
    assert [lease.given.lease.submission for lease in world.done] == [1], "it was whole while the long rows ran"
    world.until(2)
    first, second = world.done[1], world.done[0]
    assert [len(made.tokens) for made in first.completions] == [length(seed) for seed in (LONG, SHORT, SHORT, LONG)]
    assert [len(made.tokens) for made in second.completions] == [length(SHORT)] * 6


def test_no_more_leases_are_wanted_than_the_node_may_have_those_that_are_handed_in_among_them() -> None:
    world = World()
    world.lease(0, [LONG])
    for _ in range(3):
        world.loop.turn()
    assert world.wish is not None
    world.handing_in = 1
    world.loop.turn()
    assert world.wish is None
    world.handing_in, world.most = 0, 1
    world.loop.turn()
    assert world.wish is None, "an orchestrator that tells no number lets a node have one lease"


def test_weights_are_swapped_behind_the_last_row_of_the_older_however_many_leases_wait() -> None:
    world = World()
    world.lease(0, [LONG, SHORT])
    world.lease(1, [SHORT], version=4)
    for number in range(2, 6):
        world.lease(number, [SHORT], version=4)
    while not world.loaded:
        world.loop.turn()
        assert len(world.done) == (1 if world.loaded else len(world.done))
    assert world.done[0].given.policy.version == 3
    world.until(6)
    assert world.loaded == [4]
    assert [lease.given.policy.version for lease in world.done] == [3, 4, 4, 4, 4, 4]


def segments(world: World) -> list[list[tuple[int, int]]]:
    return [list(made.segments) for lease in world.done for made in lease.completions]


def test_rows_go_on_under_newer_weights_from_their_last_whole_proof() -> None:
    world = World(several=True)
    world.loop.batch.segment_tokens = 4
    world.engine.prefill_seconds = 1e-9  # so that the clock lets a row go on where it was
    seeds = [seed for seed in range(1000) if length(seed) > 12][:SLOTS]
    world.lease(0, [*seeds, seeds[0]])
    for _ in range(7):
        world.loop.turn()
    world.newest = policy(4)
    world.loop.turn()
    assert world.loaded == [4]
    assert world.running() == [SLOTS]  # at once, with none that waited in their place
    world.until(1)
    assert segments(world) == [*[[(3, 0), (4, 4)]] * SLOTS, [(4, 0)]]
    assert [made.sampled for made in world.done[0].completions] == [length(seed) for seed in [*seeds, seeds[0]]]
    assert not world.loop.batch.leases


def test_rows_that_have_no_whole_proof_begin_again() -> None:
    world = World(several=True)
    world.engine.prefill_seconds = 1e-9
    world.lease(0, [seed for seed in range(1000) if length(seed) > 12][:SLOTS])
    for _ in range(5):
        world.loop.turn()
    world.newest = policy(4)
    world.until(1)
    assert segments(world) == [[(4, 0)]] * SLOTS


def test_no_row_goes_on_under_a_version_that_its_step_does_not_accept_or_an_older_one() -> None:
    world = World(several=True)
    world.lease(0, [seed for seed in range(1000) if length(seed) > 12][:SLOTS])
    world.loop.turn()
    for number in (5, 2):  # the lease is for step 4
        world.newest = policy(number)
        world.loop.turn()
    assert world.loaded == []
    world.until(1)
    assert segments(world) == [[(3, 0)]] * SLOTS


def test_a_lease_that_was_planned_before_a_swap_takes_no_older_weights_back() -> None:
    world = World(several=True)
    world.most = 3
    world.lease(0, [1, 2])
    world.loop.turn()
    world.newest = policy(4)
    world.loop.turn()
    world.lease(1, [3], version=3)
    world.loop._desk = world
    world.wish = Wish(policy(3), False, False)
    world.until(2)
    assert world.loaded == [4]


def test_a_lease_of_an_older_step_that_takes_no_newer_weights_goes_back_while_rows_run() -> None:
    world = World(several=True)
    world.most = 3
    world.lease(0, [seed for seed in range(1000) if length(seed) > 12][: SLOTS // 2], version=4, step=5)
    world.loop.loaded = policy(4)
    world.loop.turn()
    world.loop.turn()
    assert world.wish is not None
    world.lease(1, [3], version=4)  # the step before, of which a file was rejected
    world.newest = policy(5)
    world.loop.turn()
    assert world.loaded == [5]
    assert world.lost == [(1, "swap")]
    world.until(1)
    assert world.loaded == [5], "an engine takes no weights while rows run"
    world.lease(1, [3], version=4)
    world.newest = None
    world.until(2)
    assert world.loaded == [5, 4]  # nothing of the newer is left


def test_where_rows_are_of_one_version_a_newer_one_waits() -> None:
    world = World()
    world.lease(0, [1, 2])
    world.loop.turn()
    world.newest = policy(4)
    world.until(1)
    assert world.loaded == []
    assert segments(world) == [[], []]


def test_what_an_emptying_engine_cost_puts_off_the_next_swap() -> None:
    world = World()
    world.lease(0, [LONG])
    world.lease(1, [SHORT], version=4)
    world.until(2)
    world.loop.turn()
    assert world.wish is not None
    assert world.wish.may_wait, "three of four slots were empty for the long row's time"
    world.engine.now += 100 * length(LONG) * STRIDE
    world.loop.turn()
    assert not world.wish.may_wait


def test_a_version_that_was_sealed_again_under_its_number_is_loaded_once() -> None:
    """A leaked key had sealed it first: what the engine holds is not what the trainer signed."""
    world = World()
    for number in range(2):
        world.lease(number, [SHORT])
    world.leases = [replace(lease, policy=policy(3, "ab" * 32)) for lease in world.leases]
    world.until(2)
    assert world.loaded == [3]


def test_a_lease_whose_step_is_sealed_is_given_up_and_the_others_go_on() -> None:
    world = World()
    world.lease(0, [LONG, LONG])
    world.lease(1, [LONG])
    for _ in range(4):
        world.loop.turn()
    assert world.running() == [2, 1]
    later = world.loop.batch.leases[1]
    later.given = PlannedLease(**{**vars(later.given), "work": tiny_policy.PUBLIC.codec.decode(5)})
    lost = metrics.LOST.labels("sealed")._value.get()
    world.info = tiny_policy.STEP.model_copy(update={"step": 5, "first_unsealed_step": 5})
    world.loop.turn()
    assert world.lost == [(0, "sealed")]
    assert world.running() == [1]
    assert len(world.engine.rows) == 1
    assert metrics.LOST.labels("sealed")._value.get() > lost
    world.until(1)


def test_on_leaving_what_can_be_finished_is_and_the_rest_is_given_back_at_once() -> None:
    world = World()
    world.lease(0, [LONG] * 3)
    world.lease(1, [SHORT])
    for _ in range(4):
        world.loop.turn()
    assert world.running() == [3, 1]
    for row in world.loop.batch.leases[1].running.values():  # few tokens are left for it
        limit = PlannedRow(**{**vars(row.episode.row), "request": Request((5,), SHORT, 1.0, length(SHORT))})
        row.episode.row = limit
    assert length(SHORT) * world.loop.batch.pace < GENERATE_SECONDS < LIMIT * world.loop.batch.pace
    world.loop.leave()
    world.loop.turn()
    assert world.lost == [(0, "leaving")]
    assert world.wish is None
    world.until(1)
    assert world.done[0].given.lease.submission == 1


def test_a_lease_that_would_expire_is_given_up_before_its_rows_start() -> None:
    world = World()
    know(world, LIMIT)
    world.lease(0, [LONG] * SLOTS)
    for _ in range(3):
        world.loop.turn()
    whole = 2 * LIMIT * world.loop.batch.pace
    world.lease(1, [LONG] * SLOTS, ends=world.engine.now + whole)
    world.most = 3
    world.until(1)
    world.engine.now += whole
    for _ in range(3):
        world.loop.turn()
    assert world.lost == [(1, "late")]
    assert world.engine.count == SLOTS, "no row of it was started"


class SlowWorld(World):
    """Gives a lease when one is wanted, whose life is less than twice what its longest row takes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.count, self.life = most, 0, 1.8 * row_seconds(LONG)

    def take(self) -> PlannedLease | None:
        if self.wish is not None:
            ends = self.engine.now + self.life
            self.lease(self.count, [LONG, SHORT + self.count % 5, LONG, LONG], ends=ends)
            self.count += 1
        return super().take()

    def files_in_time(self) -> int:
        while self.engine.now < 30 * row_seconds(LONG):
            began = len(self.done)
            self.loop.turn()
            for lease in self.done[began:]:
                assert self.engine.now <= lease.given.ends, "the lease ran out"
        return len(self.done)


def row_seconds(seed: int) -> float:
    """Of a full engine for this row."""
    engine = ClockEngine(SLOTS, (MEAN,))
    for _ in range(SLOTS):
        engine.start(Request((5,), seed, 1.0, LIMIT))
    while engine.rows:
        engine.step()
    return engine.now


def test_a_slow_node_loses_no_lease_to_having_it_before_its_rows_can_start() -> None:
    one, two = SlowWorld(1), SlowWorld(2)
    assert two.files_in_time() >= one.files_in_time() > 20
    assert (one.lost, two.lost) == ([], [])


def test_a_lease_whose_time_is_long_over_is_given_up_while_it_runs() -> None:
    world = World()
    world.lease(0, [LONG], ends=10.0)
    for _ in range(3):
        world.loop.turn()
    assert world.running() == [1]
    world.engine.now = 2000.0
    world.loop.turn()
    assert world.lost == [(0, "late")]


def test_a_lease_that_is_given_again_while_it_runs_gets_more_time_and_no_further_rows() -> None:
    world = World()
    world.lease(0, [LONG], ends=10.0)
    for _ in range(3):
        world.loop.turn()
    world.lease(0, [LONG], ends=5000.0)
    world.loop.turn()
    (lease,) = world.loop.batch.leases
    assert lease.given.ends == 5000.0
    world.until(1)
    assert (len(world.done[0].completions), world.engine.count, world.loaded, world.leases) == (1, 1, [], [])


def short_of_time(world: World, life: float, lacks: float = 0.0) -> None:
    """A full engine, and a second lease of this life, of which our clock takes a part, whose rows wait behind rows as long as any."""
    know(world, length(SHORT))
    world.most = 3
    for number, seed in enumerate((LONG, SHORT)):
        world.lease(number, [seed] * SLOTS, ends=world.engine.now + life - lacks, life=life)
        for _ in range(3):
            world.loop.turn()
    assert len(world.loop.batch.leases) == 2
    know(world, LIMIT // 2)


def life_of_half_the_limit() -> float:
    """In which a row fits by the lengths seen, with a half more to spare, and not with half of it left."""
    return 0.75 * row_seconds(LONG) * LIMIT / length(LONG)


@pytest.mark.parametrize("clocks_differ", [0.0, 0.2])
def test_a_lease_that_is_given_again_with_little_left_is_compared_with_a_new_one(clocks_differ: float) -> None:
    """Its answer was lost: it comes once more with the end that it has, and a fresh one has a whole life."""
    world, life = World(), life_of_half_the_limit()
    short_of_time(world, life, clocks_differ * life)
    waiting = world.loop.batch.leases[1]
    left = 0.5 * (waiting.given.ends - world.engine.now)
    world.engine.now = waiting.given.ends - left
    world.lease(1, [SHORT] * SLOTS, ends=waiting.given.ends, life=life)
    world.wish = Wish(policy(3), False, False)
    world.loop._begin()
    assert not world.leases, "it was taken"
    assert world.loop.batch._comes_too_late(waiting, world.engine.now)


def test_clocks_that_differ_make_no_new_lease_late() -> None:
    world, life = World(), life_of_half_the_limit()
    short_of_time(world, life, 0.4 * life)
    assert not world.loop.batch._comes_too_late(world.loop.batch.leases[1], world.engine.now)


def test_after_a_restart_the_next_lease_is_judged_by_a_whole_life_and_not_by_what_was_left_of_the_first() -> None:
    world, life = World(), 3.0 * row_seconds(LONG)
    know(world, length(LONG))
    world.lease(0, [LONG] * SLOTS, ends=world.engine.now + 0.5 * life, life=life)
    for _ in range(3):
        world.loop.turn()
    assert world.running() == [SLOTS]
    assert world.loop.batch.next_is_in_time()


def steady(world: World, turns: int) -> None:
    """A worker that always has leases of many lengths, after this many steps."""
    world.most, number = 3, 0
    for _ in range(turns):
        if not world.leases:
            world.lease(number, range(number * SLOTS, (number + 1) * SLOTS), life=1e6)
            number += 1
        world.loop.turn()


def played(world: World, rows: int, draw: random.Random) -> float:
    """Steps until these rows, behind all that wait, have ended if all lengths are drawn anew from the known ones."""
    batch = world.loop.batch
    known = batch.lengths.known(KIND)
    ages = [batch.steps - row.started for row in batch._by_name.values()]
    free = [0] * (SLOTS - len(ages))
    for age in ages:
        longer = [length for length in known if length > age]
        free.append(draw.choice(longer) - age if longer else 1)
    ends = []
    for _ in range(batch.waiting + rows):
        free.sort()
        free[0] += draw.choice(known)
        ends.append(free[0])
    return float(max(ends[-rows:]))


@pytest.mark.parametrize("turns", [300, 420, 555])
def test_the_chance_that_the_next_lease_ends_in_time_is_what_many_draws_of_all_lengths_say(turns: int) -> None:
    world, draw = World(), random.Random(5)
    steady(world, turns)
    batch = world.loop.batch
    assert len(batch.lengths.known(KIND)) > 32
    ends = sorted(played(world, SLOTS, draw) for _ in range(2000))
    for steps in (ends[20], ends[700], ends[1300], ends[1980]):
        true = sum(end <= steps for end in ends) / len(ends)
        assert abs(batch._chance_of([KIND] * SLOTS, steps) - true) < 0.25, f"{steps} steps"
    assert batch._chance_of([KIND] * SLOTS, 0.0) == 0.0
    assert batch._chance_of([KIND] * SLOTS, 1e6) == 1.0


def test_of_a_lease_the_rows_that_will_be_long_start_first() -> None:
    """By the target while nothing is known of such rows, and by the lengths seen once it is."""
    world = World()
    targets = [None, 20, 300, 40, 300]
    planned = [replace(row, target_length=target) for row, target in zip(rows_of(LONG, 5), targets, strict=True)]
    assert world.loop.batch._longest_first(planned) == [2, 4, 3, 1, 0]
    for _ in range(40):
        world.loop.batch.lengths.add((KIND[0], 300), 30)
    assert world.loop.batch._longest_first(planned) == [3, 2, 4, 1, 0]
    world.lease(0, [SHORT] * 5)
    world.leases[0] = replace(world.leases[0], planned=planned)
    for _ in range(3):
        world.loop.turn()
    (lease,) = world.loop.batch.leases
    assert [row.index for row in lease.waiting] == [0]
    world.until(1)
    assert [len(made.tokens) for made in world.done[0].completions] == [length(LONG)] * 5, "in the order planned"


def test_without_enough_finished_rows_nothing_is_likely() -> None:
    world = World()
    steady(world, 3)
    assert world.loop.batch._chance_of([KIND] * SLOTS, 1e6) == 0.0


def test_a_tool_that_fails_loses_its_own_lease_only_and_others_answer_meanwhile() -> None:
    world = World()
    world.lease(0, [SHORT], tools=Tools())
    world.lease(1, [SHORT])
    for _ in range(3):
        world.loop.turn()
    calling, other = world.loop.batch.leases
    (name,) = calling.running
    row = world.loop.batch.ended(name, Completion([7, 8], [-0.5, -0.5], "unanswered", b"p"))
    assert row is not None
    world.answered = [(row, ToolFailedError("no answer"))]
    world.loop.turn()
    assert world.lost == [(0, "tool")]
    assert world.loop.batch.leases == [other]
    world.until(1)


def test_no_tool_is_asked_for_a_row_whose_lease_was_dropped() -> None:
    world = World()
    world.lease(0, [SHORT], tools=Tools())  # it cannot answer
    for _ in range(3):
        world.loop.turn()
    (calling,) = world.loop.batch.leases
    (row,) = calling.running.values()
    world.loop.batch.drop(calling)
    done = threading.Event()
    tools = RowTools(Beside("tools", done.set))
    tools.ask(row)
    assert done.wait(10)
    assert tools.answers() == [(row, False)]


def test_a_row_that_is_answered_goes_on_before_those_that_wait() -> None:
    world = World()
    world.lease(0, [SHORT] * SLOTS, tools=Tools())
    world.lease(1, [SHORT] * SLOTS)
    for _ in range(3):
        world.loop.turn()
    calling = world.loop.batch.leases[0]
    name = next(iter(calling.running))
    del world.engine.rows[name]
    row = world.loop.batch.ended(name, Completion([7, 8], [-0.5, -0.5], "unanswered", b"p"))
    assert row is not None
    row.episode._append([9], [0.0], sampled=False)  # what the tool answered
    world.loop.batch.answered(row, True)
    world.loop.turn()
    assert world.running()[0] == SLOTS
    world.until(2)
    made = next(lease for lease in world.done if lease.given.lease.submission == 0).completions[row.index]
    assert made.mask == [True, True, False] + [True] * length(SHORT)
    assert made.proofs == b"p"


def test_continuations_begin_when_the_rows_that_they_continue_are_there() -> None:
    world = World()
    public = tiny_policy.PUBLIC_VINE
    seeds = range(public.codec.decode(4).shape.completions)
    world.lease(0, list(seeds), public=public)
    world.until(1, most_turns=100 * LIMIT)
    (lease,) = world.done
    assert len(lease.planned) == public.codec.decode(4).shape.rows
    assert all(row.prefix for row in lease.planned[len(seeds) :])
    assert len(lease.completions) == len(lease.planned)


@pytest.mark.parametrize(
    ("handing_in", "most", "cause"), [(0, 2, "no-lease"), (1, 1, "upload"), (0, 1, "tail"), (2, 2, "upload")]
)
def test_empty_slots_are_booked_by_their_cause(handing_in: int, most: int, cause: str) -> None:
    world = World()
    world.lease(0, [LONG])
    world.loop.turn()
    world.loop.turn()
    world.handing_in, world.most = handing_in, most
    before = {use: metrics.SLOT_SECONDS.labels(use)._value.get() for use in metrics.USES}
    began = world.engine.now
    world.loop.turn()
    grown = {use for use in metrics.USES if metrics.SLOT_SECONDS.labels(use)._value.get() > before[use]}
    assert grown == {"row", cause}
    assert metrics.SLOT_SECONDS.labels(cause)._value.get() - before[cause] == pytest.approx(
        (SLOTS - 1) * (world.engine.now - began)
    )


def in_parts(world: World, seconds: float = 1e6) -> None:
    """A lease of three groups of two rows; those of the second go on longest."""
    public = tiny_policy.PUBLIC.model_copy(update={"group_size": 2})
    world.lease(7, [SHORT, SHORT, LONG, LONG, SHORT, SHORT], public=public, part_seconds=seconds)


def test_a_worker_that_is_asked_to_stop_hands_in_whole_groups_and_leaves_the_rest() -> None:
    world = World()
    in_parts(world)
    while not world.loop.batch.leases or len(world.loop.batch.leases[0].made) < 4:
        world.loop.turn()
    world.loop.batch.pace = GENERATE_SECONDS  # the long rows cannot be finished
    world.loop.leave()
    world.loop.turn()
    [part] = world.done
    assert (part.places, len(part.completions), part.keeps_rest) == ([0, 2], 4, False)
    assert (world.loop.batch.leases, world.engine.rows) == ([], {})
    assert world.lost == [], "its file ends the lease: it is not given back beside it"


def test_without_a_whole_group_a_lease_is_given_back() -> None:
    world = World()
    in_parts(world)
    for _ in range(3):
        world.loop.turn()
    world.loop.batch.pace = GENERATE_SECONDS
    world.loop.leave()
    world.loop.turn()
    assert (world.done, world.lost) == ([], [(7, "leaving")])


def test_whole_groups_are_handed_in_while_the_others_go_on_and_each_row_once() -> None:
    world = World()
    in_parts(world, seconds=0.1)
    world.until(1)
    part, left = world.done[0], world.loop.batch.leases[0]
    assert part.keeps_rest
    assert part.rest is left
    assert left.parting
    world.until(2)
    assert (part.places, left.places) == ([0], [1, 2])
    assert [len(made.tokens) for made in part.completions] == [length(SHORT)] * 2
    assert [len(made.tokens) for made in left.completions] == [length(LONG)] * 2 + [length(SHORT)] * 2


def test_a_lease_is_dropped_when_a_part_of_it_was_not_taken() -> None:
    world = World()
    in_parts(world, seconds=0.1)
    world.until(1)
    world.loop.batch.leases[0].spoiled = True
    world.loop.turn()
    assert world.lost == [(7, "refused")]


def follower(keeper: Journal, given: PlannedLease) -> World:
    """The process in the place of one that ended."""
    world = World(keeper=keeper)
    world.engine.prefill_seconds = 1e-9  # so that the clock lets a row go on where it was
    world.loop.batch.begin(given, keeper.kept(given))
    return world


def midway(keeper: Journal) -> tuple[World, PlannedLease]:
    """Some rows of a lease are whole, others run, and one waits."""
    world = World(keeper=keeper)
    world.loop.batch.segment_tokens = 1  # a step of the clock is two proofs
    known = sorted((seed for seed in range(200) if length(seed) > 9), key=length)  # a row is known by its seed
    world.lease(0, [known[-1], known[0], known[1], known[-2], known[-3]])
    given = world.leases[0]
    while len(world.loop.batch.leases[0].made if world.loop.batch.leases else ()) < 2:
        world.loop.turn()
    world.engine.now += 5.0
    world.loop.turn()
    return world, given


def test_a_killed_worker_leaves_what_was_written_and_the_next_one_draws_the_rest() -> None:
    keeper = Journal()
    _, given = midway(keeper)
    kept = keeper.kept(given)
    assert {index for index, made in kept.items() if made.finish_reason != "cut"} == {1, 2}
    assert {0, 3} <= {index for index, made in kept.items() if made.finish_reason == "cut"}
    world = follower(keeper, given)
    world.until(1)
    assert world.engine.count == 3, "whole rows are not drawn again"
    assert [made.sampled for made in world.done[0].completions] == [length(row.request.seed) for row in given.planned]
    assert sum(len(made.tokens) for made in kept.values()) + world.engine.tokens // STRIDE == sum(
        length(row.request.seed) for row in given.planned
    )


def test_rows_are_put_down_for_the_next_worker_and_no_lease_goes_back() -> None:
    keeper = Journal()
    before, given = midway(keeper)
    assert before.loop.put_down()
    assert not before.engine.rows
    assert not before.loop.batch.leases
    assert before.lost == []
    assert not before.loop.turn()
    world = follower(keeper, given)
    world.until(1)
    tokens = before.engine.tokens + world.engine.tokens
    assert tokens // STRIDE == sum(length(row.request.seed) for row in given.planned), "no token is drawn twice"


def test_rows_are_not_put_down_where_some_lease_is_not_kept() -> None:
    class Half(Journal):
        def has(self, lease: RunningLease) -> bool:
            return lease.given.lease.submission == 0

    world = World(keeper=Half())
    world.lease(0, [SHORT])
    world.lease(1, [SHORT])
    while len(world.loop.batch.leases) < 2:
        world.loop.turn()
    assert not world.loop.put_down()
    world.until(2)


def test_what_rows_have_more_is_asked_for_once_a_second() -> None:
    class Counted(Journal):
        times: list[float]

        def flush(self, now: float) -> None:
            self.times.append(now)
            super().flush(now)

    keeper = Counted()
    keeper.times = []
    world = World(keeper=keeper)
    world.lease(0, [LONG])
    world.until(1)
    between = [later - before for before, later in zip(keeper.times, keeper.times[1:], strict=False)]
    assert len(between) > 3
    assert min(between) >= EVERY_SECONDS
