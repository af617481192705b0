"""The list of what administrators do: every case that is claimed to hold names a test that exists."""

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parent
FEWEST = 200
GROUPS: dict[str, list[dict[str, str]]] = yaml.safe_load((FOLDER / "admin_cases.yaml").read_text())
CASES = [case for group in GROUPS.values() for case in group]


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the tests in a file; none where there is no such file."""
    file = FOLDER / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return frozenset(
        each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    )


def wrong(case: dict[str, str]) -> str:
    """What is wrong with a case, in words; empty for nothing."""
    if {*case} not in ({"done", "said", "held"}, {"done", "said", "open"}):
        return f"has {sorted(case)}: done, said, and either held or open"
    if not all(isinstance(text, str) and text.strip() for text in case.values()):
        return "has an empty field"
    path, _, name = case.get("held", "").partition("::")
    if "held" in case and name not in names_in(path):
        return f"names {case['held']}, which does not exist"
    return ""


def test_there_are_as_many_cases_as_promised_and_none_twice() -> None:
    assert len(CASES) >= FEWEST
    done = [case["done"] for case in CASES]
    assert [each for each in done if done.count(each) > 1] == []


def test_every_case_that_is_claimed_to_hold_names_an_existing_test() -> None:
    assert [f"{case.get('done')}: {text}" for case in CASES if (text := wrong(case))] == []


@pytest.mark.parametrize(
    "case",
    [
        {"done": "a", "said": "b"},
        {"done": "a", "said": "b", "held": "test_scale.py::test_of_nothing"},
        {"done": "a", "said": "b", "held": "test_nowhere.py::test_replicas_are_not_compared"},
        {"done": "a", "said": "b", "held": "test_scale.py::test_replicas_are_not_compared", "open": "c"},
        {"done": "a", "said": " ", "open": "c"},
    ],
)
def test_a_case_that_claims_too_much_is_found(case: dict[str, str]) -> None:
    assert wrong(case)
