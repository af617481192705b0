"""The pools of each step of a run with a curriculum (`tasks.curriculum`), from the batches of earlier steps.

Step `s` opens when version `s - asyncLevel` is there, so the batches of all steps below that number are sealed and in the ledger.
They decide its pools, and each later batch decides nothing.
So nobody sends a table: orchestrator, validators and audits compute it, each from the batches that it reads.
The beacon of step `s` is committed to before and revealed after these batches are sealed.

Costs: after a start one read for each earlier step, 16 kB for a thousand groups; then one for each new step. Memory: `sampling.curriculum`.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from shoal.contracts.steps import StepBatch
from shoal.contracts.task_source import Curriculum
from shoal.sampling.curriculum import PoolRule, Pools, Solved, SolveRates

KEPT_POOLS = 8
"""Steps whose pools are kept: those that are open side by side, at most five, and late files of a few before."""


class StepPools:
    """Pools by step. Safe for several threads."""

    def __init__(
        self, rule: PoolRule, task_count: int, async_level: int, read_batch: Callable[[int], StepBatch]
    ) -> None:
        """`read_batch`: the sealed batch of a step; what it raises goes to whoever asks for pools."""
        self._rule, self._task_count, self._async_level = rule, task_count, async_level
        self._read_batch = read_batch
        self._lock = threading.Lock()
        self._pools: OrderedDict[int, Pools] = OrderedDict()
        self._rates, self._counted = SolveRates(rule, task_count), 0

    def of(self, step: int) -> Pools:
        """The pools that the prompts of this step's files are drawn from."""
        counted = max(0, step - self._async_level)
        with self._lock:
            found = self._pools.get(counted)
            if found is None:
                found = self._pools[counted] = self._made(counted)
            self._pools.move_to_end(counted)
            while len(self._pools) > KEPT_POOLS:
                self._pools.popitem(last=False)
            return found

    def _made(self, counted: int) -> Pools:
        if counted < self._counted:
            self._rates, self._counted = SolveRates(self._rule, self._task_count), 0
        while self._counted < counted:
            votes = [Solved(prompt, rate) for prompt, rate in self._read_batch(self._counted).solved]
            self._rates.add(votes)
            self._counted += 1
        return self._rates.pools()


def pools_of_steps(
    curriculum: Curriculum | None, task_count: int, async_level: int, read_batch: Callable[[int], StepBatch]
) -> StepPools | None:
    """The pools of a run's steps; None in a run without a curriculum."""
    return None if curriculum is None else StepPools(curriculum.rule, task_count, async_level, read_batch)
