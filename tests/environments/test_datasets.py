"""Data sets become task tables: the layouts of the usual ones, on files made here as they are published, and any other by its columns."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts.datasets import DatasetColumns
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.environments.base import Score
from shoal.environments.code import Code
from shoal.environments.datasets import BadDataset, Selection, from_store, import_files, split_files
from shoal.environments.layouts import detect
from shoal.environments.math import Math
from shoal.environments.rows import NO_DIGEST, Skipped, make_task
from shoal.storage.store import open_folder

STDIN_TESTS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
ADD = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"

INTELLECT_2 = [
    {
        "problem_id": "math_1",
        "task_type": "verifiable_math",
        "prompt": "What is 1/2 + 1/4?",
        "verification_info": json.dumps({"ground_truth": r"\frac{3}{4}"}),
        "solve_rate_qwen_r1_distill_7b": 0.25,
    },
    {
        "problem_id": "code_1",
        "task_type": "prime_rl_code",
        "prompt": "Add two numbers.",
        "verification_info": json.dumps({"test_cases": json.dumps(STDIN_TESTS)}),
        "solve_rate_qwen_r1_distill_7b": 0.5,
    },
]

SYNTHETIC_1 = [
    {
        "response_id": f"r{number}",
        "problem_id": problem,
        "source": "apps",
        "in_source_id": "7",
        "hf_dataset_name": "codeparrot/apps",
        "task_type": kind,
        "prompt": "Add two numbers.",
        "gold_standard_solution": ADD,
        "llm_response": "...",
        "verification_info": json.dumps(info),
        "score": 1.0,
        "verification_result_info": "{}",
        "metadata": "{}",
    }
    for number, (problem, kind, info) in enumerate(
        [
            (
                "vfc_1",
                "verifiable_code",
                {
                    "language": "python",
                    "test_cases": [{"type": "stdin_stdout", "fn_name": None, "input": "1 2\n", "output": "3\n"}],
                },
            ),
            (
                "vfc_1",
                "verifiable_code",
                {
                    "language": "python",
                    "test_cases": [{"type": "stdin_stdout", "fn_name": None, "input": "1 2\n", "output": "3\n"}],
                },
            ),
            ("se_1", "llm_judgeable_groundtruth_similarity", {"ground_truth": "long"}),
            ("vfm_1", "verifiable_math", {"ground_truth": "42"}),
            ("vfc_2", "verifiable_code", {"language": "rust", "test_cases": []}),
        ]
    )
]

NUMINA = [
    {
        "problem": f"Problem {number}",
        "solution": "...",
        "answer": answer,
        "problem_type": "Algebra",
        "question_type": kind,
        "problem_is_valid": valid,
        "solution_is_valid": "Yes",
        "source": "olympiads",
        "synthetic": False,
    }
    for number, (answer, kind, valid) in enumerate(
        [
            ("42", "math-word-problem", "Yes"),
            ("proof", "proof", "Yes"),
            ("7", "math-word-problem", "No"),
            ("notfound", "math-word-problem", "Yes"),
            ("C", "MCQ", "Yes"),
            (None, "math-word-problem", "Yes"),
        ]
    )
]

DEEPSCALER = [{"problem": "What is 6 times 7?", "answer": "42", "solution": "6 * 7 = 42"}]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("write", [parquet, jsonl])
def test_intellect_2_gives_math_and_code_that_our_environments_judge(tmp_path: Path, write) -> None:
    done = import_files([write(tmp_path / f"train.{write.__name__}", INTELLECT_2)])
    math, code = done.tasks
    assert (done.layout, done.rows, done.skipped) == ("intellect-2", 2, {})
    assert (math.problem_id, math.task_type, math.metadata) == ("math_1", "math", {"solve_rate": 0.25})
    assert Math().score(math, r"\boxed{0.75}") == Score(1.0, "the same number")
    assert code.task_type == "code"
    assert Code().score(code, ADD) == Score(1.0, "all 2 tests pass")


def test_synthetic_1_gives_one_task_a_problem_and_skips_what_only_a_model_could_judge(tmp_path: Path) -> None:
    done = import_files([parquet(tmp_path / "train.parquet", SYNTHETIC_1)])
    assert [task.problem_id for task in done.tasks] == ["vfc_1", "vfm_1"]
    assert done.layout == "synthetic-1"
    assert done.skipped == {
        "is a duplicate (the same problem)": 1,
        "has task_type 'llm_judgeable_groundtruth_similarity', which no environment here can judge": 1,
        "is a task for rust": 1,
    }
    code = done.tasks[0]
    assert code.metadata["source"] == "apps"
    assert Code().score(code, Code().gold(code)) == Score(1.0, "all 1 tests pass")


def test_numina_math_leaves_out_proofs_invalid_problems_and_those_without_an_answer(tmp_path: Path) -> None:
    done = import_files([parquet(tmp_path / "train.parquet", NUMINA)])
    assert [task.prompt for task in done.tasks] == ["Problem 0", "Problem 4"]
    assert done.layout == "numina-math-1.5"
    assert done.skipped == {"asks for a proof": 1, "is marked as not valid": 1, "has no answer": 2}


def test_deepscaler_problems_get_an_id_from_their_text(tmp_path: Path) -> None:
    done = import_files([jsonl(tmp_path / "deepscaler.jsonl", DEEPSCALER * 2)])
    assert done.layout == "deepscaler"
    assert done.skipped == {"is a duplicate (the same problem)": 1}
    assert done.tasks[0].problem_id.startswith("math-")
    assert Math().score(done.tasks[0], r"\boxed{42}").task_reward == 1.0


GSM8K = [{"question": "2 + 3?", "answer": "Two and three are <<2+3=5>>5.\n#### 5"}]
COMPETITION = [
    {
        "problem": "2 + 3?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": r"It is $\boxed{1}$, no, $\boxed{\frac{10}{2}}$.",
    },
]
BIG_MATH = [{"problem": "2 + 3?", "answer": "5", "source": "orca", "domain": ["Algebra"], "llama8b_solve_rate": 0.75}]
DAPO = [
    {
        "prompt": [{"role": "user", "content": "2 + 3?"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "5", "style": "rule"},
        "extra_info": {"index": "a-1"},
    }
]
MIXTURE = [
    {
        "messages": [
            {"role": "user", "content": "2 + 3?"},
            {"role": "assistant", "content": r"<think>\boxed{4}?</think> It is \boxed{5}."},
        ],
        "num_tokens": 12,
        "source": "math",
    }
]
OPEN_R1 = [
    {
        "problem": "2 + 3?", "solution": "5", "answer": "5", "problem_type": "Algebra", "question_type": "math-word-problem",
        "source": "olympiads", "uuid": "u", "is_reasoning_complete": [True], "generations": ["..."], "messages": [],
    }
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "rows", "identity", "metadata"),
    [
        ("gsm8k", GSM8K, None, {}),
        ("math", COMPETITION, None, {"level": "Level 1", "type": "Algebra"}),
        ("big-math", BIG_MATH, None, {"source": "orca", "solve_rate": 0.75}),
        ("dapo-math", DAPO, "a-1", {}),
        ("open-r1-mixture", MIXTURE, None, {"source": "math"}),
        ("numina-math-1.5", OPEN_R1, None, None),
        ("prompt-answer", [{"prompt": "2 + 3?", "answer": 5}], None, {}),
        ("prompt-answer", [{"id": 3, "question": "2 + 3?", "final_answer": ["5"]}], "3", {}),
    ],
)
def test_mathematics_as_it_is_published_is_recognised_and_judged(
    tmp_path: Path, layout: str, rows: list[dict[str, Any]], identity: str | None, metadata: dict[str, Any] | None
) -> None:
    done = import_files([parquet(tmp_path / "a.parquet", rows)])
    [task] = done.tasks
    assert done.layout == layout
    assert Math().score(task, r"\boxed{5}") == Score(1.0, Math().score(task, r"\boxed{5}").detail)
    assert Math().score(task, r"\boxed{4}").task_reward == 0.0
    assert "2 + 3?" in Math().prompt(task, None)
    assert identity in (None, task.problem_id)
    assert metadata in (None, task.metadata)


def test_solutions_without_a_final_answer_are_at_fault_and_named(tmp_path: Path) -> None:
    done = import_files([jsonl(tmp_path / "a.jsonl", [*GSM8K, {"question": "6?", "answer": "six"}])], "gsm8k")
    assert str(done.refused) == "1 has no final answer after #### (a.jsonl, row 1)"


MBPP = {
    "task_id": 11,
    "text": "Write a python function to remove the first and last occurrence of a given character.",
    "code": "def cut(text, letter):\n    return text.replace(letter, '', 1)[::-1].replace(letter, '', 1)[::-1]",
    "test_list": ['assert cut("hello","l") == "heo"', "assert cut('abcda', 'a') == 'bcd'"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


@pytest.mark.parametrize("value", [2**53, -(2**53)])
def test_a_row_whose_values_no_digest_can_hold_is_refused_and_counted(tmp_path: Path, value: int) -> None:
    rows = [
        {"task_id": number, "text": f"Power {number}.", "code": "def f(n): return n", "test_list": [f"assert f(1) == {wanted}"]}
        for number, wanted in enumerate([value, 7, 2**53 - 1])
    ]  # fmt: skip
    done = import_files([jsonl(tmp_path / "mbpp.jsonl", rows)])
    assert done.refused.first == {NO_DIGEST: ["mbpp.jsonl, row 0"]}
    assert [task.problem_id for task in done.tasks] == ["mbpp-1", "mbpp-2"]
    assert len(done.digest) == 64


@pytest.mark.parametrize("value", [2**60, float("nan"), float("inf"), "\ud800", [{"a": -(2**53)}]])
def test_metadata_that_no_digest_can_hold_is_refused(value: object) -> None:
    assert make_task("a", "math", "?", {"answer": "1"}, {"m": value}) == Skipped(NO_DIGEST, fault=True)


def test_assertions_of_mbpp_become_calls_that_the_code_environment_judges(tmp_path: Path) -> None:
    odd = {
        **MBPP,
        "task_id": 12,
        "test_list": [
            "assert is_close(f(1), 2.0)", "assert f((1, 2)) == 3", "assert f({1}) == 3", "assert f(x=1) == 1",
            "assert f(__import__('os')) == 1", "import os", "assert f(" + "(" * 500 + ") == 1",
        ],
    }  # fmt: skip
    done = import_files([jsonl(tmp_path / "a.jsonl", [MBPP, odd])])
    [task] = done.tasks
    assert (done.layout, task.problem_id) == ("mbpp", "mbpp-11")
    assert done.skipped == {"has no test that compares a call with values of JSON": 1}
    assert task.verification_info["test_cases"][0] == {
        "type": "function_call", "fn_name": "cut", "input": ["hello", "l"], "output": "heo",
    }  # fmt: skip
    assert 'assert cut("hello","l") == "heo"' in Code().prompt(task, None)
    assert Code().score(task, Code().gold(task)) == Score(1.0, "all 2 tests pass")
    assert Code().flaw(task) is None
    assert Code().flaw(task.model_copy(update={"metadata": {"solution": "def cut(a, b): return a"}})) == (
        "its own solution fails its tests"
    )


def test_any_other_data_set_is_read_by_its_columns(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "question": [{"role": "user", "content": "1+1?"}], "final": 2, "level": "easy"},
        {"id": 2, "question": "2+2?", "final": None, "level": "easy"},
    ]
    columns = DatasetColumns(prompt="question", answer="final", problem_id="id", metadata=["level"])
    done = import_files([jsonl(tmp_path / "x.jsonl", rows)], columns)
    assert done.skipped == {"has no answer": 1}
    assert done.tasks[0].verification_info == {"answer": "2"}
    assert done.tasks[0].prompt[0].content == "1+1?"
    assert done.tasks[0].metadata == {"level": "easy"}


def test_the_same_rows_give_the_same_digest_whatever_the_file_and_survive_the_task_table(tmp_path: Path) -> None:
    one = import_files([parquet(tmp_path / "a.parquet", INTELLECT_2)])
    other = import_files(
        [jsonl(tmp_path / "b.jsonl", INTELLECT_2[:1]), parquet(tmp_path / "c.parquet", INTELLECT_2[1:])]
    )
    assert one.digest == other.digest == tasks_digest(one.tasks)
    assert read_tasks(write_tasks(one.tasks)) == one.tasks


def test_a_limit_ends_an_import(tmp_path: Path) -> None:
    assert len(import_files([parquet(tmp_path / "a.parquet", INTELLECT_2)], None, Selection(row_limit=1)).tasks) == 1


def test_a_data_set_in_the_store_is_read_from_there(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_folder(tmp_path / "store", "shoal/run", deadline_seconds=5.0)
    store.put_file("datasets/a.parquet", parquet(tmp_path / "a.parquet", INTELLECT_2))
    assert len(from_store(store, ["datasets/a.parquet"], tmp_path / "scratch").tasks) == 2
    with pytest.raises(BadDataset, match=r"the store has no object datasets/b.parquet; give the key"):
        from_store(store, ["datasets/b.parquet"], tmp_path / "scratch")


def test_files_of_a_split_are_found_in_order(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in (
        "data/train-00001-of-00002.parquet",
        "data/train-00000-of-00002.parquet",
        "data/test-00000.parquet",
        "trainer.txt",
    ):
        (tmp_path / name).touch()
    assert [path.name for path in split_files(tmp_path, "train")] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    with pytest.raises(BadDataset, match="has no files of split 'dev'; there is test, train"):
        split_files(tmp_path, "dev")


CODE = {"problem_id": "c", "task_type": "verifiable_code", "prompt": "?"}


@pytest.mark.parametrize(
    ("info", "test"),
    [
        ({"test_cases": {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}}, {"input": [1, 2], "output": 3}),
        ({"test_cases": {"inputs": ["1\n[2]"], "outputs": ["3"]}, "fn_name": "add"}, {"input": [1, [2]], "output": 3}),
        (
            {"test_cases": [{"fn_name": "add", "input": [1, 2], "output": "three"}]},
            {"input": [1, 2], "output": "three"},
        ),
        ({"test_cases": {"inputs": [["1", "2"]], "outputs": [["3"]]}}, {"input": "1\n2", "output": "3"}),
    ],
)
def test_tests_come_in_several_forms(tmp_path: Path, info: dict[str, Any], test: dict[str, Any]) -> None:
    done = import_files([jsonl(tmp_path / "a.jsonl", [CODE | {"verification_info": json.dumps(info)}])])
    found = done.tasks[0].verification_info["test_cases"][0]
    assert {name: found[name] for name in test} == test


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (CODE | {"verification_info": "{"}, "a.jsonl, row 0: verification_info is not JSON"),
        (CODE | {"verification_info": "[]"}, "column 'verification_info' is not a JSON object"),
        (CODE | {"verification_info": "{}"}, "neither a list of tests nor inputs and outputs"),
        (CODE | {"verification_info": {"test_cases": {"inputs": [1], "outputs": []}}}, "lists of one length"),
        (
            CODE | {"prompt": "", "verification_info": {"test_cases": STDIN_TESTS}},
            "column 'prompt' is neither a text nor a list",
        ),
        (
            CODE | {"prompt": [{"role": "boss", "content": ""}], "verification_info": {"test_cases": STDIN_TESTS}},
            "role",
        ),
        (CODE | {"problem_id": "x" * 300, "verification_info": {"test_cases": STDIN_TESTS}}, "problem_id"),
        ({"a": 1}, r"columns \['a'\] belong to no layout; allowed: intellect-2, synthetic-1"),
    ],
)
def test_a_row_that_its_layout_does_not_allow_stops_the_import(
    tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadDataset, match=problem):
        import_files([jsonl(tmp_path / "a.jsonl", [row])])


def test_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no")
    (tmp_path / "b.jsonl").write_text("{\n")
    (tmp_path / "c.csv").touch()
    (tmp_path / "d.jsonl").write_text("[1]\n")
    (tmp_path / "e.jsonl").touch()
    for name, problem in (
        ("a.parquet", "a.parquet cannot be read as Parquet"),
        ("b.jsonl", "b.jsonl cannot be read as JSON lines"),
        ("c.txt", "c.txt is none of .parquet, .jsonl, .json, .csv"),
        ("d.jsonl", "d.jsonl, line 1: is not a JSON object"),
        ("e.jsonl", "no row is a task: they hold no rows"),
    ):
        with pytest.raises(BadDataset, match=problem):
            import_files([tmp_path / name])
    with pytest.raises(BadDataset, match="there are no files to import"):
        import_files([])
    with pytest.raises(BadDataset, match="there is no layout 'csv'; allowed: intellect-2"):
        import_files([jsonl(tmp_path / "f.jsonl", DEEPSCALER)], "csv")
    with pytest.raises(BadDataset, match="column 'q' is missing; columns: answer, problem, solution"):
        import_files([tmp_path / "f.jsonl"], DatasetColumns(prompt="q"))


def test_layouts_are_told_apart_by_their_columns() -> None:
    for rows, layout in (
        (INTELLECT_2, "intellect-2"),
        (SYNTHETIC_1, "synthetic-1"),
        (NUMINA, "numina-math-1.5"),
        (DEEPSCALER, "deepscaler"),
    ):
        assert detect(rows[0]) == layout
    assert detect({"text": ""}) is None
