"""Try an installed environment in a process of its own and print what was found, as JSON: the inside of `checking`.

`python -m shoal.environments.probe NAME COUNT SEED [SECONDS]`; with SECONDS it is timed instead. Everything that a run asks of an environment is
asked of a few tasks here: tasks that survive the task table, prompts, a gold answer that scores 1, a broken one that scores 0; and any text at all
that gets a score without an exception.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.base import Environment, Score, Unscorable, digest, load
from shoal.environments.results import EnvironmentBroke, is_repeatable
from shoal.environments.turns import TURN_END
from shoal.environments.verifiers_names import ENVIRONMENT as VERIFIERS

HOSTILE = (
    "",
    " ",
    "\x00",
    "\ud800",
    "no answer at all",
    "\\boxed{",
    "```python\n",
    "٤٢",
    "x" * 1_000_000,
    "{" * 100_000,
    "\\boxed{9^{9^{9^9}}}",
)
"""Completions of a policy that is not a good, or means harm. None may raise; none is right."""
MOST_FAULTS = 20
TARGET_LENGTH = 1000


def probe(environment: Environment, count: int, seed: int) -> dict[str, Any]:
    """Facts about an environment, its faults among them (a line each)."""
    problems = list(getattr(environment, "problems", list)())
    if problems:
        return {"faults": [f"a dependency is missing: {problem}" for problem in problems]}
    tasks = environment.tasks(count, seed)
    scores = hashlib.sha256()
    faults: list[str] = list(_about_tasks(environment, tasks, count, seed))
    slowest = 0.0
    for task in tasks:
        for what, completion, wanted in _completions(environment, task):
            began = time.perf_counter()
            try:
                score = environment.score(task, completion)
                twice = wanted is not None and is_repeatable(environment, task)
                again = environment.score(task, completion) if twice else score
            except Exception as error:  # whatever it is, it is the fault that is looked for
                faults.append(f"{task.problem_id}: score() raised {type(error).__name__} for {what}: {error}"[:500])
                continue
            if isinstance(score, EnvironmentBroke):
                faults.append(f"{task.problem_id}: {what}: {score.reason}"[:500])
                continue
            faults += _about_answer(environment, task, what, completion, wanted)
            slowest = max(slowest, time.perf_counter() - began)
            if not is_repeatable(environment, task):
                if not isinstance(score, Unscorable) and not 0.0 <= score.task_reward <= 1.0:
                    faults.append(
                        f"{task.problem_id}: the task reward of {what} is {score.task_reward}; allowed: 0 to 1"
                    )
                continue
            scores.update(repr(_reward(score)).encode())
            faults += _about_score(task, what, wanted, score, again)
            if getattr(environment, "rewards_turns", False) and isinstance(score, Score):
                fault = score.turn_fault(completion.count(TURN_END) + 1)
                faults += [] if fault is None else [f"{task.problem_id}: {what}: {fault}"]
        if len(faults) >= MOST_FAULTS:
            break
    return {
        "version": environment.version,
        "digest": digest(environment),
        "tasks": len(tasks),
        "tasks_digest": tasks_digest(tasks),
        "scores_digest": scores.hexdigest(),
        "slowest_score_seconds": round(slowest, 3),
        "faults": faults[:MOST_FAULTS],
    }


def measured(name: str, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """Seconds that loading and making tasks take, and episodes a second: the prompt of a task, an answer to it and its score, one after the other.

    The answer is the gold one, or where none is told a text of 400 characters. `broken`: why an answer could not be scored, if one could not.
    """
    began = time.perf_counter()
    environment = load(name)
    loaded = time.perf_counter()
    tasks = environment.tasks(count, seed)
    made = time.perf_counter()
    answers = [_gold(environment, task) or "An answer. " * 36 for task in tasks]
    done, scoring, broken, until = 0, 0.0, "", time.perf_counter() + seconds
    started = time.perf_counter()
    while time.perf_counter() < until or done == 0:
        task = tasks[done % len(tasks)]
        environment.prompt(task, TARGET_LENGTH)
        asked = time.perf_counter()
        score = environment.score(task, answers[done % len(tasks)])
        scoring += time.perf_counter() - asked
        done += 1
        if isinstance(score, Unscorable):
            broken = score.reason[:500]
            break
    now = time.perf_counter()
    return {
        "load_seconds": round(loaded - began, 3),
        "tasks_a_second": round(len(tasks) / (made - loaded), 1),
        "episodes_a_second": round(done / (now - started), 1),
        "scores_a_second": round(done / scoring, 1),
        "broken": broken,
    }


def _about_tasks(environment: Environment, tasks: list[Task], count: int, seed: int) -> Iterator[str]:
    if len(tasks) != count:
        yield f"tasks({count}, {seed}) gave {len(tasks)} tasks"
    if tasks_digest(tasks) != tasks_digest(environment.tasks(count, seed)):
        yield f"tasks({count}, {seed}) gave different tasks the second time"
    try:
        read_tasks(write_tasks(tasks))
    except ValueError as error:
        yield f"the tasks do not survive the task table: {error}"
    for task in tasks:
        try:
            plain, long = environment.prompt(task, None), environment.prompt(task, TARGET_LENGTH)
        except Exception as error:
            yield f"{task.problem_id}: prompt() raised {type(error).__name__}: {error}"
            continue
        if not isinstance(plain, str) or not plain:
            yield f"{task.problem_id}: the prompt is empty"
        if str(TARGET_LENGTH) not in long:
            yield f"{task.problem_id}: a target length of {TARGET_LENGTH} is not in the prompt; add length_suffix(target_length)"


def _completions(environment: Environment, task: Task) -> Iterator[tuple[str, str, float | None]]:
    """Completions to score, and the reward that each must get (None: any below 1)."""
    gold = _gold(environment, task)
    if gold is not None:
        yield "the gold answer", gold, 1.0
    broken = getattr(environment, "broken", None)
    if broken is not None:
        yield "the broken gold answer", broken(task), 0.0
    for text in HOSTILE:
        yield f"the completion {text[:12]!r}", text, None


def _gold(environment: Environment, task: Task) -> str | None:
    """None where a package of verifiers tells no right answer. Any other environment has to: what it raises goes through."""
    try:
        return environment.gold(task)
    except ValueError:
        if environment.name.partition(":")[0] != VERIFIERS:
            raise
        return None


def _about_score(
    task: Task, what: str, wanted: float | None, score: Score | Unscorable, again: Score | Unscorable
) -> Iterator[str]:
    if not isinstance(score, Score | Unscorable):
        yield f"{task.problem_id}: score() gave {type(score).__name__}; allowed: Score or Unscorable"
        return
    if _reward(score) != _reward(again):
        yield f"{task.problem_id}: {what} was scored {_reward(score)} and then {_reward(again)}"
    if isinstance(score, Score) and score.task_reward not in (0.0, 1.0):
        yield f"{task.problem_id}: the task reward of {what} is {score.task_reward}; allowed: 0 or 1"
    if wanted is not None and _reward(score) != wanted:
        why = score.detail if isinstance(score, Score) else f"unscorable: {score.reason}"
        yield f"{task.problem_id}: {what} must score {wanted:.0f} ({why})"
    if wanted is None and _reward(score) == 1.0:
        yield f"{task.problem_id}: {what} scores 1"


def _about_answer(
    environment: Environment, task: Task, what: str, completion: str, wanted: float | None
) -> Iterator[str]:
    has_answer = getattr(environment, "has_answer", None)
    if has_answer is None:
        return
    try:
        found = has_answer(task, completion)
    except Exception as error:
        yield f"{task.problem_id}: has_answer() raised {type(error).__name__} for {what}: {error}"[:500]
        return
    if wanted == 1.0 and not found:
        yield f"{task.problem_id}: has_answer() finds no answer in {what}"


def _reward(score: Score | Unscorable) -> float | None:
    return score.task_reward if isinstance(score, Score) else None


def main() -> None:
    name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    timed = [float(each) for each in sys.argv[4:]]
    found = measured(name, count, seed, *timed) if timed else probe(load(name), count, seed)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
