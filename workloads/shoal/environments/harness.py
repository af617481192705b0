"""Tasks of lm-evaluation-harness as an environment: `lm-eval:gsm8k_cot@REVISION`, scored by the harness's own filters and metrics.

What stands behind the colon names the task (`harness_names`). `prepare` and `shoal eval` load it with its data set, render each document's prompt and
write into the task what scoring needs (`harness_import`); workers and validators take that from the task table. They never read the data set, a YAML
file or code that is not the installed package's. The reward is the main metric's value for the one answer, from 0 to 1.
"""

from __future__ import annotations

from importlib.util import find_spec

from shoal.contracts.tasks import Task
from shoal.environments.base import Score, Unscorable, length_suffix
from shoal.environments.harness_names import HarnessTask
from shoal.environments.math import Math, problem_text
from shoal.rewards.cpu_time import Took
from shoal.rewards.harness import NoValue, shared_harness_judge
from shoal.rewards.harness.scoring import TERMS


class Harness:
    """See the module's page. Without a task's name it says how to name one."""

    parameter = "TASK[,METRIC[,FILTER]][@REVISION]"
    version = "1"
    sources = (
        "shoal.environments.harness_import",
        "shoal.environments.harness_names",
        "shoal.environments.math",
        "shoal.rewards.harness",
        "shoal.rewards.judging",
        "shoal.rewards.cpu_time",
        "shoal.rewards.sandbox.inside",
    )
    requires = ("lm-eval", *Math.requires)
    extra = "lm-eval"
    judged_apart = True

    def __init__(self, wanted: str | None = None) -> None:
        self._wanted = None if wanted is None else HarnessTask.parse(wanted)
        self.name = "lm-eval" if wanted is None else f"lm-eval:{wanted}"
        self._documents: list[Task] | None = None

    def task_count(self) -> int:
        """Documents of the task. Loads its data set. ValueError when they are not available."""
        return len(self._all())

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` documents of the task, in the data set's order; which ones, the seed decides. ValueError when they are not available or cannot be
        scored like this."""
        from shoal.environments.harness_import import chosen

        return chosen(self._all(), count, seed, self.name)

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The harness's prompt, few-shot examples included. The request for a length stands before it: its end is what the answer continues."""
        wish = length_suffix(target_length).strip()
        return f"{wish}\n\n{problem_text(task)}" if wish else problem_text(task)

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """The metric's value. What the harness's own functions cannot score in time is nobody's zero."""
        info = task.verification_info
        terms = {name: info[name] for name in TERMS if name in info}
        took = Took()
        found = shared_harness_judge().value(terms, completion, took)
        if isinstance(found, NoValue):
            return Unscorable(f"task {task.problem_id}: {found.reason}", took.seconds)
        return Score(found, f"{terms['metric']} is {found:g}", took.seconds)

    def gold(self, task: Task) -> str:
        """The document's target, as few-shot examples show it. A task's own filter may miss it; ValueError where the target is not text."""
        target = task.metadata.get("gold")
        if not isinstance(target, str):
            raise ValueError(f"task {task.problem_id}: metadata.gold is missing, so there is no gold answer")
        return target

    def broken(self, task: Task) -> str:
        """No answer at all."""
        return ""

    def problems(self) -> list[str]:
        """Software that this machine lacks."""
        missing = [name for name in ("lm_eval", "math_verify") if find_spec(name) is None]
        return [f"{name} cannot be imported; install the extra `lm-eval` of shoal" for name in missing]

    def _all(self) -> list[Task]:
        if self._wanted is None:
            raise ValueError(
                f"lm-eval: a task must be named: lm-eval:{self.parameter}, such as lm-eval:gsm8k_cot@REVISION"
            )
        if missing := self.problems():
            raise ValueError("; ".join(missing))
        if self._documents is None:
            from shoal.environments.harness_import import documents

            self._documents = documents(self._wanted, shared_harness_judge())
        return self._documents
