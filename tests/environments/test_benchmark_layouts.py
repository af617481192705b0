"""Benchmarks as they are published: small files in the layouts of their cards, read, asked and judged by the environments that they are for."""

import base64
import csv
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts.tasks import Task
from shoal.environments import Score, load
from shoal.environments.datasets import BadDataset, import_files
from shoal.environments.layouts import LAYOUTS, detect

AIME_2024 = {
    "id": 60,
    "problem": "Every morning Aya walks ...",
    "solution": "204.",
    "answer": "204",
    "url": "u",
    "year": "2024",
}
AIME_2025 = {"problem": "Find the sum of all bases ...", "answer": "070", "id": "0"}
GPQA = {
    "Record ID": "rec06pnAkLOr2t2mp", "Question": "Which state has the longest life?", "Correct Answer": "10^-4 eV",
    "Incorrect Answer 1": "10^-11 eV", "Incorrect Answer 2": "10^-8 eV\n", "Incorrect Answer 3": "10^-9 eV", "Subdomain": "Physics",
    "High-level domain": "Physics",
}  # fmt: skip
STDIN = [{"input": "2\n1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLS = [{"input": "[3, 1]\n2", "output": "[5, 3]", "testtype": "functional"}]
STARTER = "class Solution:\n    def plus(self, values: List[int], k: int) -> List[int]:\n        "


def packed(tests: object) -> str:
    """As code_generation_lite packs private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def lcb(**changes: Any) -> dict[str, Any]:
    row = {
        "question_title": "Sum", "question_content": "Print the sum of the numbers.", "platform": "atcoder", "question_id": "abc387_f",
        "contest_id": "abc387", "contest_date": "2025-01-04T00:00:00", "starter_code": "", "difficulty": "hard",
        "public_test_cases": json.dumps(STDIN), "private_test_cases": packed(STDIN), "metadata": "{}",
    }  # fmt: skip
    return row | changes


CALLED = lcb(
    question_content="Add k.",
    starter_code=STARTER,
    public_test_cases=json.dumps(CALLS),
    private_test_cases=json.dumps([]),
    metadata='{"func_name": "plus"}',
)


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def one(path: Path, layout: str) -> Task:
    [task] = import_files([path], layout).tasks
    return task


@pytest.mark.parametrize(("row", "answer"), [(AIME_2024, "204"), (AIME_2025, "70")], ids=["2024", "2025"])
def test_aime_is_asked_as_mathematics_with_a_whole_number_for_an_answer(
    tmp_path: Path, row: dict[str, Any], answer: str
) -> None:
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    task = one(tmp_path / "train.parquet", "aime")
    assert (task.task_type, task.prompt) == ("math", row["problem"])
    assert task.verification_info == {"answer": answer}
    judge = load("math")
    right = judge.score(task, rf"so \boxed{{{row['answer']}}}.")
    assert isinstance(right, Score)
    assert right.task_reward == 1.0
    wrong = judge.score(task, r"so \boxed{71}.")
    assert isinstance(wrong, Score)
    assert wrong.task_reward == 0.0


def test_the_other_names_of_aime_s_columns_are_known(tmp_path: Path) -> None:
    rows = {"ID": "2024-II-4", "Problem": "Let x, y ...", "Answer": 33}, {"question": "Let N ...", "answer": "735"}
    tasks = import_files([jsonl(tmp_path / "a.jsonl", *rows)], "aime").tasks
    assert [(task.problem_id[:9], task.verification_info["answer"]) for task in tasks] == [
        ("2024-II-4", "33"),
        ("math-" + tasks[1].problem_id[5:9], "735"),
    ]


def test_gpqa_is_read_from_its_csv_with_choices_in_an_order_that_is_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(GPQA))
        writer.writeheader()
        writer.writerows([GPQA, GPQA | {"Record ID": "rec2", "Question": "Another?"}])
    task, other = import_files([path], "gpqa").tasks
    assert task == import_files([path], "gpqa").tasks[0]
    letter = task.verification_info["answer"]
    assert isinstance(task.prompt, str)
    assert f"\n{letter}) 10^-4 eV\n" in f"{task.prompt}\n"
    assert all(f"\n{each}) 10^-" in task.prompt for each in "ABCD")
    assert (task.problem_id, other.problem_id) == ("rec06pnAkLOr2t2mp", "rec2")
    judge = load("math")
    scores = [judge.score(task, rf"\boxed{{{each}}}") for each in "ABCD"]
    assert [each for each, found in zip("ABCD", scores, strict=True) if found.task_reward == 1.0] == [letter]


def test_choices_of_many_questions_have_the_right_one_at_every_place() -> None:
    answers = [
        found.verification_info["answer"]
        for number in range(200)
        if isinstance(found := LAYOUTS["gpqa"](GPQA | {"Question": f"Question {number}?"}), Task)
    ]
    assert all(30 <= answers.count(letter) <= 70 for letter in "ABCD")


def test_livecodebench_has_public_and_private_tests_of_both_kinds(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "test5.jsonl", lcb(), CALLED | {"question_id": "3723"})
    stdin, called = import_files([path], "livecodebench").tasks
    assert stdin.verification_info["test_cases"] == 2 * [{"type": "stdin_stdout", "input": "2\n1 2\n", "output": "3\n"}]
    assert called.verification_info["test_cases"] == [
        {"type": "function_call", "fn_name": "Solution.plus", "input": [[3, 1], 2], "output": [5, 3]}
    ]
    assert isinstance(called.prompt, str)
    assert called.prompt.endswith("-> List[int]:\n```")
    judge = load("code")
    right = "class Solution:\n    def plus(self, values, k):\n        return [v + k for v in values]"
    for task, program in ((stdin, "input()\nprint(sum(map(int, input().split())))"), (called, right)):
        for text, reward in ((program, 1.0), (program.replace("+ k", "- k").replace("sum", "max"), 0.0)):
            found = judge.score(task, f"```python\n{text}\n```")
            assert isinstance(found, Score), found
            assert found.task_reward == reward


class Opens:
    """What a hostile pickle would do."""

    def __reduce__(self) -> Any:
        return open, ("/tmp/opened", "w")


@pytest.mark.parametrize(
    "hidden",
    [
        base64.b64encode(zlib.compress(pickle.dumps(Opens()))).decode(),
        base64.b64encode(zlib.compress(pickle.dumps(["no", "text"]))).decode(),
        base64.b64encode(b"no zlib").decode(),
        "no base64!",
        base64.b64encode(zlib.compress(b"\x80")).decode(),
    ],
    ids=["program", "list", "zlib", "base64", "cut"],
)
def test_private_tests_that_are_more_than_packed_text_are_refused_and_nothing_runs(tmp_path: Path, hidden: str) -> None:
    path = jsonl(tmp_path / "test.jsonl", lcb(private_test_cases=hidden))
    with pytest.raises(BadDataset, match=r"test.jsonl, row 0: private_test_cases are"):
        import_files([path], "livecodebench")
    assert not Path("/tmp/opened").exists()


@pytest.mark.parametrize(
    ("layout", "row", "words"),
    [
        ("aime", AIME_2024 | {"answer": "x+1"}, "an answer of AIME is a whole number"),
        ("aime", {"problem": "?", "result": "1"}, "none of the columns answer, Answer; columns: problem, result"),
        ("gpqa", GPQA | {"Incorrect Answer 1": "10^-4 eV"}, "the right one must differ"),
        ("gpqa", {"Question": "?"}, "column 'Correct Answer' is missing"),
        ("livecodebench", CALLED | {"metadata": "{}"}, "metadata.func_name is missing"),
        ("livecodebench", lcb(public_test_cases='[{"testtype": "gui"}]'), "testtype 'gui'; allowed: stdin, functional"),
        ("livecodebench", lcb(public_test_cases="{}"), "public_test_cases is not a list of tests"),
    ],
)
def test_a_row_that_is_not_of_its_layout_is_an_error_in_words(
    tmp_path: Path, layout: str, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadDataset, match=words):
        import_files([jsonl(tmp_path / "rows.jsonl", row)], layout)


def test_a_csv_with_a_short_row_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("problem,answer\nWhy?,7\nHow\n")
    with pytest.raises(BadDataset, match=r"a.csv, row 1: has fewer or more values than the header has names"):
        import_files([path], "aime")


def test_benchmarks_are_not_told_from_their_columns() -> None:
    assert detect(set(AIME_2024)) == "deepscaler"
    assert detect(set(GPQA)) is None
