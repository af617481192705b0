"""The math environment: gold answers score 1, broken ones 0, and what cannot be decided is nobody's zero."""

import json
import subprocess
import sys

import pytest

from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import ChatMessage, Task
from shoal.environments import Score, Unscorable, digest, load
from shoal.environments import math as math_module
from shoal.environments.math import INSTRUCTION, KINDS, Math
from shoal.rewards.cpu_time import Took
from shoal.rewards.math import Undecided

ENVIRONMENT = Math()
TASKS = ENVIRONMENT.tasks(2 * len(KINDS), seed=1)


def test_every_gold_answer_scores_one_and_every_broken_one_zero() -> None:
    assert {task.metadata["kind"] for task in TASKS} == {kind for kind, _ in KINDS}
    for task in TASKS:
        assert ENVIRONMENT.score(task, ENVIRONMENT.gold(task)).task_reward == 1.0, task
        assert ENVIRONMENT.score(task, ENVIRONMENT.broken(task)).task_reward == 0.0, task


def test_a_completion_without_an_answer_scores_zero() -> None:
    assert ENVIRONMENT.score(TASKS[0], "I do not know.") == Score(
        0.0, "there is no final answer, neither in a box nor in words"
    )


def test_the_prompt_says_where_the_answer_goes() -> None:
    assert ENVIRONMENT.prompt(TASKS[0], 1000) == (
        f"{TASKS[0].prompt}\n{INSTRUCTION} Think for 1000 tokens before giving a response.\n\n"
    )
    chat = TASKS[0].model_copy(update={"prompt": [ChatMessage(role="user", content="1+1?")]})
    assert ENVIRONMENT.prompt(chat, None) == f"1+1?\n{INSTRUCTION}\n\n"


@pytest.mark.parametrize("info", [{}, {"answer": ""}, {"answer": None}, {"answer": ["4"]}, {"answer": True}])
def test_a_task_without_a_usable_answer_is_unscorable(info: dict[str, object]) -> None:
    task = Task(problem_id="p", task_type="math", prompt="?", verification_info=info)
    found = ENVIRONMENT.score(task, r"\boxed{4}")
    assert isinstance(found, Unscorable)
    assert found.reason == "task p: verification_info.answer is missing; allowed: a text or a number"


@pytest.mark.parametrize("info", [{"answer": "4"}, {"answer": 4}, {"ground_truth": "4"}])
def test_answers_of_the_usual_data_sets_are_read(info: dict[str, object]) -> None:
    task = Task(problem_id="p", task_type="math", prompt="?", verification_info=info)
    assert ENVIRONMENT.score(task, r"\boxed{4.0}").task_reward == 1.0


def test_what_cannot_be_decided_is_unscorable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def equal(self, gold: str, answer: str, took: Took) -> Undecided:
            return Undecided("sympy did not decide within 5 s of CPU time")

    monkeypatch.setattr(math_module, "shared_judge", Slow)
    assert ENVIRONMENT.score(TASKS[0], r"\boxed{1}") == Unscorable(
        f"task {TASKS[0].problem_id}: sympy did not decide within 5 s of CPU time"
    )


def test_tasks_are_the_same_for_the_same_seed_without_repeats_and_survive_the_task_table() -> None:
    tasks = ENVIRONMENT.tasks(500, seed=7)
    assert tasks == ENVIRONMENT.tasks(500, seed=7) != ENVIRONMENT.tasks(500, seed=8)
    assert len({task.prompt for task in tasks}) == 500
    assert read_tasks(write_tasks(tasks)) == tasks


def test_the_digest_pins_the_judge_and_the_versions_of_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(load("math"))
    monkeypatch.setattr(Math, "requires", ("math-verify",))
    assert digest(Math()) != before
    monkeypatch.setattr(Math, "requires", ("no-such-distribution",))
    with pytest.raises(ValueError, match="environment 'math' needs no-such-distribution, which is not installed"):
        digest(Math())
    monkeypatch.setattr(Math, "requires", ())
    monkeypatch.setattr(Math, "sources", ("shoal.no_such_module",))
    with pytest.raises(ValueError, match=r"its source shoal.no_such_module is missing and cannot be pinned"):
        digest(Math())


def test_the_digest_has_the_version_of_every_package_that_judging_loads() -> None:
    judges = (
        "import json, sys\nfrom importlib.metadata import packages_distributions as found\nfrom shoal.rewards.math.worker import _load\n"
        "before = {*sys.modules}\nassert _load()([['1/2', '0.5']])[0] == 'equal'\nof = found()\n"
        "print(json.dumps([each for name in {*sys.modules} - before for each in of.get(name, ())]))"
    )
    done = subprocess.run([sys.executable, "-c", judges], capture_output=True, text=True, check=True, timeout=120)
    loaded = {name.replace("_", "-") for name in json.loads(done.stdout)}
    assert "sympy" in loaded
    assert loaded <= set(Math.requires)


def test_nothing_is_missing_here() -> None:
    assert ENVIRONMENT.problems() == []
