"""Gold answers are proven before a run, by an equivalent answer, by value. What cannot be judged is refused, counted and named, once."""

from pathlib import Path

import pytest

from shoal.contracts.tasks import Task
from shoal.environments.base import Unscorable
from shoal.environments.code import Code
from shoal.environments.datasets import BadDataset
from shoal.environments.judgeable import fitting
from shoal.environments.math import Math
from shoal.rewards.gold import gold_flaw
from shoal.rewards.math import MathJudge, shared_judge
from shoal.rewards.sandbox import NoIsolation, SandboxFailed
from shoal.rewards.sandbox.pool import ProgramPool
from shoal.storage import Store
from shoal.storage.store import open_folder

GOOD = [
    "42", "-3.5", r"\frac{3}{4}", "50\\%", r"12\text{ cm}", "1,000", "x+1", r"2\sqrt{3}", r"\frac{\pi}{2}", "(1,2)", "[1,2)", r"\{1,2\}", "x=5",
    "A", "3,4,5", r"\begin{pmatrix}1\\2\end{pmatrix}", r"(-\infty,3]", "all real numbers", "n(n+1)/2", "2^{2024}-1",
]  # fmt: skip
BAD = ["???", r"\frac{1}{2", "{", r"\sqrt{}", r"\int"]


@pytest.mark.parametrize("gold", GOOD)
def test_an_answer_that_can_be_judged_has_no_flaw(gold: str) -> None:
    assert gold_flaw(shared_judge(), gold) is None


@pytest.mark.parametrize("gold", BAD)
def test_an_answer_that_makes_others_unscorable_has_one(gold: str) -> None:
    task = problem(0, gold)
    assert Math().flaw(task) == "the gold answer is not an expression"
    assert isinstance(Math().score(task, r"\boxed{17}"), Unscorable), "it is refused for a reason"


def problem(number: int, answer: str) -> Task:
    return Task(problem_id=f"p{number}", task_type="math", prompt="?", verification_info={"answer": answer})


def test_what_cannot_be_judged_is_counted_by_reason_and_named(store: Store) -> None:
    tasks = [problem(number, gold) for number, gold in enumerate(["1", "???", "x+1", "{", "2", "1/0"])]
    found = fitting([*tasks, problem(9, "3").model_copy(update={"prompt": "?" * 101})], Math(), None, 100, [store])
    assert [task.problem_id for task in found.tasks] == ["p0", "p2", "p4"]
    assert found.proven == 3
    assert found.refused.first == {
        "the gold answer is not an expression": ["p1", "p3"],
        "the gold answer does not equal itself": ["p5"],
        "with a prompt of more than 100 characters": ["p9"],
    }
    assert str(found.refused).startswith("2 the gold answer is not an expression (p1, p3); 1 ")


def test_what_was_found_out_is_kept_by_digest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [problem(number, gold) for number, gold in enumerate(["x+1", "???"])]
    asked: list[str] = []
    real = gold_flaw

    def counted(judge: MathJudge, gold: str) -> str | None:
        asked.append(gold)
        return real(judge, gold)

    monkeypatch.setattr("shoal.environments.math.gold_flaw", counted)
    first = fitting(tasks, Math(), None, None, [store])
    again = fitting(tasks, Math(), None, None, [store])
    assert sorted(asked) == ["???", "x+1"]
    assert (again.tasks, again.refused, again.proven) == (first.tasks, first.refused, first.proven)
    fitting([*tasks, problem(3, "y")], Math(), None, None, [store])
    assert len(asked) == 5, "of other tasks nothing is known"
    [info] = [info for info in store.list("tasks/judged/") if b"???" not in store.get(info.key)][:1]
    store.put(info.key, b"damaged")
    assert fitting(tasks, Math(), None, None, [store]).proven == 1


def test_what_another_run_found_out_counts_and_is_not_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = open_folder(tmp_path / "other", "shoal/run-filter", deadline_seconds=5.0)
    tasks = [problem(number, gold) for number, gold in enumerate(["x+1", "???"])]
    first = fitting(tasks, Math(), None, None, [other])
    monkeypatch.setattr("shoal.environments.math.gold_flaw", lambda judge, gold: "another finding")
    again = fitting(tasks, Math(), None, None, [store, other])
    assert (again.tasks, again.refused) == (first.tasks, first.refused)
    assert not store.list("tasks/judged/")
    more = [*tasks, problem(3, "2")]
    with pytest.raises(BadDataset, match="another finding"):
        fitting(more, Math(), None, None, [store, other])
    assert (len(store.list("tasks/judged/")), len(other.list("tasks/judged/"))) == (1, 1)


def test_a_judge_that_cannot_be_had_is_no_finding_to_keep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(judge: MathJudge, gold: str) -> str | None:
        raise RuntimeError("a math worker was not up after 120 s")

    monkeypatch.setattr("shoal.environments.math.gold_flaw", gone)
    with pytest.raises(
        BadDataset, match="the first: task p0: with a gold answer that no judge could be asked about: a math worker"
    ):
        fitting([problem(0, "x+1")], Math(), None, None, [store])
    assert not store.list("tasks/judged/")


@pytest.mark.parametrize("error", [SandboxFailed("three sandboxes did not start"), NoIsolation("no walls here")])
def test_solutions_that_cannot_be_run_are_no_finding_and_end_the_try(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken() -> ProgramPool:
        raise error

    monkeypatch.setattr("shoal.environments.code.shared_pool", broken)
    with pytest.raises(SandboxFailed, match=f"task exercise-0: {error}"):
        fitting(Code().tasks(1, 0), Code(), None, None, [store])
    assert not store.list("tasks/judged/")


def test_no_more_is_judged_than_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.environments.judgeable.AT_ONCE", 2)
    asked: list[str] = []
    monkeypatch.setattr("shoal.environments.math.gold_flaw", lambda judge, gold: asked.append(gold))
    assert len(fitting([problem(number, str(number)) for number in range(9)], Math(), 3).tasks) == 3
    assert sorted(asked) == ["0", "1", "2", "3"]


def test_programs_without_a_solution_are_taken_unproven() -> None:
    task = Code().tasks(2, 0)[0].model_copy(update={"metadata": {}})
    found = fitting([task], Code(), None)
    assert (found.tasks, found.proven) == ([task], 0)
