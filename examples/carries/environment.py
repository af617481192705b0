"""The environment carries: two-digit additions whose units carry, the ones that a learner gets wrong.

All but the choice of tasks is the shipped environment `arithmetic`: prompt, score, gold and broken answers.
docs/journeys/my-model-on-one-gpu.md puts this file into a package that `shoal env new carries` made.
"""

from shoal.contracts.tasks import Task
from shoal.environments.arithmetic import OPERANDS, Arithmetic, operands


class Carries(Arithmetic):
    """`verification_info` of a task is `{"answer": "81"}`."""

    name = "carries"
    version = "1"
    sources = ("shoal.environments.arithmetic",)  # what a score depends on besides this class: the digest covers it too

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` of the additions whose units make ten or more, without repeats."""
        found = [task for task in super().tasks(OPERANDS**2, seed) if sum(n % 10 for n in operands(task)) >= 10]
        if not 1 <= count <= len(found):
            raise ValueError(f"carries: {count} tasks requested; allowed: 1 to {len(found)} (there are no more)")
        return found[:count]
