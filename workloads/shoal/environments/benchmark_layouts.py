"""Column layouts of published benchmarks, as functions from one row to one task: AIME, GPQA-Diamond, LiveCodeBench, IFEval.

In: a row as the file gives it. Out: a `Task` that the math, code or ifeval environment judges, or `Skipped`. Pure; part of `layouts.LAYOUTS`, by name
only: some of these columns are those of training sets too. The layouts are those of the data sets' cards (HuggingFaceH4/aime_2024, math-ai/aime25,
Idavidrein/gpqa, livecodebench/code_generation_lite, google/IFEval).
"""

import base64
import binascii
import hashlib
import io
import pickle  # see _TextOnly
import random
import zlib
from collections.abc import Mapping
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.instruction_checks import CHECKS
from shoal.environments.rows import BadRow, Row, Skipped, column, make_task, parse_json, prompt_of, read_test, text_of

PROBLEM_COLUMNS = ("problem", "Problem", "question")
ANSWER_COLUMNS = ("answer", "Answer")
ID_COLUMNS = ("id", "ID")
"""AIME is published under several names of columns."""
WRONG_CHOICES = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
LETTERS = "ABCD"
MOST_TEST_BYTES = 256 << 20
"""Tests of one LiveCodeBench problem, unpacked; the largest have some tens of MB."""
LIVECODEBENCH_SECONDS = 6
"""CPU time of one test, as the benchmark's own runner gives."""


def aime(row: Row) -> Task | Skipped:
    """A problem and an answer from 0 to 999, under any of the names that AIME is published with."""
    answer = str(_first(row, ANSWER_COLUMNS)).strip()
    if not answer.isascii() or not answer.isdigit():
        raise BadRow(f"answer is {answer[:40]!r}; an answer of AIME is a whole number from 0 to 999")
    identity = next((str(row[name]) for name in ID_COLUMNS if row.get(name) is not None), None)
    prompt = prompt_of(_first(row, PROBLEM_COLUMNS), "problem")
    metadata = {name: row[name] for name in ("year", "url") if isinstance(row.get(name), str | int)}
    return make_task(identity, "math", prompt, {"answer": str(int(answer))}, metadata)


def gpqa(row: Row) -> Task | Skipped:
    """`Question, Correct Answer, Incorrect Answer 1 to 3, Record ID, Subdomain`: choices in an order of the question's own; the letter is asked."""
    question, right = str(column(row, "Question")).strip(), str(column(row, "Correct Answer")).strip()
    choices = [right, *(str(column(row, name)).strip() for name in WRONG_CHOICES)]
    if not question or not all(choices) or right in choices[1:]:
        raise BadRow("Question and its four answers must be there, and the right one must differ from the others")
    # The order must be the same on every machine and tell nothing: by the question's own digest.
    random.Random(hashlib.sha256(question.encode(errors="replace")).hexdigest()).shuffle(choices)
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    prompt = f"{question}\n\n{listed}\n\nThe final answer is the letter of the one right choice."
    metadata = {name: row[name] for name in ("Subdomain", "High-level domain") if isinstance(row.get(name), str)}
    return make_task(row.get("Record ID"), "math", prompt, {"answer": LETTERS[choices.index(right)]}, metadata)


def livecodebench(row: Row) -> Task | Skipped:
    """`question_id, question_content, starter_code, public_test_cases, private_test_cases, metadata, contest_date, platform, difficulty`."""
    starter = str(row.get("starter_code") or "")
    about = _object(row.get("metadata"), "metadata")
    name = about.get("func_name")
    if isinstance(name, str) and "class Solution" in starter:
        name = f"Solution.{name}"
    given = _public(row) + _private(column(row, "private_test_cases"))
    if not given:
        return Skipped("has no tests")
    prompt = str(column(row, "question_content")).strip()
    if starter:
        prompt = f"{prompt}\n\nBegin with this code:\n```python\n{starter.rstrip()}\n```"
    info = {
        "language": "python",
        "test_cases": [_test(test, name) for test in given],
        "time_limit_seconds": LIVECODEBENCH_SECONDS,
    }
    metadata = {
        key: text_of(row[key]) for key in ("contest_date", "platform", "difficulty") if row.get(key) is not None
    }
    return make_task(row.get("question_id"), "code", prompt_of(prompt, "question_content"), info, metadata)


def ifeval(row: Row) -> Task | Skipped:
    """`key, prompt, instruction_id_list, kwargs`, an object of arguments for each instruction."""
    names, given = column(row, "instruction_id_list"), column(row, "kwargs")
    if not isinstance(names, list) or not isinstance(given, list) or len(names) != len(given) or not names:
        raise BadRow("instruction_id_list and kwargs must be lists of one length")
    if unknown := sorted({str(name) for name in names} - CHECKS.keys()):
        raise BadRow(f"instruction_id_list has {', '.join(unknown)[:120]}, which this release cannot check")
    instructions = [
        # Parquet gives every instruction the arguments of all; those of others are null.
        {"id": name, "kwargs": {key: value for key, value in (arguments or {}).items() if value is not None}}
        for name, arguments in zip(names, given, strict=True)
    ]
    key = row.get("key")
    identity = f"ifeval-{key}" if key is not None else None
    prompt = prompt_of(column(row, "prompt"), "prompt")
    return make_task(identity, "ifeval", prompt, {"instructions": instructions}, {})


def _test(test: Mapping[str, Any], name: object) -> dict[str, Any]:
    kind = test.get("testtype")
    if kind not in ("stdin", "functional"):
        raise BadRow(f"a test has testtype {str(kind)[:40]!r}; allowed: stdin, functional")
    if kind == "functional" and not isinstance(name, str):
        raise BadRow("metadata.func_name is missing, but there are tests of a function")
    return read_test({**test, "fn_name": name if kind == "functional" else None})


def _public(row: Row) -> list[dict[str, Any]]:
    return _tests(parse_json(str(column(row, "public_test_cases")), "public_test_cases"), "public_test_cases")


def _private(value: object) -> list[dict[str, Any]]:
    """Tests as JSON, or as the lite edition packs them: base64 of zlib of a pickled text of JSON."""
    text = str(value)
    if not text.lstrip().startswith("["):
        text = _unpacked(text)
    return _tests(parse_json(text, "private_test_cases"), "private_test_cases")


def _unpacked(packed: str) -> str:
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(packed, validate=True), MOST_TEST_BYTES)
        if stream.unconsumed_tail:
            raise BadRow(f"private_test_cases are more than {MOST_TEST_BYTES} bytes unpacked")
        found = _TextOnly(io.BytesIO(data)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        if isinstance(error, BadRow):
            raise
        raise BadRow(f"private_test_cases are neither JSON nor packed JSON: {type(error).__name__}") from error
    if not isinstance(found, str):
        raise BadRow("private_test_cases are packed, but hold no JSON text")
    return found


class _TextOnly(pickle.Unpickler):
    """Reads texts, numbers and lists of them. A pickle can name anything that Python can import; this one may name nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")

    def persistent_load(self, _: object) -> Any:
        raise pickle.UnpicklingError("a persistent id is not text")


def _tests(found: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(test, dict) for test in found):
        raise BadRow(f"{name} is not a list of tests")
    return found


def _object(value: object, name: str) -> dict[str, Any]:
    found = parse_json(value, name) if isinstance(value, str) and value.strip() else value or {}
    if not isinstance(found, dict):
        raise BadRow(f"column {name!r} is not a JSON object")
    return found


def _first(row: Row, names: tuple[str, ...]) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise BadRow(f"found none of the columns {', '.join(names)}; columns: {', '.join(sorted(row))}")
