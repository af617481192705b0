"""The work queue: each key once, never at two workers, later after failures, and nobody starves. Time is the test's own."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.engine.kinds import Key
from shoal_operator.engine.queue import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    SETTLE_SECONDS,
    SETTLE_SECONDS_A_KEY,
    WorkQueue,
)

A, B, C = (Key("InferencePool", "ns", name) for name in "abc")


class Clock:
    """Moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Seen:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.added_: list[Key] = []
        self.queued: list[float] = []
        self.worked: list[float] = []
        self.retried_: list[Key] = []

    def added(self, key: Key) -> None:
        self.added_.append(key)

    def started(self, key: Key, queued_seconds: float) -> None:
        self.queued.append(queued_seconds)

    def finished(self, key: Key, work_seconds: float) -> None:
        self.worked.append(work_seconds)

    def retried(self, key: Key) -> None:
        self.retried_.append(key)


def queue_and_clock() -> tuple[WorkQueue, Clock]:
    clock = Clock()
    return WorkQueue(clock=clock, random_=lambda: 0.0), clock


def drain(queue: WorkQueue) -> list[Key]:
    taken = []
    while (key := queue.get(0)) is not None:
        taken.append(key)
        queue.done(key)
    return taken


def test_a_key_is_queued_once_however_often_it_is_added() -> None:
    queue, _ = queue_and_clock()
    for key in (A, B, A, A, B):
        queue.add(key)
    assert drain(queue) == [A, B]


def test_a_key_that_is_being_worked_on_is_not_given_to_a_second_worker_and_comes_back_when_it_is_done() -> None:
    queue, _ = queue_and_clock()
    queue.add(A)
    assert queue.get(0) == A
    queue.add(A)
    queue.add(A)
    assert queue.get(0) is None
    assert queue.depth() == 1
    queue.done(A)
    assert drain(queue) == [A]


def test_a_key_that_changes_all_the_time_does_not_starve_the_others() -> None:
    queue, _ = queue_and_clock()
    for key in (A, B, C):
        queue.add(key)
    order = []
    for _ in range(6):
        taken = queue.get(0)
        assert taken is not None
        order.append(taken)
        queue.add(A)  # hot: changes while anything is worked on
        queue.done(taken)
    assert order == [A, B, C, A, A, A]


def test_a_delayed_key_comes_when_it_is_due_and_the_earliest_time_counts() -> None:
    queue, clock = queue_and_clock()
    queue.add_after(A, 30)
    queue.add_after(A, 10)
    queue.add_after(A, 20)
    clock.now += 9.9
    assert queue.get(0) is None
    clock.now += 0.2
    assert drain(queue) == [A]
    clock.now += 100
    assert drain(queue) == []


def test_a_run_of_a_key_covers_earlier_requests_but_not_later_ones() -> None:
    queue, clock = queue_and_clock()
    queue.add_after(A, 5)
    queue.add(A)
    assert queue.get(0) == A
    queue.add_after(A, 7)
    queue.done(A)
    clock.now += 6
    assert queue.get(0) is None
    clock.now += 2
    assert drain(queue) == [A]


def test_a_key_whose_children_change_all_the_time_is_looked_at_now_and_then() -> None:
    queue, clock = queue_and_clock()
    looks = 0
    for _ in range(1000):  # ten seconds of an event each ten milliseconds
        queue.add_settling(A)
        looks += len(drain(queue))
        clock.now += 0.01
    assert 100 <= looks <= 10 / SETTLE_SECONDS


def test_the_more_keys_settle_the_longer_each_waits_and_what_people_change_does_not() -> None:
    queue, clock = queue_and_clock()
    keys = [Key("InferencePool", "ns", f"p{number}") for number in range(1000)]
    looks = 0
    for _ in range(100):  # ten seconds of 10,000 events a second
        for key in keys:
            queue.add_settling(key)
        looks += len(drain(queue))
        clock.now += 0.1
    assert looks < 10 * 2 / SETTLE_SECONDS_A_KEY
    queue.add(A)
    assert queue.get(0) == A
    queue.done(A)
    clock.now += 1000 * SETTLE_SECONDS_A_KEY
    assert set(drain(queue)) <= set(keys)
    assert queue.depth() == 0
    assert not queue._settling


