"""A mixture of tasks in prepare: each source asked and judged in its own way, all in one table, and what cannot be mixed refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_prepare import config
from test_prepared_benchmarks import scored

from samples import run_config
from shoal.contracts import keys
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.mixture import SourceTerms
from shoal.contracts.model_source import ModelSource
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import Task, TaskReport, tasks_digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import BadEnvironment, Score, Unscorable, digest, load, runs_programs
from shoal.environments.code import Code
from shoal.environments.math import Math
from shoal.environments.mixture import Mixture, environment_of, of_source
from shoal.environments.prepare import prepare
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.task_source import RunSource, find_tasks
from shoal.storage import Store

SUMS = {"name": "sums", "environment": "arithmetic", "count": 20, "weight": 3}
PROGRAMS = {"name": "programs", "environment": "code", "count": 6, "weight": 1}


def mixed(*sources: dict[str, Any], **tasks: Any) -> TaskSource:
    return TaskSource.model_validate({"mixture": list(sources), **tasks})


def run_on(model: ModelSource, tasks: TaskSource, **changes: Any) -> RunConfig:
    fields = {"recipe": Recipe(max_sequence_length=1024), "sampling": Sampling(groups_per_submission=4)}
    return config(model=model, tasks=tasks, **(fields | changes))


def test_each_task_is_asked_and_judged_by_the_environment_of_its_source() -> None:
    both = Mixture({"m": load("math"), "c": load("code")})
    problem, program = of_source(Math().tasks(1, 0)[0], "m"), of_source(Code().tasks(1, 0)[0], "c")
    assert both.prompt(problem, 500) == Math().prompt(problem, 500)
    assert both.prompt(program, None) == Code().prompt(program, None)
    assert both.score(problem, both.gold(problem)) == Score(1.0, Math().score(problem, Math().gold(problem)).detail)
    assert both.score(program, r"\boxed{0.75}").task_reward == 0.0
    assert runs_programs(both)
    assert [runs_programs(both, task) for task in (problem, program)] == [False, True]
    assert both.has_answer(problem, r"\boxed{3}")
    found = both.score(Arithmetic().tasks(1, 0)[0], "")
    assert isinstance(found, Unscorable)
    assert "task_type 'arithmetic', which names no source of the mixture; allowed: m, c" in found.reason


def test_its_digest_covers_its_sources_and_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [SourceTerms(name=name, environment=name, task_count=1, weight=1) for name in ("math", "code")]
    before = digest(environment_of("mixture", terms))
    renamed = [terms[0].model_copy(update={"name": "numbers"}), terms[1]]
    assert before != digest(environment_of("mixture", renamed))
    assert before == digest(environment_of("mixture", [terms[0].model_copy(update={"weight": 7}), terms[1]]))
    monkeypatch.setattr(Math, "version", "2")
    load.cache_clear()
    assert digest(environment_of("mixture", terms)) != before
    load.cache_clear()


def test_problem_ids_stay_within_their_limit() -> None:
    long = Task(problem_id="a" * 253, task_type="x", prompt="?")
    assert len(of_source(long, "s").problem_id) == 66
    assert (
        of_source(long, "s").problem_id != of_source(long.model_copy(update={"problem_id": "b" * 253}), "s").problem_id
    )


def test_one_table_has_the_tasks_of_all_sources_with_their_own_prompts_and_lengths(
    store: Store,
    tmp_path: Path,
    base: ModelSource,
) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [{"q": f"What is {n}+1?", "a": str(n + 1), "kind": "easy" if n % 2 else "hard"} for n in range(10)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in lines))
    data = {
        "path": str(rows),
        "columns": {"prompt": "q", "answer": "a"},
        "where": [{"column": "kind", "oneOf": ["easy"]}],
    }
    tasks = mixed(
        {**SUMS, "lengthTargets": [16]},
        {"name": "data", "environment": "math", "dataset": data, "prompt": {"assistantPrefix": "So: "}},
        PROGRAMS,
        prompt={"assistantPrefix": "Well: "},
    )
    done = prepare(run_on(base, tasks, length_reward=LengthReward(targets=[20, 24])), store, tmp_path / "scratch")
    table = read_tasks(store.get(keys.task_table(done.tasks_digest)))
    assert tasks_digest(table) == done.tasks_digest
    assert [(each.name, each.environment, each.task_count, each.weight, each.targets) for each in done.mixture] == [
        ("sums", "arithmetic", 20, 3, [16]),
        ("data", "math", 5, 1, []),
        ("programs", "code", 6, 1, []),
    ]
    assert [task.task_type for task in table] == ["sums"] * 20 + ["data"] * 5 + ["programs"] * 6
    assert len({task.problem_id for task in table}) == len(table) == done.task_count
    environment = environment_of(done.environment, done.mixture)
    assert digest(environment) == done.environment_digest
    assert done.prompt is not None
    assert set(done.prompt.by_task_type) == {"data"}
    tokenizer = load_tokenizer(Path(str(base.path)))
    ends = [
        tokenizer.decode(prompt_tokens(tokenizer, environment, task, 16, done.prompt))[-4:]
        for task in (table[0], table[20], table[25])
    ]
    assert ends == ["ll: ", "So: ", "ll: "]
    report = TaskReport.from_json(store.get(keys.TASK_REPORT))
    assert (report.rows, report.tasks, set(report.by_source)) == (10, 5, {"data"})
    # What prepare leaves is what it reads again.
    assert Prepared.from_json(done.to_json()) == done


def test_sources_of_one_environment_have_different_tasks_which_stay_when_another_source_comes(tmp_path: Path) -> None:
    two = run_config(tasks=mixed(SUMS, {**SUMS, "name": "more"}))
    first, second = (find_tasks(two, each, tmp_path).tasks for each in RunSource.of_run(two.tasks))
    assert {task.prompt for task in first} != {task.prompt for task in second}
    one = run_config(tasks=mixed(SUMS))
    assert find_tasks(one, RunSource.of_run(one.tasks)[0], tmp_path).tasks == first


def test_a_benchmark_may_name_a_source(store: Store, tmp_path: Path, base: ModelSource) -> None:
    asked = {**SUMS, "prompt": {"assistantPrefix": "So: "}}
    changes = {"tasks": mixed(asked, PROGRAMS), "recipe": Recipe(max_sequence_length=1024)}
    run = scored(base, {"name": "held-out", "tasks": {"source": "sums", "count": 8}}, **changes)
    [pinned] = prepare(run, store, tmp_path / "scratch").benchmarks
    assert (pinned.environment, pinned.task_count) == ("arithmetic", 8)
    assert pinned.prompt is not None
    assert pinned.prompt.assistant_prefix == "So: "


@pytest.mark.parametrize(
    ("sources", "changes", "problem"),
    [
        (
            [SUMS, {**PROGRAMS, "environment": "tool"}],
            {},
            "source 'programs': environment 'tool' has tools, which a mixture",
        ),
        ([SUMS, {**PROGRAMS, "environment": "chess"}], {}, "environment 'chess' is not installed here"),
        ([{**SUMS, "count": 2}, PROGRAMS], {}, "spec.tasks.mixture, sums: there are 2 tasks; a submission has up to 3"),
        (
            [SUMS, {"name": "none", "environment": "math", "dataset": {"path": "/nowhere"}}],
            {},
            "spec.tasks.mixture, none.dataset: path: /nowhere is neither file nor folder",
        ),
        (
            [SUMS, {**PROGRAMS, "prompt": {"template": "Chat"}}],
            {},
            "spec.tasks.mixture, programs.prompt: template: the tokenizer has no chat template",
        ),
        (
            [SUMS, {**PROGRAMS, "prompt": {"system": "Be brief."}}],
            {},
            "spec.tasks.mixture, programs.prompt: system: ",
        ),
        (
            [SUMS, PROGRAMS],
            {"recipe": Recipe(max_sequence_length=96)},
            "spec.tasks.mixture, programs.prompt: none of 6 tasks",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_the_name_of_the_source(
    store: Store,
    tmp_path: Path,
    base: ModelSource,
    sources: list[dict[str, Any]],
    changes: dict[str, Any],
    problem: str,
) -> None:
    with pytest.raises((CannotPrepare, BadEnvironment)) as caught:
        prepare(run_on(base, mixed(*sources), **changes), store, tmp_path / "scratch")
    assert problem in str(caught.value)
    assert not store.exists(keys.PREPARED)


def test_a_source_that_no_row_is_left_of_is_refused(store: Store, tmp_path: Path, base: ModelSource) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "1+1?", "a": "2", "kind": "easy"}\n')
    data = {
        "path": str(rows),
        "columns": {"prompt": "q", "answer": "a"},
        "where": [{"column": "kind", "oneOf": ["hard"]}],
    }
    with pytest.raises(CannotPrepare, match=r"spec\.tasks\.mixture, data\.dataset: .*"):
        prepare(
            run_on(base, mixed(SUMS, {"name": "data", "environment": "math", "dataset": data})),
            store,
            tmp_path / "scratch",
        )


def test_a_generated_model_needs_arithmetic_in_every_source(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        CannotPrepare,
        match=r"made for the tasks of 'arithmetic', spec\.tasks\.mixture, programs\.environment is 'code'",
    ):
        prepare(config(tasks=mixed(SUMS, PROGRAMS)), store, tmp_path / "scratch")
