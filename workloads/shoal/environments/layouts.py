"""Column layouts of the data sets that runs are usually made of, each as a function from one row to one task.

In: a row as Parquet or JSON lines give it. Out: a `Task` in the form that the math and code environments judge, or `Skipped` with a reason
that is counted. Pure; called by `datasets`. The layouts are those of the data sets' cards (Intellect-2-RL-Dataset, SYNTHETIC-1, NuminaMath-1.5 and
OpenR1-Math, DeepScaleR-Preview-Dataset, GSM8K, MATH, Big-Math-RL-Verified, DAPO-Math-17k, Mixture-of-Thoughts, MBPP); `columns.mapped` is for any
other, by the names of its columns.
"""

import ast
import math
from collections.abc import Callable
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments import benchmark_layouts
from shoal.environments.columns import TASK_TYPES, after
from shoal.environments.rows import (
    BadRow,
    Row,
    Skipped,
    column,
    make_task,
    object_of,
    parse_json,
    prompt_of,
    read_test,
    scalar,
)
from shoal.rewards.boxes import boxed

NO_ANSWERS = ("", "proof", "notfound", "not found")
"""What NuminaMath-1.5 writes where a problem has no final answer."""
GSM8K_MARK = "####"
PROMPTS = ("prompt", "question", "problem")
ANSWERS = ("answer", "final_answer", "ground_truth")
LONGEST_ASSERTION = 10_000
"""Characters; those of MBPP have some hundred."""
SOLVE_RATE = "solve_rate"
"""Metadata of a task: the share of right answers that its data set says some model gave."""


def intellect_2(row: Row) -> Task | Skipped:
    """`problem_id, task_type, prompt, verification_info (JSON), solve_rate_qwen_r1_distill_7b`; metadata keeps the solve rate."""
    metadata: dict[str, Any] = {}
    if isinstance(row.get("solve_rate_qwen_r1_distill_7b"), float):
        metadata[SOLVE_RATE] = row["solve_rate_qwen_r1_distill_7b"]
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


def gsm8k(row: Row) -> Task | Skipped:
    """`question, answer`: a solution in words, and the final answer after `####`."""
    return _worked(
        prompt_of(column(row, "question"), "question"), after(_text(row, "answer"), GSM8K_MARK), "after ####", {}
    )


def competition_math(row: Row) -> Task | Skipped:
    r"""`problem, solution, level, type`: the final answer stands in the solution's last `\boxed{}`."""
    metadata = {name: row[name] for name in ("level", "type", "subject") if isinstance(row.get(name), str)}
    return _worked(prompt_of(column(row, "problem"), "problem"), boxed(_text(row, "solution")), "in a box", metadata)


def big_math(row: Row) -> Task | Skipped:
    """`problem, answer, source, domain, llama8b_solve_rate`; metadata keeps the solve rate."""
    metadata: dict[str, Any] = {"source": row["source"]} if isinstance(row.get("source"), str) else {}
    if isinstance(row.get("llama8b_solve_rate"), float):
        metadata[SOLVE_RATE] = row["llama8b_solve_rate"]
    return _math(row, metadata)


def dapo_math(row: Row) -> Task | Skipped:
    """`prompt` (text or messages), `reward_model.ground_truth`, `ability, extra_info`: what verl reads."""
    answer = scalar(column(row, "reward_model.ground_truth"), "reward_model.ground_truth")
    if answer is None or not answer.strip():
        return Skipped("has no answer")
    extra = row.get("extra_info")
    identity = extra.get("index") if isinstance(extra, dict) else None
    return make_task(identity, "math", prompt_of(column(row, "prompt"), "prompt"), {"answer": answer}, {})


def open_r1_mixture(row: Row) -> Task | Skipped:
    r"""`messages, num_tokens, source`: what is asked comes before the first answer, whose last `\boxed{}` is the final answer."""
    messages = prompt_of(column(row, "messages"), "messages")
    if isinstance(messages, str):
        raise BadRow("column 'messages' is no list of chat messages")
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        return Skipped("has no question with an answer")
    metadata = {"source": row["source"]} if isinstance(row.get("source"), str) else {}
    answer = boxed(str(messages[turns[0]]["content"]).rpartition("</think>")[2])
    if answer is None:
        return Skipped("has no final answer in a box")  # programs and science in words are part of the mixture
    return make_task(None, "math", messages[: turns[0]], {"answer": answer}, metadata)


def prompt_answer(row: Row) -> Task | Skipped:
    """A problem and a final answer, under the usual names."""
    prompt, answer = (next((name for name in names if name in row), names[0]) for names in (PROMPTS, ANSWERS))
    final = scalar(column(row, answer), answer)
    if final is None or not final.strip():
        return Skipped("has no answer")
    return make_task(row.get("id"), "math", prompt_of(column(row, prompt), prompt), {"answer": final}, {})


