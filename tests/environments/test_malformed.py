"""Every malformed environment, tool and transcript of the table is told in one clear line; and the committed figures are those of the table."""

import json

import pytest
from benchmarks.agents.malformed import all_lines, is_clear
from benchmarks.agents.verifiers_environments import RESULT

AIM = 200


@pytest.fixture(scope="module")
def lines() -> dict[str, tuple[str, str]]:
    return all_lines()


def test_each_case_has_one_line_that_says_what_is_wrong(lines: dict[str, tuple[str, str]]) -> None:
    assert {what: line for what, (line, wanted) in lines.items() if not is_clear(line, wanted)} == {}


def test_the_figures_are_those_of_the_table(lines: dict[str, tuple[str, str]]) -> None:
    stored = json.loads(RESULT.read_text())
    assert stored["malformed_cases"] == len(lines) >= AIM
    assert stored["malformed_cases_without_line"] == 0


def test_what_is_no_one_line_with_the_words_asked_for_is_not_clear() -> None:
    assert is_clear("it has 7 turns; allowed: 6", "7 turns")
    for line in ("it has 7 turns\nallowed: 6", "nothing", "Traceback: 7 turns", "7 turns" + "!" * 1000):
        assert not is_clear(line, "7 turns")
