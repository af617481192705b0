r"""Rows of any data set by the names of its columns: which are kept, what is asked, and where the final answer stands.

In: what `spec.tasks.dataset` says (`where`, `columns`). Out: functions of one row, for `datasets`. Pure. A pattern is one of RE2, linear in the text:
no pattern and no row takes long. Nothing that a manifest or a row says is evaluated.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import re2

from shoal.contracts.datasets import AnswerExtraction, DatasetColumns, RowFilter
from shoal.contracts.tasks import Task
from shoal.environments.rows import BadRow, Row, Skipped, column, make_task, object_of, prompt_of, scalar
from shoal.rewards.boxes import boxed

TASK_TYPES = {
    "verifiable_math": "math", "math": "math",
    "verifiable_code": "code", "prime_rl_code": "code", "code": "code",
}  # fmt: skip
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]{1,128})\}|[{}]")


class BadColumns(ValueError):
    """What a manifest says about columns cannot be used with any row; the message begins with the field."""


def filtered(rules: Sequence[RowFilter]) -> Callable[[Row], str | None]:
    """Why a row is left out, None when it passes all rules. Raises BadColumns; the function raises BadRow."""
    tests = [_passes(number, rule) for number, rule in enumerate(rules)]

    def left_out(row: Row) -> str | None:
        for rule, passes in zip(rules, tests, strict=True):
            if not passes(row):
                return f"is left out by where ({rule.column})"
        return None

    return left_out


def _passes(number: int, rule: RowFilter) -> Callable[[Row], bool]:
    found = _pattern(rule.matches, f"where[{number}].matches") if rule.matches is not None else None
    wanted, unwanted = set(rule.one_of), set(rule.none_of)

    def passes(row: Row) -> bool:
        text = scalar(column(row, rule.column), rule.column)
        if text is None or (wanted and text not in wanted) or text in unwanted:
            return False
        if rule.at_least is not None or rule.at_most is not None:
            try:
                number = float(text)
            except ValueError:
                raise BadRow(f"column {rule.column!r} is {text[:40]!r}, no number for where to compare") from None
            if not (rule.at_least is None or number >= rule.at_least):
                return False
            if not (rule.at_most is None or number <= rule.at_most):
                return False
        return found is None or found.search(text) is not None

    return passes


def mapped(columns: DatasetColumns) -> Callable[[Row], Task | Skipped]:
    """A layout from the names of columns. Raises BadColumns."""
    if (columns.prompt is None) == (columns.template is None):
        raise BadColumns("columns: give exactly one of prompt and template")
    ask = _template(columns.template) if columns.template is not None else None
    final = _extraction(columns.extract) if columns.extract is not None else None

    def read(row: Row) -> Task | Skipped:
        name = columns.prompt or "template"
        prompt = prompt_of(column(row, name) if ask is None else ask(row), name)
        info: dict[str, Any] = {}
        if columns.verification_info is not None:
            info = object_of(column(row, columns.verification_info), columns.verification_info)
        if columns.answer is not None:
            answer = scalar(column(row, columns.answer), columns.answer)
            if answer is None or not answer.strip():
                return Skipped("has no answer")
            if final is not None and not (answer := final(answer) or ""):
                return Skipped(f"has no final answer where columns.extract looks in {columns.answer!r}", fault=True)
            info = info | {"answer": answer}
        kind = str(column(row, columns.task_type)) if columns.task_type is not None else "math"
        identity = column(row, columns.problem_id) if columns.problem_id is not None else None
        metadata = {name: column(row, name) for name in columns.metadata}
        return make_task(identity, TASK_TYPES.get(kind, kind), prompt, info, metadata)

    return read


def after(text: str, mark: str) -> str | None:
    """What follows the last `mark`, None without one or when nothing follows."""
    return text.rpartition(mark)[2].strip() or None if mark in text else None


def _extraction(wanted: AnswerExtraction) -> Callable[[str], str | None]:
    given = [wanted.after is not None, bool(wanted.boxed), wanted.pattern is not None]
    if sum(given) != 1:
        raise BadColumns("columns.extract: give exactly one of after, boxed (true) and pattern")
    if wanted.after is not None:
        mark = wanted.after
        return lambda text: after(text, mark)
    if wanted.pattern is None:
        return boxed
    pattern = _pattern(wanted.pattern, "columns.extract.pattern")

    def search(text: str) -> str | None:
        found = pattern.search(text)
        return None if found is None else (found.group(1 if pattern.groups else 0) or "").strip() or None

    return search


def _pattern(text: str, field: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        said = error.args[0] if error.args else "no reason given"
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise BadColumns(
            f"{field}: {text[:80]!r} is no regular expression of RE2 (no look-around, no back references): {said}"
        ) from None


def _template(text: str) -> Callable[[Row], str]:
    for found in _PLACE.finditer(text):
        if found[0] in ("{", "}"):
            raise BadColumns(
                f"columns.template: a single {found[0]!r} at character {found.start()}; write {found[0] * 2!r} for a brace"
            )

    def ask(row: Row) -> str:
        return _PLACE.sub(lambda place: _lines(column(row, place[1]), place[1]) if place[1] else place[0][0], text)

    return ask


def _lines(value: object, name: str) -> str:
    """A column's value in a template: nothing for none, a line each for a list."""
    if isinstance(value, list):
        return "\n".join(scalar(each, name) or "" for each in value)
    return scalar(value, name) or ""
