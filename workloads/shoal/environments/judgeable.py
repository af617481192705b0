"""Which tasks of a data set an environment can ask and judge, proven before the run: each gold answer by an equivalent answer.

In: tasks, the environment, the longest prompt, and a store for what was found out. Out: `Fit`. A gold answer that cannot be read makes right
answers unscorable, so such tasks are refused. Numbers take a few microseconds, other expressions a question to one of the judge's processes, 10 to
300 ms: 200 golds of mathematics a second on two cores, 24 minutes for 285,000. Findings are kept by the digest of tasks and environment, `AT_ONCE`
tasks an object, so that a prepare that was stopped does not begin again. Called by `task_source`.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pydantic import ValidationError

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.tasks import JudgedTasks, Task, tasks_digest
from shoal.environments.base import Environment, Unscorable, digest, is_repeatable
from shoal.environments.datasets import BadDataset, Refusals
from shoal.rewards.sandbox import SandboxFailed, slots_here
from shoal.storage import NotFound, Store

AT_ONCE = 4096


@dataclass
class Fit:
    """Tasks that can be used, those that cannot, and how many gold answers were proven."""

    tasks: list[Task] = field(default_factory=list)
    refused: Refusals = field(default_factory=Refusals)
    proven: int = 0


def fitting(
    tasks: Sequence[Task],
    environment: Environment,
    count: int | None,
    longest_prompt: int | None = None,
    found_before: Sequence[Store] = (),
    most_proofs: int | None = None,
) -> Fit:
    """The first `count` tasks that the environment can ask and judge. BadDataset, with the first one's reason, when there is none.

    Raises SandboxFailed where solutions cannot be run here, which says nothing about them and is not kept.

    `longest_prompt`: characters that can ever fit. `found_before`: stores that keep what is found out; the first one is written.
    `most_proofs`: golds that are looked at; the tasks after them are taken as they are.
    """
    fit = Fit()
    first = ""
    for start in range(0, len(tasks), AT_ONCE):
        asked = []
        for task in tasks[start : start + AT_ONCE]:
            if longest_prompt is not None and _characters(task) > longest_prompt:
                fit.refused.add(f"with a prompt of more than {longest_prompt} characters", task.problem_id)
            elif (problem := _unfit(task, environment)) is not None:
                fit.refused.add(f"cannot be judged by environment {environment.name!r}", task.problem_id)
                first = first or problem
            else:
                asked.append(task)
        judged = _judged(asked[:most_proofs], environment, found_before)
        most_proofs = None if most_proofs is None else max(0, most_proofs - len(asked))
        fit.proven += judged.proven
        for task in asked:
            if (flaw := judged.flaws.get(task.problem_id)) is not None:
                fit.refused.add(flaw, task.problem_id)
                first = first or f"task {task.problem_id}: {flaw}"
            elif count is None or len(fit.tasks) < count:
                fit.tasks.append(task)
        if len(fit.tasks) == count:
            break
    if not fit.tasks:
        why = first or str(fit.refused)
        raise BadDataset(f"environment {environment.name!r} can judge none of {len(tasks)} tasks; the first: {why}")
    return fit


def _characters(task: Task) -> int:
    return len(task.prompt) if isinstance(task.prompt, str) else sum(len(message.content) for message in task.prompt)


def _unfit(task: Task, environment: Environment) -> str | None:
    """Why the environment cannot use a task, or None. An empty answer is wrong, and unscorable only where the task itself is at fault."""
    try:
        environment.prompt(task, None)
    except Exception as error:  # an environment is written for its own tasks; what it makes of others is its own
        return f"task {task.problem_id}: it has no prompt for it: {type(error).__name__}: {str(error)[:200]}"
    if not is_repeatable(environment, task):
        return None  # prepare has no network, and a live judge is not asked about every task
    try:
        scored = environment.score(task, "")
    except Exception as error:  # as above: a data set's `verification_info` holds anything
        return f"task {task.problem_id}: it cannot be scored: {type(error).__name__}: {str(error)[:200]}"
    return scored.reason if isinstance(scored, Unscorable) else None


def _judged(tasks: Sequence[Task], environment: Environment, found_before: Sequence[Store]) -> JudgedTasks:
    """Which gold answers can be judged, from a store, the last one first, or found out now."""
    prove = getattr(environment, "flaw", None)
    if prove is None or not tasks:
        return JudgedTasks(proven=0)
    key = keys.judged_tasks(hashlib.sha256(f"{digest(environment)} {tasks_digest(tasks)}".encode()).hexdigest())
    for store in reversed(found_before):
        try:
            return JudgedTasks.from_json(store.get(key))
        except NotFound:
            pass
        except ValidationError as error:
            telemetry.get_logger().warning(
                "what was found out before is not readable", key=key, mistakes=error.error_count()
            )
    flaws: dict[str, str] = {}
    proven, sure = 0, True

    def one(task: Task) -> tuple[str | None, bool, bool]:
        """The flaw, whether it was proven that there is none, and whether another try would find the same."""
        try:
            flaw = prove(task)
            return flaw, flaw is None, True
        except ValueError:
            return None, False, True
        except SandboxFailed:
            raise
        except RuntimeError as error:
            return f"with a gold answer that no judge could be asked about: {str(error)[:200]}", False, False

    with ThreadPoolExecutor(slots_here(), thread_name_prefix="prove") as threads:
        for task, (flaw, right, again) in zip(tasks, threads.map(one, tasks), strict=True):
            if flaw is not None:
                flaws[task.problem_id] = flaw
            proven += right
            sure &= again
    judged = JudgedTasks(flaws=flaws, proven=proven)
    if found_before and sure:
        found_before[0].put(key, judged.to_json())
    return judged
