"""The code environment: all tests pass or the reward is 0, whatever the program tries, and nobody's machine decides by its speed."""

from typing import Any

import pytest

from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable, digest, load
from shoal.environments import code as code_module
from shoal.environments.code import Code, program_of, same_output, same_value
from shoal.rewards.sandbox import NoIsolation, Outcome, SandboxFailed

ENVIRONMENT = Code()
TASKS = ENVIRONMENT.tasks(14, seed=5)


def task(*tests: dict[str, Any], **more: object) -> Task:
    return Task(
        problem_id="t",
        task_type="code",
        prompt="?",
        verification_info={"language": "python", "test_cases": list(tests)} | more,
    )


def stdin(given: str, wanted: str) -> dict[str, Any]:
    return {"type": "stdin_stdout", "input": given, "output": wanted}


def call(name: str, arguments: list[Any], wanted: object) -> dict[str, Any]:
    return {"type": "function_call", "fn_name": name, "input": arguments, "output": wanted}


def score(asked: Task, source: str) -> Score | Unscorable:
    return ENVIRONMENT.score(asked, f"I think:\n```python\n{source}\n```\n")


DOUBLE = task(stdin("2\n", "4\n"), stdin("5\n", "10\n"), call("double", [3], 6))
RIGHT = "def double(n): return 2 * n\nif __name__ == '__main__':\n    import sys\n    for line in sys.stdin: print(double(int(line)))"


def test_every_gold_program_scores_one_and_every_broken_one_zero() -> None:
    for one in TASKS:
        assert ENVIRONMENT.score(one, ENVIRONMENT.gold(one)) == Score(1.0, "all 4 tests pass")
        assert ENVIRONMENT.score(one, ENVIRONMENT.broken(one)).task_reward == 0.0


def test_all_tests_must_pass() -> None:
    assert score(DOUBLE, RIGHT) == Score(1.0, "all 3 tests pass")
    assert score(DOUBLE, RIGHT.replace("2 * n", "4")) == Score(0.0, "test 2 of 3: other output")
    assert score(DOUBLE, RIGHT.replace("return 2 * n", "return 2 * n if n != 3 else 7")) == Score(
        0.0, "test 3 of 3: another value"
    )


CHEATS = {
    "ends at once": ("import sys\nsys.exit(0)", "other output"),
    "ends at once without Python noticing": ("import os\nos._exit(0)", "other output"),
    "an object that is equal to everything": (
        "class All:\n    def __eq__(self, other): return True\n    def __repr__(self): return '4'\ndef double(n): return All()",
        "other output",
    ),
    "patched comparison": (
        "import builtins\nbuiltins.print = lambda *a: None\nstr.__eq__ = lambda a, b: True",
        "exit code 1",
    ),
    "reads the tests": (
        "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'output' in o: print(o['output'])",
        "other output",
    ),
    "searches its files for the tests": (
        "import os\nfor top, _, files in os.walk('/work'):\n    for f in files: print(open(os.path.join(top, f)).read())",
        "other output",
    ),
    "forges a result file": (
        "import json\nfor n in ('result.json', 'passed'): json.dump({'passed': True}, open(n, 'w'))",
        "other output",
    ),
    "writes a result to every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"passed\": true}')\n    except OSError: pass",
        "other output",
    ),
    "asks the network": (
        "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:1').read())",
        "exit code 1",
    ),
    "prints for ever": ("while True: print('4')", "wrote more output than is allowed"),
    "does not parse": ("def double(n:", "exit code 1: SyntaxError"),
    "prints both answers": ("print('4')\nprint('10')", "other output"),
    "10 GB": ("x = bytearray(10 << 30)", "exit code 1: MemoryError"),
}


@pytest.mark.parametrize(("source", "reason"), CHEATS.values(), ids=CHEATS.keys())
def test_a_cheat_scores_zero_with_the_true_reason(source: str, reason: str) -> None:
    found = score(DOUBLE, source)
    assert isinstance(found, Score)
    assert found.task_reward == 0.0
    assert reason in found.detail


def test_a_returned_object_that_is_equal_to_everything_is_no_value() -> None:
    cheat = "class All(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef double(n): return All(0)"
    assert score(task(call("double", [3], 6)), cheat) == Score(0.0, "test 1 of 1: another value")
    cheat = "class All:\n    def __eq__(self, other): return True\ndef double(n): return All()"
    found = score(task(call("double", [3], 6)), cheat)
    assert isinstance(found, Score)
    assert "not JSON serializable" in found.detail


@pytest.mark.parametrize("value", ["[" * 100_000, "1" * 10_000, "{", "", "NaN", "1e999"])
def test_a_forged_value_that_upsets_a_parser_is_no_value(value: str) -> None:
    source = (
        f"import os\ndef double(n):\n    for fd in range(3, 9):\n        try: os.write(fd, {value!r}.encode())\n"
        "        except OSError: pass\n    os._exit(0)"
    )
    found = score(task(call("double", [3], 6)), source)
    assert isinstance(found, Score)
    assert found.task_reward == 0.0


