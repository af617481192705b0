"""Keys that hold leases and bring nothing, beside honest nodes, on the real orchestrator with a clock moved by hand.

In: an orchestrator without HTTP (`run_states`), how many honest nodes, and what the hoarding keys do. Out: when each step was sealed. Everybody acts
by events in the order of their times; hoarders come first. Used by tests and by `benchmarks.trust`.
"""

import heapq
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from protocol_stack import GROUP_SIZE, verdict_on
from run_states import Orchestrator
from shoal.contracts.completions import Sampling
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Lease, LeaseReturn
from shoal.contracts.recipe import Recipe
from shoal.contracts.validation import Validation
from shoal.orchestrator import background
from shoal.orchestrator.work import handout
from shoal.orchestrator.work.lease_returns import take_back

FILE_SECONDS = 60.0
"""An honest node takes as long for a file, a fifth more or less; its lease lasts 265 s."""
POLL_SECONDS = 5.0
HOARDER_POLL_SECONDS = 15.0
"""So somebody of 24 asks every 0.6 s."""
JUDGE_SECONDS = 2.0
PROMPTS_PER_STEP = 8  # four files
MOST_SECONDS = 6 * 3600.0

Life = Iterator[float]
"""One machine's: yields for how many seconds it does nothing."""


class Pool:
    """Honest nodes and hoarding keys of one run. `sealed_unix` has the time of each step's batch; `seconds_a_step` is their mean."""

    def __init__(self, folder: Path, redis_url: str, steps: int, seed: int = 1) -> None:
        self.run = Orchestrator(
            folder,
            redis_url,
            steps=steps,
            recipe=Recipe(prompts_per_step=PROMPTS_PER_STEP, group_size=GROUP_SIZE, max_sequence_length=8192),
            sampling=Sampling(max_completion_tokens=4096, groups_per_submission=2),
            validation=Validation(claim_seconds=60),
        )
        self.steps = steps
        self.random = random.Random(seed)
        self.sealed_unix: list[float] = []
        self.seconds_a_step = 0.0
        self._events: list[tuple[float, int, Life]] = []
        self._number = 0

    @property
    def now(self) -> float:
        return self.run.clock.now

    def add(self, life: Life, after: float = 0.0) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + after, self._number, life))

    def until_done(self) -> None:
        """Let everybody act until the last step is sealed."""
        self.run.announce(0)
        began = self.now
        self.add(self._trusted())
        while len(self.sealed_unix) < self.steps:
            when, _, life = heapq.heappop(self._events)
            self.run.clock.now = max(self.now, when)
            assert self.now < began + MOST_SECONDS, f"{len(self.sealed_unix)} of {self.steps} steps in six hours"
            wait = next(life, None)
            if wait is not None:
                self.add(life, wait)
        self.seconds_a_step = (self.now - began) / self.steps

    def _trusted(self) -> Life:
        """Validator, trainer and the background."""
        state = self.run.state
        while True:
            handout.end_overdue_leases(state)
            while (job := self.run.claim()) is not None:
                self.run.judge(verdict_on(job))
            background.settle_late(state)
            while len(self.sealed_unix) in state.view.sealed:
                self.sealed_unix.append(self.now)
                self.run.announce(len(self.sealed_unix))
            yield JUDGE_SECONDS

    # What a node does

    def lease(self, node: str) -> Lease | float:
        """A lease of the step that is served, or after how many seconds at least to ask again."""
        try:
            step = handout.step_for(self.run.state, node)
            return self.run.lease(node, step.step) if step is not None else 0.0
        except Refusal as refusal:
            return refusal.retry_after_seconds or 0.0

    def is_sealed(self, lease: Lease) -> bool:
        return lease.step in self.run.state.view.sealed

    def give_back(self, lease: Lease) -> None:
        take_back(self.run.state, LeaseReturn(node=lease.node, lease=lease.lease))

    def hand_in(self, lease: Lease) -> None:
        try:
            self.run.confirm(lease, self.run.upload(lease))
        except Refusal:
            return

    def next_lease(self, node: str, poll_seconds: float = HOARDER_POLL_SECONDS) -> Generator[float, None, Lease]:
        """Ask until there is one."""
        while isinstance(lease := self.lease(node), float):
            yield max(lease, poll_seconds) * self.random.uniform(1.0, 1.2)
        return lease

    def work(self, lease: Lease, seconds: float) -> Iterator[float]:
        """Generate, unless the step is sealed meanwhile, and hand in."""
        ends = self.now + seconds * self.random.uniform(0.8, 1.2)
        while self.now < ends:
            yield min(POLL_SECONDS, ends - self.now)
            if self.is_sealed(lease):
                self.give_back(lease)
                return
        self.hand_in(lease)

    def honest(self, node: str, seconds: float = FILE_SECONDS, crashes: float = 0.0) -> Life:
        """Files one after the other; each dies with probability `crashes` half way, and its restarted worker gives the lease back."""
        while True:
            lease = yield from self.next_lease(node, POLL_SECONDS)
            if self.random.random() < crashes:
                yield seconds / 2
                self.give_back(lease)
            else:
                yield from self.work(lease, seconds)

    # Hoarders

    def abandons(self, node: str) -> Life:
        """Lets every lease run out."""
        while True:
            lease = yield from self.next_lease(node)
            yield lease.expires_unix - self.now + 0.5

    def hands_back_late(self, node: str) -> Life:
        """Hands every lease back just before it runs out."""
        while True:
            lease = yield from self.next_lease(node)
            yield lease.expires_unix - self.now - 1.0
            self.give_back(lease)

    def one_good_file(self, node: str) -> Life:
        lease = yield from self.next_lease(node)
        yield from self.work(lease, FILE_SECONDS)
        yield from self.abandons(node)

    def until_sealed(self, node: str) -> Life:
        """Works well for a file, then holds each lease until others have filled its step, and hands it back."""
        lease = yield from self.next_lease(node)
        yield from self.work(lease, FILE_SECONDS)
        while True:
            lease = yield from self.next_lease(node)
            while not self.is_sealed(lease) and self.now < lease.expires_unix - 2 * POLL_SECONDS:
                yield POLL_SECONDS
            self.give_back(lease)

    def ever_new_keys(self, node: str) -> Life:
        """Lets one lease run out, and comes back with a new key."""
        while True:
            lease = yield from self.next_lease(node)
            yield lease.expires_unix - self.now + 0.5
            node = self.run.join()

    def ever_new_keys_with_a_file(self, node: str) -> Life:
        """The same, but that each key hands in one good file first."""
        while True:
            lease = yield from self.next_lease(node)
            yield from self.work(lease, FILE_SECONDS)
            lease = yield from self.next_lease(node)
            yield lease.expires_unix - self.now + 0.5
            node = self.run.join()


HOARDERS: dict[str, Callable[[Pool, str], Life]] = {
    "let leases run out": Pool.abandons,
    "hand them back just before": Pool.hands_back_late,
    "one good file first": Pool.one_good_file,
    "hold until the step is sealed": Pool.until_sealed,
    "a new key after each lease": Pool.ever_new_keys,
    "a new key with a good file after each lease": Pool.ever_new_keys_with_a_file,
}


def finished(folder: Path, redis_url: str, steps: int, honest: int, hoarders: int = 0, kind: str = "") -> Pool:
    """A run to its end, in which hoarding keys join first and ask first."""
    pool = Pool(folder, redis_url, steps)
    behaves = HOARDERS.get(kind)
    nodes = [pool.run.join() for _ in range(hoarders + honest)]
    for number, node in enumerate(nodes):
        life = behaves(pool, node) if behaves is not None and number < hoarders else pool.honest(node)
        pool.add(life, after=0.001 * number)
    pool.until_done()
    return pool
