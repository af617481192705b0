"""Column layouts of the data sets that runs are usually made of, each as a function from one row to one task.

In: a row as Parquet or JSON lines give it. Out: a `Task` in the form that the math and code environments judge, or `Skipped` with a reason
that is counted. Pure; called by `datasets`. The layouts are those of the data sets' cards (Intellect-2-RL-Dataset, NuminaMath-1.5,
DeepScaleR-Preview-Dataset, SYNTHETIC-1); `mapped` is for any other, by the names of its columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments import benchmark_layouts
from shoal.environments.rows import BadRow, Row, Skipped, column, make_task, object_of, parse_json, prompt_of, read_test


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data set that has no layout of its own; None where it has no such column."""

    prompt: str
    answer: str | None = None
    verification_info: str | None = None
    problem_id: str | None = None
    task_type: str | None = None
    metadata: tuple[str, ...] = ()


NO_ANSWERS = ("", "proof", "notfound", "not found")
"""What NuminaMath-1.5 writes where a problem has no final answer."""
TASK_TYPES = {
    "verifiable_math": "math", "math": "math",
    "verifiable_code": "code", "prime_rl_code": "code", "code": "code",
}  # fmt: skip


def intellect_2(row: Row) -> Task | Skipped:
    """`problem_id, task_type, prompt, verification_info (JSON), solve_rate_qwen_r1_distill_7b`; metadata keeps the solve rate."""
    metadata: dict[str, Any] = {}
    if isinstance(row.get("solve_rate_qwen_r1_distill_7b"), float):
        metadata["solve_rate"] = row["solve_rate_qwen_r1_distill_7b"]
    return _verifiable(row, metadata)


def synthetic_1(row: Row) -> Task | Skipped:
    """`problem_id, task_type, prompt, gold_standard_solution, verification_info (JSON), source, ...`; rows for a model as judge are skipped.

    The file has a row for each response; responses to one problem are the same task.
    """
    metadata = {name: row[name] for name in ("source", "hf_dataset_name") if isinstance(row.get(name), str)}
    if isinstance(row.get("gold_standard_solution"), str):
        metadata["solution"] = _program(row["gold_standard_solution"])
    return _verifiable(row, metadata)


def numina_math(row: Row) -> Task | Skipped:
    """`problem, solution, answer, problem_type, question_type, problem_is_valid, solution_is_valid, source, synthetic`."""
    if str(row.get("question_type", "")).lower() == "proof":
        return Skipped("asks for a proof")
    if "no" in (str(row.get("problem_is_valid")).lower(), str(row.get("solution_is_valid")).lower()):
        return Skipped("is marked as not valid")
    metadata = {
        name: row[name] for name in ("source", "problem_type", "question_type") if isinstance(row.get(name), str)
    }
    return _math(row, metadata)


def deepscaler(row: Row) -> Task | Skipped:
    """`problem, answer, solution`."""
    return _math(row, {})


def mapped(columns: Columns) -> Callable[[Row], Task | Skipped]:
    """A layout from the names of columns."""

    def read(row: Row) -> Task | Skipped:
        prompt = prompt_of(column(row, columns.prompt), columns.prompt)
        info: dict[str, Any] = {}
        if columns.verification_info is not None:
            info = object_of(column(row, columns.verification_info), columns.verification_info)
        if columns.answer is not None:
            answer = column(row, columns.answer)
            if answer is None or not str(answer).strip():
                return Skipped("has no answer")
            info = info | {"answer": str(answer)}
        kind = str(column(row, columns.task_type)) if columns.task_type is not None else "math"
        identity = column(row, columns.problem_id) if columns.problem_id is not None else None
        metadata = {name: column(row, name) for name in columns.metadata}
        return make_task(identity, TASK_TYPES.get(kind, kind), prompt, info, metadata)

    return read


LAYOUTS: dict[str, Callable[[Row], Task | Skipped]] = {
    "intellect-2": intellect_2,
    "synthetic-1": synthetic_1,
    "numina-math-1.5": numina_math,
    "deepscaler": deepscaler,
    "aime": benchmark_layouts.aime,
    "gpqa": benchmark_layouts.gpqa,
    "livecodebench": benchmark_layouts.livecodebench,
    "ifeval": benchmark_layouts.ifeval,
}

MARKS = (
    ("synthetic-1", {"problem_id", "task_type", "prompt", "verification_info", "gold_standard_solution"}),
    ("intellect-2", {"problem_id", "task_type", "prompt", "verification_info"}),
    ("numina-math-1.5", {"problem", "answer", "question_type"}),
    ("deepscaler", {"problem", "answer", "solution"}),
)
"""Columns by which a layout is known, the most particular first."""


def detect(columns: set[str]) -> str | None:
    """The layout that these columns belong to, or None."""
    return next((name for name, marks in MARKS if marks <= columns), None)


def _verifiable(row: Row, metadata: dict[str, Any]) -> Task | Skipped:
    kind = TASK_TYPES.get(str(column(row, "task_type")))
    if kind is None:
        return Skipped(f"has task_type {str(row['task_type'])[:40]!r}, which nothing here can judge")
    info = object_of(column(row, "verification_info"), "verification_info")
    if kind == "math":
        answer = info.get("ground_truth", info.get("answer"))
        if answer is None or not str(answer).strip():
            return Skipped("has no answer")
        info = {"answer": str(answer)}
    else:
        tests = _tests(info)
        if isinstance(tests, Skipped):
            return tests
        info = {"language": "python", "test_cases": tests}
    return make_task(row.get("problem_id"), kind, prompt_of(column(row, "prompt"), "prompt"), info, metadata)


def _math(row: Row, metadata: dict[str, Any]) -> Task | Skipped:
    answer = str(column(row, "answer") or "").strip()
    if answer.lower() in NO_ANSWERS:
        return Skipped("has no answer")
    return make_task(None, "math", prompt_of(column(row, "problem"), "problem"), {"answer": answer}, metadata)


def _tests(info: dict[str, Any]) -> list[dict[str, Any]] | Skipped:
    """Tests in our form, from a list of tests or from the columns `inputs`, `outputs` and `fn_name` (also as JSON in a text)."""
    if str(info.get("language", "python")).lower() not in ("python", "python3"):
        return Skipped(f"is a task for {info['language']}")
    tests = info.get("test_cases")
    if isinstance(tests, str):
        tests = parse_json(tests, "verification_info.test_cases")
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise BadRow("verification_info.test_cases: inputs and outputs must be lists of one length")
        name = tests.get("fn_name") or info.get("fn_name")
        tests = [
            {"fn_name": name, "input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)
        ]
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise BadRow("verification_info.test_cases is neither a list of tests nor inputs and outputs")
    if not tests:
        return Skipped("has no tests")
    return [read_test(test) for test in tests]


def _program(text: str) -> str:
    """The program in a solution's fenced block, or the text as it is."""
    before, fence, rest = text.partition("```python\n")
    return rest.partition("```")[0] if fence else before
