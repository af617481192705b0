"""What the desk asks for, turn by turn, of an orchestrator whose answers change meanwhile."""

import threading
import time
from collections.abc import Collection

import pytest
import tiny_policy
from test_generation import policy

from servers import wait_until
from shoal.contracts.protocol import Lease, StepInfo
from shoal.inference.generation import Wish
from shoal.inference.lease_desk import WANTING_SECONDS, LeaseDesk
from shoal.inference.weights import VersionOnDisk


class Asked:
    """An orchestrator that notes what it is asked."""

    def __init__(self) -> None:
        self.info: StepInfo | None = tiny_policy.STEP.model_copy(update={"leases": 4})
        self.held: list[Collection[str] | None] = []
        self.desk = LeaseDesk(
            step=lambda wish: self.info,
            lease=self._lease,
            newest=lambda lowest, highest: policy(3),
            plan=lambda *_: pytest.fail("no lease was given"),
            failed=lambda lease, error: None,
            wake=lambda: None,
        )

    def _lease(self, step: int, held: Collection[str] | None) -> Lease | None:
        self.held.append(held)
        return None


def test_a_wish_of_before_a_smaller_allowance_asks_for_no_lease() -> None:
    world = Asked()
    held = frozenset(["a", "b", "c"])
    world.desk.want(Wish(policy(3), False, False, held))
    world.desk.turn()
    assert world.held == [held]
    world.info = world.info.model_copy(update={"leases": 2})
    world.desk.turn()
    assert world.held == [held], "it would drop a lease that runs"


def test_a_turn_that_hangs_is_seen() -> None:
    world = Asked()
    stuck: list[float] = []

    def step(wish: Wish | None) -> StepInfo:
        time.sleep(0.02)
        stuck.append(world.desk.stuck_seconds)
        world.desk.close()
        return world.info

    world.desk._step = step
    world.desk.serve()
    assert stuck[0] >= 0.02
    assert world.desk.stuck_seconds == 0.0


def test_an_orchestrator_that_tells_no_number_is_not_told_what_is_held() -> None:
    world = Asked()
    world.info = world.info.model_copy(update={"leases": None})
    world.desk.want(Wish(policy(3), True, False))
    world.desk.turn()
    assert world.held == [None]


def test_a_desk_waits_as_long_as_it_is_told_unless_a_lease_is_wanted_anew() -> None:
    world = Asked()
    world.info = world.info.model_copy(update={"again_seconds": 600})
    asked: list[float] = []

    def step(wish: Wish | None) -> StepInfo | None:
        asked.append(time.monotonic())
        return world.info

    world.desk._step = step
    thread = threading.Thread(target=world.desk.serve, daemon=True)
    thread.start()
    wait_until("the first question", lambda: asked)
    time.sleep(2.5 * WANTING_SECONDS)
    assert len(asked) == 1
    world.desk.want(Wish(policy(3), True, False))
    wait_until("a question for the lease", lambda: len(asked) == 2)
    world.info = None
    world.desk.want(None)
    world.desk.want(Wish(policy(3), True, False))
    wait_until("a question that is answered without a step", lambda: len(asked) == 3)
    time.sleep(2.5 * WANTING_SECONDS)
    assert len(asked) == 3, "what was told last holds"
    world.desk.close()
    thread.join(5.0)
    assert not thread.is_alive()


def test_a_version_that_is_waited_for_is_seen_before_the_next_question_is_due() -> None:
    world = Asked()
    assert world.info is not None
    world.info = world.info.model_copy(update={"again_seconds": 600})
    there: list[VersionOnDisk] = []
    world.desk._newest = lambda lowest, highest: there[0] if there else None
    world.desk.want(Wish(policy(3), True, False))
    thread = threading.Thread(target=world.desk.serve, daemon=True)
    thread.start()
    wait_until("it to lack a version", lambda: world.desk.shortage == "no-version")
    assert world.held == []
    there.append(policy(3))
    wait_until("a lease to be asked for", lambda: world.held)
    world.desk.close()
    thread.join(5.0)
    assert not thread.is_alive()
