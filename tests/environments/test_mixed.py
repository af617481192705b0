"""Several environments as one: each task is asked and judged by the environment that its task type names."""

import json
from pathlib import Path

import pytest

from samples import run_config
from shoal import environments
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.recipe import TaskSource
from shoal.environments.base import BadEnvironment, Score, Unscorable, digest, load, runs_programs
from shoal.environments.checking import check
from shoal.environments.code import Code
from shoal.environments.math import Math
from shoal.environments.task_source import find_tasks

MIXED = "mixed:math+code"


def test_the_mathematics_and_the_code_of_one_data_set_are_judged_each_by_its_own(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "m", "task_type": "verifiable_math", "prompt": "1/2 + 1/4?", "verification_info": '{"ground_truth": "3/4"}'},
        {"problem_id": "m2", "task_type": "verifiable_math", "prompt": "?", "verification_info": '{"ground_truth": "???"}'},
        {
            "problem_id": "c", "task_type": "prime_rl_code", "prompt": "Add.",
            "verification_info": '{"test_cases": {"inputs": ["1 2"], "outputs": ["3"]}}',
        },
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = TaskSource(environment=MIXED, dataset=DatasetSource(path=str(path), max_refused_share=0.5))
    mixed = environments.load(MIXED)
    found = find_tasks(run_config(tasks=source), mixed, tmp_path)
    problem, program = found.tasks
    assert (found.proven, found.refused.first) == (1, {"the gold answer is not an expression": ["m2"]})
    assert mixed.prompt(problem, 500) == Math().prompt(problem, 500)
    assert mixed.prompt(program, None) == Code().prompt(program, None)
    assert mixed.score(problem, r"\boxed{0.75}") == Score(1.0, "the same number")
    assert mixed.score(program, "```python\nprint(3)\n```") == Score(1.0, "all 1 tests pass")
    assert mixed.score(program, r"\boxed{0.75}").task_reward == 0.0
    assert runs_programs(mixed)
    assert [runs_programs(mixed, task) for task in found.tasks] == [False, True]


def test_its_own_tasks_are_those_of_its_parts_in_turn() -> None:
    made = load(MIXED).tasks(5, 0)
    assert [task.task_type for task in made] == ["math", "code", "math", "code", "math"]
    assert made[0].problem_id == f"math-{Math().tasks(3, 0)[0].problem_id}"
    assert [load(MIXED).score(task, load(MIXED).gold(task)).task_reward for task in made] == [1.0] * 5
    with pytest.raises(ValueError, match="1 tasks asked for; allowed: at least one of each of 2 parts"):
        load(MIXED).tasks(1, 0)


def test_it_is_fit_for_a_run() -> None:
    report = check(MIXED, 6, 0)
    assert report.faults == ()


def test_its_digest_covers_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(load(MIXED))
    assert before not in (digest(load("mixed:code+math")), digest(load("mixed:math+ifeval")))
    mixed = load(MIXED)
    assert {"shoal.environments.math", "shoal.environments.code", "shoal.rewards.sandbox", "shoal.rewards.math"} <= set(
        mixed.sources
    )
    monkeypatch.setattr(Math, "version", "2")
    load.cache_clear()
    assert digest(load(MIXED)) != before
    load.cache_clear()


def test_a_task_of_no_part_is_unscorable() -> None:
    [task] = load("ifeval").tasks(1, 0)
    found = load(MIXED).score(task, "")
    assert isinstance(found, Unscorable)
    assert "has task_type 'ifeval', which names none of math, code" in found.reason


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mixed:math", "name 2 to 8 different environments with . between them, as in mixed:math.code"),
        ("mixed:math+math", "name 2 to 8 different environments"),
        ("mixed:math+mixed", "name 2 to 8 different environments"),
        ("mixed:math+maths", "environment 'maths' is not installed here"),
        ("mixed:math+tool", "tool has tools, which a mixture cannot offer to some tasks"),
    ],
)
def test_what_cannot_be_mixed_is_refused(name: str, problem: str) -> None:
    with pytest.raises(BadEnvironment, match=problem):
        load(name)