def test_a_namespace_with_a_thousand_ready_keys_does_not_delay_anothers_edit() -> None:
    queue, _ = queue_and_clock()
    keys = [Key("TrainingRun", "crowded", f"r{number}") for number in range(1000)]
    others = [Key("TrainingRun", namespace, "sums") for namespace in ("quiet", "calm")]
    for key in keys:
        queue.add(key)
    for key in others:
        queue.add(key)
    order = []
    for _ in range(6):
        taken = queue.get(0)
        assert taken is not None
        order.append(taken)
        queue.add(keys[0])  # whatever changes there meanwhile
        queue.done(taken)
    assert order == [keys[0], *others, *keys[1:4]], "one key of each namespace in turn"
    assert drain(queue) == [*keys[4:], keys[0]]
    assert queue.depth() == 0
    assert not queue._ready


def test_an_edit_goes_before_keys_that_came_by_the_clock_which_still_have_every_fourth_turn() -> None:
    queue, clock = queue_and_clock()
    routine = [Key("TrainingRun", "ns", f"r{number}") for number in range(8)]
    for key in routine[:4]:
        queue.add_routine(key)
    for key in routine[4:]:
        queue.add_after(key, 1)
    clock.now += 2
    edited = [Key("TrainingRun", "ns", f"e{number}") for number in range(6)]
    for key in edited:
        queue.add(key)
    assert queue.depth() == 14
    order = drain(queue)
    assert order[:8] == [*edited[:3], routine[0], *edited[3:6], routine[1]]
    assert order[8:] == routine[2:]


def test_a_key_that_came_by_the_clock_and_is_then_edited_moves_before_the_others_and_is_worked_on_once() -> None:
    queue, _ = queue_and_clock()
    for key in (A, B, C):
        queue.add_routine(key)
    queue.add(C)
    queue.add_routine(C)
    assert drain(queue) == [C, A, B]
    assert not queue._ready
    assert not queue._routine


def test_namespaces_take_turns_for_as_long_as_they_have_ready_keys() -> None:
    queue, _ = queue_and_clock()
    for key in (A, B, C, *(each._replace(namespace="other") for each in (A, B))):
        queue.add(key)
    assert [key.namespace for key in drain(queue)] == ["ns", "other", "ns", "other", "ns"]


def test_children_that_change_in_one_namespace_do_not_delay_those_of_another() -> None:
    queue, clock = queue_and_clock()
    for number in range(1000):
        queue.add_settling(Key("TrainingRun", "crowded", f"r{number}"))
    queue.add_settling(A)
    clock.now += SETTLE_SECONDS + 0.01
    assert A in drain(queue)
    clock.now += 1000 * 2 * SETTLE_SECONDS_A_KEY
    drain(queue)
    assert not queue._settling


def test_each_failure_in_a_row_doubles_the_wait_up_to_a_minute_and_success_forgets_them() -> None:
    queue, clock = queue_and_clock()
    waits = []
    for _ in range(12):
        waits.append(queue.failed(A))
        clock.now += waits[-1]
        assert drain(queue) == [A]
    assert waits[:4] == [FIRST_RETRY_SECONDS * 2**n for n in range(4)]
    assert waits[-1] == MAX_RETRY_SECONDS
    queue.succeeded(A)
    assert queue.failed(A) == FIRST_RETRY_SECONDS


def test_a_failure_that_passes_by_a_known_time_is_not_waited_for_longer() -> None:
    queue, _ = queue_and_clock()
    waits = [queue.failed(A, 5.0) for _ in range(8)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_failures_of_one_key_do_not_delay_another() -> None:
    queue, _ = queue_and_clock()
    for _ in range(8):
        queue.failed(A)
    assert queue.failed(B) == FIRST_RETRY_SECONDS


def test_a_closed_queue_hands_out_nothing_and_waits_for_running_work() -> None:
    queue, clock = queue_and_clock()
    queue.add(A)
    queue.add(B)
    assert queue.get(0) == A
    queue.close()
    assert queue.get() is None
    queue.add(C)
    assert queue.depth() == 1, "B waits for the next leader; C was not taken any more"
    clock.now += 1
    queue.done(A)
    assert queue.wait_idle(0)


def test_waiting_for_work_in_hand_ends_at_the_deadline() -> None:
    queue = WorkQueue()
    queue.add(A)
    queue.get(0)
    queue.close()
    assert not queue.wait_idle(0.01)


def test_a_worker_that_waits_is_woken_by_an_add() -> None:
    queue = WorkQueue()
    taken: list[Key | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.get(20)))
    worker.start()
    queue.add(A)
    worker.join(20)
    assert taken == [A]