def test_a_program_that_runs_for_ever_scores_zero() -> None:
    found = score(task(stdin("", "1"), time_limit_seconds=0.5), "while True: pass")
    assert isinstance(found, Score)
    assert "used up its CPU time" in found.detail


class Ending:
    """A pool whose programs end as told."""

    slots = 2

    def __init__(self, outcome: Outcome | Exception) -> None:
        self._outcome = outcome

    def run_all(self, programs: list[object]) -> list[Outcome]:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return [self._outcome for _ in programs]


def _ends(monkeypatch: pytest.MonkeyPatch, outcome: Outcome | Exception) -> Score | Unscorable:
    monkeypatch.setattr(code_module, "shared_pool", lambda: Ending(outcome))
    return score(task(stdin("", "1"), time_limit_seconds=4), "print(1)")


@pytest.mark.parametrize(("cpu", "scored"), [(3.9, True), (4.1, False), (7.9, False)])
def test_a_right_program_near_the_time_limit_is_nobodys_zero(
    monkeypatch: pytest.MonkeyPatch, cpu: float, scored: bool
) -> None:
    found = _ends(monkeypatch, Outcome("exited", 0, b"1\n", "", cpu, cpu))
    assert isinstance(found, Score) == scored
    if isinstance(found, Unscorable):
        assert f"test 1 passed after {cpu} s of CPU time, too close to the limit of 4.0 s" in found.reason


@pytest.mark.parametrize("error", [SandboxFailed("three sandboxes did not start"), NoIsolation("no walls here")])
def test_a_sandbox_that_fails_is_nobodys_zero(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    assert _ends(monkeypatch, error) == Unscorable(f"task t: {error}")


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ({"test_cases": []}, "test_cases has no tests or too many; allowed: 1 to 1000"),
        ({"test_cases": None}, "test_cases has no tests"),
        ({"test_cases": [{"type": "stdin_stdout", "input": 1, "output": "1"}]}, "test 1 is neither stdin_stdout"),
        ({"test_cases": ["print"]}, "test 1 is neither stdin_stdout"),
        ({"test_cases": [{"type": "function_call", "fn_name": "f", "input": [1]}]}, "test 1 is neither"),
        ({"language": "rust"}, "language is 'rust'; allowed: python"),
        ({"time_limit_seconds": 0}, "time_limit_seconds is 0; allowed: more than 0, at most 60"),
        ({"time_limit_seconds": "4"}, "time_limit_seconds is '4'"),
    ],
)
def test_a_task_that_cannot_be_judged_is_unscorable_with_the_field(info: dict[str, Any], problem: str) -> None:
    found = score(task(stdin("", "1"), **info), "print(1)")
    assert isinstance(found, Unscorable)
    assert problem in found.reason


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\n1\n```", "1\n"),
        ("```\n1\n```", "1\n"),
        ("```python\n1\n```\n```python\n2\n```", "2\n"),
        ("<think>```python\n1\n```</think>", None),
        ("```python\n1", None),
        ("1", None),
        ("", None),
        ("```python\n" + "1" * 200_000 + "\n```", None),
    ],
)
def test_the_program_is_the_last_block_after_the_thoughts(completion: str, program: str | None) -> None:
    assert program_of(completion) == program


def test_no_program_scores_zero() -> None:
    assert ENVIRONMENT.score(DOUBLE, "print(2)").task_reward == 0.0


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("1\n", "1", True),
        ("1 \n2\n\n", "1\n2", True),
        ("1\n\n2", "1\n2", False),
        (" 1", "1", False),
        ("1.0", "1", False),
        ("", "", True),
        ("A", "a", False),
    ],
)
def test_output_is_equal_line_by_line(given: str, wanted: str, same: bool) -> None:
    assert same_output(given, wanted) == same


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (1, True, False),
        (True, True, True),
        ("1", 1, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, None, True),
        (None, 0, False),
        (10**400, 1.5, False),
        (float("nan"), 1.0, False),
        ("a", "a", True),
    ],
)
def test_values_are_equal_as_json(given: object, wanted: object, same: bool) -> None:
    assert same_value(given, wanted) == same


def test_tasks_are_the_same_for_the_same_seed_and_survive_the_task_table() -> None:
    assert ENVIRONMENT.tasks(14, seed=5) == TASKS != ENVIRONMENT.tasks(14, seed=6)
    assert read_tasks(write_tasks(TASKS)) == TASKS
    with pytest.raises(ValueError, match="allowed: 1 to 10000, or tasks of a data set"):
        ENVIRONMENT.tasks(0, seed=0)


def test_the_digest_pins_the_sandbox_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(load("code"))
    monkeypatch.setattr(Code, "sources", ("shoal.environments.code_tasks",))
    assert digest(Code()) != before


def test_a_task_without_a_solution_has_no_gold() -> None:
    with pytest.raises(ValueError, match=r"task t: metadata.solution is missing"):
        ENVIRONMENT.gold(DOUBLE)


@pytest.fixture(autouse=True, scope="module")
def _isolated() -> None:
    assert ENVIRONMENT.problems() == []
