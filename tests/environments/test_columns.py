"""Any data set by the names of its columns: joined, filtered, the final answer taken out, in an order by seed."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.contracts.datasets import AnswerExtraction, DatasetColumns, RowFilter
from shoal.contracts.tasks import Task
from shoal.environments.columns import BadColumns, filtered, mapped
from shoal.environments.datasets import BadDataset, Imported, Selection, import_files
from shoal.environments.rows import BadRow, Skipped

ROW = {
    "question": "Which is larger?",
    "options": ["2", "3"],
    "solution": r"Compare: \boxed{2} is less, so \boxed{3}. #### 3",
    "level": 4,
    "kind": "order",
    "checked": True,
    "extra": {"index": 7, "note": None},
    "final": ["3"],
}


def task(**columns: Any) -> Task:
    found = mapped(DatasetColumns(**({} if "template" in columns else {"prompt": "question"}), **columns))(ROW)
    assert isinstance(found, Task)
    return found


def answer(**extract: Any) -> str:
    return str(task(answer="solution", extract=AnswerExtraction(**extract)).verification_info["answer"])


def kept(**rule: Any) -> bool:
    return filtered([RowFilter(**rule)])(ROW) is None


def test_several_columns_are_joined_by_a_template() -> None:
    assert task(template="{question}\n{options}\n({extra.index}, {{x}}{extra.note})").prompt == (
        "Which is larger?\n2\n3\n(7, {x})"
    )


def test_a_dot_goes_into_an_object_and_one_value_in_a_list_is_that_value() -> None:
    found = task(answer="final", problem_id="extra.index", metadata=["kind"])
    assert (found.problem_id, found.verification_info, found.metadata) == ("7", {"answer": "3"}, {"kind": "order"})


@pytest.mark.parametrize(
    "extract", [{"after": "####"}, {"boxed": True}, {"pattern": r"so \\boxed\{(\d+)\}"}, {"pattern": r"\d+$"}]
)
def test_the_final_answer_is_taken_out_of_a_solution(extract: dict[str, Any]) -> None:
    assert answer(**extract) == "3"


def test_a_solution_without_a_final_answer_is_at_fault() -> None:
    columns = DatasetColumns(prompt="question", answer="solution", extract=AnswerExtraction(after="Answer:"))
    assert mapped(columns)(ROW) == Skipped("has no final answer where columns.extract looks in 'solution'", fault=True)


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        ({"column": "kind", "one_of": ["order", "sum"]}, True),
        ({"column": "kind", "one_of": ["sum"]}, False),
        ({"column": "kind", "none_of": ["order"]}, False),
        ({"column": "checked", "one_of": ["true"]}, True),
        ({"column": "level", "at_least": 4, "at_most": 5}, True),
        ({"column": "level", "at_least": 4.5}, False),
        ({"column": "level", "at_most": 3}, False),
        ({"column": "question", "matches": "^Which"}, True),
        ({"column": "question", "matches": "(?i)WHAT"}, False),
        ({"column": "extra.note", "none_of": ["x"]}, False),
    ],
)
def test_rows_are_kept_by_equality_range_and_pattern(rule: dict[str, Any], passes: bool) -> None:
    assert kept(**rule) is passes


def test_a_pattern_that_would_hang_other_engines_takes_no_time() -> None:
    found = filtered([RowFilter(column="question", matches="(a|aa)+$")])
    began = time.monotonic()
    assert found({"question": "a" * 100_000 + "b"}) is not None
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"prompt": "question", "template": "{question}"}, "columns: give exactly one of prompt and template"),
        ({}, "columns: give exactly one of prompt and template"),
        ({"template": "{question"}, "columns.template: a single '{' at character 0; write '{{' for a brace"),
        (
            {"prompt": "q", "answer": "a", "extract": AnswerExtraction(after="#", boxed=True)},
            "columns.extract: give exactly one of after, boxed",
        ),
        (
            {"prompt": "q", "answer": "a", "extract": AnswerExtraction(pattern=r"(?=x)")},
            r"columns.extract.pattern: '\(\?=x\)' is no regular expression of RE2 \(no look-around, no back references\)",
        ),
    ],
)
def test_columns_that_fit_no_row_are_refused(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadColumns, match=problem):
        mapped(DatasetColumns(**columns))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"column": "lvl", "at_least": 1}, "column 'lvl' is missing; columns: checked, extra, final"),
        ({"column": "kind", "at_least": 1}, "column 'kind' is 'order', no number for where to compare"),
        ({"column": "extra", "one_of": ["x"]}, "column 'extra' is neither a text nor a number, but dict"),
    ],
)
def test_a_rule_that_a_row_cannot_be_held_to_is_refused(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRow, match=problem):
        kept(**rule)


def imported(folder: Path, rows: list[dict[str, Any]], **selection: Any) -> Imported:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([path], DatasetColumns(prompt="q", answer="a", problem_id="id"), Selection(**selection))


ROWS = [{"q": f"{n}?", "a": n, "id": f"p{n}", "level": n % 3, "rate": n / 10} for n in range(8)]


def test_a_shuffle_is_the_seeds_alone_and_comes_before_the_count(tmp_path: Path) -> None:
    one = [each.problem_id for each in imported(tmp_path, ROWS, shuffle_seed=1).tasks]
    assert one == [each.problem_id for each in imported(tmp_path, ROWS[::-1], shuffle_seed=1).tasks]
    assert sorted(one) == [f"p{n}" for n in range(8)] != one
    assert one != [each.problem_id for each in imported(tmp_path, ROWS, shuffle_seed=2).tasks]
    # Fixed for good: a run that begins anew must find the same order.
    assert one == ["p7", "p3", "p2", "p5", "p0", "p6", "p1", "p4"]


def test_rows_beyond_the_limit_are_not_read_and_those_left_out_are_counted(tmp_path: Path) -> None:
    done = imported(tmp_path, ROWS, row_limit=6, where=[RowFilter(column="level", one_of=["0"])])
    assert ([each.problem_id for each in done.tasks], done.rows) == (["p0", "p3"], 6)
    assert done.skipped == {"is left out by where (level)": 4}


def test_a_solve_rate_goes_into_the_tasks_metadata(tmp_path: Path) -> None:
    assert imported(tmp_path, ROWS, solve_rate="rate").tasks[3].metadata == {"solve_rate": 0.3}
    with pytest.raises(BadDataset, match=r"row 0: column 'rate' is 12, no solve rate; allowed: 0 to 1, or none"):
        imported(tmp_path, [{**ROWS[0], "rate": 12}], solve_rate="rate")


def test_one_id_for_two_problems_is_at_fault_and_the_same_problem_again_is_not(tmp_path: Path) -> None:
    done = imported(tmp_path, [ROWS[0], ROWS[0], {**ROWS[1], "id": "p0"}])
    assert done.skipped == {"is a duplicate (the same problem)": 1}
    assert (done.refused.counts, done.refused.first) == (
        {"has the id of another problem": 1},
        {"has the id of another problem": ["rows.jsonl, row 2"]},
    )