def test_the_observer_gets_adds_times_and_retries() -> None:
    clock, seen = Clock(), Seen()
    queue = WorkQueue(seen, clock=clock, random_=lambda: 0.0)
    queue.add(A)
    queue.add(A)
    clock.now += 3
    queue.get(0)
    assert queue.running_seconds() == [0.0]
    clock.now += 2
    assert queue.running_seconds() == [2.0]
    queue.failed(A)
    queue.done(A)
    assert (seen.added_, seen.queued, seen.worked, seen.retried_) == ([A], [3.0], [2.0], [A])


def test_timers_that_nobody_waits_for_any_more_are_swept_out() -> None:
    queue, _ = queue_and_clock()
    for number in range(5000):
        queue.add_after(A, 10_000 - number)  # each earlier than the one before
    assert len(queue._heap) < 2000
    assert list(queue._due) == [A]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "after", "get", "done", "fail", "tick"]), st.sampled_from([A, B, C])))
)
def test_whatever_happens_no_key_is_at_two_workers_and_none_that_was_added_is_lost(
    steps: list[tuple[str, Key]],
) -> None:
    queue, clock = queue_and_clock()
    working: list[Key] = []
    wanted: set[Key] = set()
    for what, key in steps:
        match what:
            case "add":
                queue.add(key)
                wanted.add(key)
            case "after":
                queue.add_after(key, 5)
                wanted.add(key)
            case "fail":
                queue.failed(key)
                wanted.add(key)
            case "tick":
                clock.now += 3
            case "get":
                if (taken := queue.get(0)) is not None:
                    assert taken not in working
                    working.append(taken)
                    wanted.discard(taken)
            case "done" if key in working:
                queue.done(key)
                working.remove(key)
    for key in working:
        queue.done(key)
    clock.now += 1000
    assert wanted <= set(drain(queue))


def test_what_comes_by_the_clock_leaves_workers_free_for_what_somebody_changed() -> None:
    queue = WorkQueue(routine_places=1, clock=Clock(), random_=lambda: 0.0)
    queue.add_routine(A)
    queue.add_routine(B)
    assert queue.get(0) == A
    assert queue.get(0) is None
    queue.add(C)
    assert queue.get(0) == C
    queue.done(C)
    assert queue.get(0) is None
    queue.done(A)
    assert queue.get(0) == B


def test_a_key_that_came_by_the_clock_and_was_changed_then_needs_no_place() -> None:
    queue = WorkQueue(routine_places=1, clock=Clock(), random_=lambda: 0.0)
    queue.add_routine(A)
    queue.add_routine(B)
    assert queue.get(0) == A
    queue.add(B)
    assert queue.get(0) == B


def test_what_comes_by_the_clock_while_its_key_is_worked_on_waits_for_a_place_too() -> None:
    queue = WorkQueue(routine_places=1, clock=Clock(), random_=lambda: 0.0)
    queue.add(A)
    queue.add(B)
    assert [queue.get(0), queue.get(0)] == [A, B]
    queue.add_routine(A)
    queue.add_routine(B)
    queue.done(A)
    queue.done(B)
    assert queue.get(0) == A
    assert queue.get(0) is None
    queue.done(A)
    assert queue.get(0) == B


def test_a_key_that_somebody_changed_while_it_was_worked_on_needs_no_place() -> None:
    queue = WorkQueue(routine_places=1, clock=Clock(), random_=lambda: 0.0)
    queue.add(A)
    queue.add_routine(B)
    assert [queue.get(0), queue.get(0)] == [A, B]
    queue.add_routine(A)
    queue.add(A)
    queue.done(A)
    assert queue.get(0) == A


def test_a_worker_that_waits_for_a_place_gets_it_when_one_is_free() -> None:
    queue = WorkQueue(routine_places=1)
    queue.add_routine(A)
    queue.add_routine(B)
    assert queue.get(0) == A
    got: list[Key | None] = []
    waiting = threading.Thread(target=lambda: got.append(queue.get(20)))
    waiting.start()
    queue.done(A)
    waiting.join(20)
    assert got == [B]