def mbpp(row: Row) -> Task | Skipped:
    """`task_id, text` (or `prompt`)`, code, test_list`: each test is an assertion that a call gives a value."""
    tests = column(row, "test_list")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise BadRow("column 'test_list' is no list of texts")
    found = [test for test in map(_assertion, tests) if test is not None]
    if not found:
        return Skipped("has no test that compares a call with values of JSON")
    wanted = prompt_of(column(row, "text" if "text" in row else "prompt"), "text")
    prompt = f"{wanted}\nYour code should pass these tests:\n\n" + "\n".join(tests)
    metadata = {"solution": row["code"]} if isinstance(row.get("code"), str) else {}
    identity = None if row.get("task_id") is None else f"mbpp-{row['task_id']}"
    return make_task(identity, "code", prompt, {"language": "python", "test_cases": found}, metadata)


LAYOUTS: dict[str, Callable[[Row], Task | Skipped]] = {
    "intellect-2": intellect_2,
    "synthetic-1": synthetic_1,
    "numina-math-1.5": numina_math,
    "deepscaler": deepscaler,
    "gsm8k": gsm8k,
    "math": competition_math,
    "big-math": big_math,
    "dapo-math": dapo_math,
    "open-r1-mixture": open_r1_mixture,
    "mbpp": mbpp,
    "prompt-answer": prompt_answer,
    "aime": benchmark_layouts.aime,
    "gpqa": benchmark_layouts.gpqa,
    "livecodebench": benchmark_layouts.livecodebench,
    "ifeval": benchmark_layouts.ifeval,
}

MARKS = (
    ("synthetic-1", {"problem_id", "task_type", "prompt", "verification_info", "gold_standard_solution"}),
    ("intellect-2", {"problem_id", "task_type", "prompt", "verification_info"}),
    ("numina-math-1.5", {"problem", "answer", "question_type"}),
    ("big-math", {"problem", "answer", "llama8b_solve_rate"}),
    ("deepscaler", {"problem", "answer", "solution"}),
    ("math", {"problem", "solution", "level"}),
    ("mbpp", {"task_id", "code", "test_list"}),
    ("dapo-math", {"prompt", "reward_model"}),
    ("open-r1-mixture", {"messages", "num_tokens", "source"}),
)
"""Columns by which a layout is known, the most particular first."""


def detect(row: Row) -> str | None:
    """The layout that a row's columns belong to, or None."""
    columns = set(row)
    if (found := next((name for name, marks in MARKS if marks <= columns), None)) is not None:
        return found
    if {"question", "answer"} <= columns and GSM8K_MARK in str(row["answer"]):
        return "gsm8k"
    return "prompt-answer" if columns & set(PROMPTS) and columns & set(ANSWERS) else None


def _verifiable(row: Row, metadata: dict[str, Any]) -> Task | Skipped:
    kind = TASK_TYPES.get(str(column(row, "task_type")))
    if kind is None:
        return Skipped(f"has task_type {str(row['task_type'])[:40]!r}, which no environment here can judge")
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
    answer = (scalar(column(row, "answer"), "answer") or "").strip()
    if answer.lower() in NO_ANSWERS:
        return Skipped("has no answer")
    return make_task(None, "math", prompt_of(column(row, "problem"), "problem"), {"answer": answer}, metadata)


def _text(row: Row, name: str) -> str:
    value = column(row, name)
    if not isinstance(value, str):
        raise BadRow(f"column {name!r} is no text")
    return value


def _worked(prompt: Any, answer: str | None, where: str, metadata: dict[str, Any]) -> Task | Skipped:
    """A problem of which the data set gives a solution in words."""
    if answer is None:
        return Skipped(f"has no final answer {where}", fault=True)
    return make_task(None, "math", prompt, {"answer": answer}, metadata)


def _assertion(text: str) -> dict[str, Any] | None:
    """`assert name(arguments) == value` as a test of ours; None for anything else. Read, never run."""
    try:
        body = ast.parse(text[:LONGEST_ASSERTION].strip()).body
        match body:
            case [
                ast.Assert(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id=name), args=given, keywords=[]),
                        ops=[ast.Eq()],
                        comparators=[wanted],
                    )
                )
            ]:
                arguments, value = [ast.literal_eval(each) for each in given], ast.literal_eval(wanted)
            case _:
                return None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, tuple):  # a tuple comes out of the sandbox as a list
        value = list(value)
    if not all(map(_is_json, [*arguments, value])):
        return None
    return {"type": "function_call", "fn_name": name, "input": arguments, "output": value}


def _is_json(value: object) -> bool:
    """Whether a value comes back from JSON as it went in."""
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(each) for key, each in value.items())
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


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
