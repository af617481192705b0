"""Generators of reasoning-gym: both sides score them alike and as the package does, in a sandbox only, and no answer runs as code."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agents.reasoning_gym import PYTHON, compare
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from servers import ROOT
from shoal.cli.main import app
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments import base, served
from shoal.environments.apart import Apart
from shoal.environments.base import BadEnvironment, load
from shoal.environments.exact_json import from_json, to_json
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.mixture import Mixture
from shoal.environments.reasoning_gym import UNTOLD, ReasoningGym, _shares, _turns
from shoal.environments.reasoning_gym_answers import ARITHMETIC, EXPRESSIONS, LISTS, answer_of, harmless
from shoal.environments.reasoning_gym_names import BadGenerators, Named, parse
from shoal.environments.results import Score, Unscorable
from shoal.errors import InputWrong

SPREAD = "chain_sum+countdown+graph_color+knights_knaves+rearc+simple_integration+spiral_matrix+string_insertion"
"""One right answer, many, none told; keys and tuples that JSON has not; and of each kind that evaluates answers."""


def test_worker_validator_and_package_score_a_spread_alike(tmp_path: Path) -> None:
    found = compare(f"reasoning-gym:{SPREAD}", 1, tmp_path)
    assert sorted(found) == SPREAD.split("+")
    assert {name: each for name, each in found.items() if not each.equal} == {}
    assert all(each.right_answers_right == each.tasks for each in found.values())


@pytest.mark.soak
def test_worker_validator_and_package_score_every_generator_alike(tmp_path: Path) -> None:
    found = compare("+".join(["reasoning-gym:all", *UNTOLD]), 4, tmp_path)
    assert {name: each for name, each in found.items() if not each.equal} == {}
    assert len(found) >= 95


@pytest.mark.soak
def test_no_other_scorer_compiles_an_answer() -> None:
    """In a process without a sandbox: what is refused here would run there."""
    program = """
import sys
from benchmarks.agents.reasoning_gym import PYTHON
from shoal.environments.reasoning_gym import ReasoningGym
from shoal.environments.reasoning_gym_answers import EXPRESSIONS, LISTS, answer_of
found, watched, usual = set(), [], set()
def hook(event, arguments):
    if watched and event == "compile" and arguments[1] in ("<string>", "<unknown>"):
        if watched[0] is None:
            usual.add(arguments[0])
        elif arguments[0] not in usual:
            found.add(watched[0])
sys.addaudithook(hook)
environment = ReasoningGym("all")
for task, dataset, item in environment.each_item(len(environment.generators), 1):
    name = task.verification_info["generator"]
    dataset.score_answer(item["answer"] or "", item)  # imports what it needs
    usual.clear()
    watched[:] = [None]
    dataset.score_answer("5", item)  # some give their own question to `eval`
    watched.clear()
    for text in PYTHON if name not in EXPRESSIONS | LISTS else ():
        watched[:] = [name]
        try:
            dataset.score_answer(answer_of(text), item)
        except Exception:
            pass
        watched.clear()
print("\\n", sorted(found), sep="")
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=1200
    )
    assert said.stdout.splitlines()[-1] == "[]"


def test_its_code_is_in_a_sandbox_whatever_the_owner_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.TRUSTED_VARIABLE, "reasoning-gym, arithmetic")
    assert not base.in_process(base.installed()["reasoning-gym"])
    environment = load('reasoning-gym:gcd@0*3+chain_sum{"max_terms":2}')
    assert isinstance(environment, Apart)
    tasks = environment.tasks(8, 5)
    assert [task.problem_id.partition("-")[0] for task in tasks].count("gcd") == 6
    assert tasks_digest(read_tasks(write_tasks(tasks))) == tasks_digest(tasks) == tasks_digest(environment.tasks(8, 5))
    assert tasks_digest(environment.tasks(8, 6)) != tasks_digest(tasks)
    assert environment.prompt(tasks[0], 60).endswith("</answer>. Think for 60 tokens before giving a response.")
    assert base.packages_of(environment) == ("reasoning_gym",)
    assert "shoal.environments.reasoning_gym" in base.sources_of(environment)
    assert len({base.digest(each) for each in (environment, load("reasoning-gym"), Mixture({"a": environment}))}) == 3
    for text in PYTHON:
        found = environment.score(tasks[0], text)
        assert isinstance(found, Score)
        assert found.task_reward < 0.2  # the package gives some for a right answer in a longer text
    other = tasks[0].model_copy(update={"verification_info": {"generator": "composite", "settings": {}, "level": None}})
    assert isinstance(environment.score(other, "<answer>1</answer>"), Unscorable)


def test_the_digest_covers_every_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text("")
    words = tmp_path / "reasoning_gym" / "words.txt"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    found = set()
    for text in ("one", "two"):
        words.write_text(text)
        found.add(base.digest(ReasoningGym()))
    assert len(found) == 2


def test_a_sandboxed_one_is_refused_in_one_line_too() -> None:
    with pytest.raises(
        BadEnvironment, match=r"^environment 'reasoning-gym:gdc': ValueError: reasoning-gym: there is no"
    ):
        load("reasoning-gym:gdc")
    with pytest.raises(ValueError, match="generators must be named: reasoning-gym:GENERATOR"):
        load("reasoning-gym").tasks(1, 0)
    with pytest.raises(ValueError, match=r"gives .* different tasks, not 5000: lower count or its weight"):
        load('reasoning-gym:count_bits{"max_n":50}').tasks(5000, 0)


def test_the_example_is_asked_and_judged_and_its_mistakes_are_told_before(tmp_path: Path) -> None:
    example = ROOT / "examples" / "reasoning-gym" / "trainingrun.yaml"
    train_tokenizer(["What is 1+1?"]).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    command = ["env", "preview", "--tokenizer", str(tmp_path), "-f"]
    said = CliRunner().invoke(app, [*command, str(example)])
    assert said.exit_code == 0, said.output
    assert said.output.count("</answer>' scores 1.00 (chain_sum gives 1)") == 3, said.output
    file = tmp_path / "run.yaml"
    file.write_text(example.read_text().replace("'reasoning-gym:", "'reasoning-gym:Wrong"))
    wrong = CliRunner().invoke(app, [*command, str(file)]).exception
    assert isinstance(wrong, InputWrong)
    assert len(wrong.lines) == 2
    assert "spec.tasks.environment: given" in wrong.lines[0]
    assert "must name generators, as in reasoning-gym:chain_sum" in wrong.lines[0]


def test_names_of_generators() -> None:
    assert parse('chain_sum{"a":[1,"+*"]}*2+gcd@0-2+all@1*3') == [
        Named("chain_sum", None, {"a": [1, "+*"]}, 2),
        Named("gcd", (0, 2)),
        Named("all", (1, 1), {}, 3),
    ]
    levels = ReasoningGym("chain_sum@0-2").generators
    assert [each.level for each in levels] == [0, 1, 2]
    assert len(ReasoningGym("algebra@0-1+knight_swap").generators) > 8


@given(st.text(alphabet='gcd@{}[]"*+-:1 \\', max_size=30))
def test_any_text_names_generators_or_is_refused_in_a_line(text: str) -> None:
    try:
        named = parse(text)
    except BadGenerators as error:
        named, line = [], str(error)
    assert named or re.fullmatch(r"reasoning-gym: .*", line)


@given(st.integers(0, 200), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_weights_are_kept_from_the_first_task_to_the_last(count: int, weights: list[int]) -> None:
    shares = _shares(count, weights)
    assert sum(shares) == count
    assert all(abs(share - count * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))
    turns = list(_turns(shares))
    assert [turns.count(number) for number in range(len(weights))] == shares
    half = turns[: count // 2]
    assert all(abs(half.count(number) - share / 2) <= len(weights) for number, share in enumerate(shares))


PLAIN = {
    "countdown": ["(3+4)*5-2/1", "2**10", "-7 + 15", "24"],
    "simple_integration": [
        "x**3/3 + C",
        "2*sqrt(x)**(1/2)",
        "exp(2*x)*sin(x)/4",
        "log(x, 2) + x_1",
        "(2*x + 3)**(3/2)/3",
        "(x + 1)**20",
        "E**(x**3/3)",
    ],
    "spiral_matrix": ["[1, 2, 3]", "[[1], (2, '3')]", "-5"],
    "chain_sum": ["__import__('os')", "x" * 10_000],
}
CODE = {
    "countdown": [
        "x",
        "f(2)",
        "sqrt(4)",
        "9**9**9",
        "(9**9)**99999",
        "1e300",
        "[24]",
        "True",
        "24 if 1 else 2",
        "4!",
        "1+" * 600 + "1",
        "0x18 # 1 2 3 4",
        "2_4",
        "1.5",
        "24e0",
        "(1 + # 2\n3)",
        "\u0662\u0664",
        "06",
        "7**99999",
    ],
    "simple_integration": [
        "eval(x)",
        "x.diff()",
        "x[0]",
        "'x'",
        "lambda: 0",
        "__class__",
        "_",
        "sin(x, evaluate=x)",
        "x**(9**9)",
        "(x := 1)",
        "x # x",
        "(x\n+1)",
        "0x10*x",
        "1_0*x",
        "\uff58",
        "1e-99999999999",
        "1e-300000*x",
        "1e-99*x",
        "0.0000000000000001*x",
        "(x+1)**300",
        "-(x+1)**50000",
        "x**50000",
        "(x+y+z+w)**60",
        "(x+1)**10*(x+C)**10",
        "((x+1)**20)**20",
        "sin((x+1)**300)",
        "(x+1)**(x-x+300)",
        "(x+1)**sqrt(90000)",
        "sqrt(x)**(9999/2)",
    ],
    "spiral_matrix": [
        "[x]",
        "oracle_answer",
        "[i for i in (1,)]",
        "[1]*10**9",
        "f'{1}'",
        "[f(1)]",
        "1 2 3",
        "{1: 2}",
        "\x00",
    ],
}


def test_only_plain_answers_reach_a_scorer_that_evaluates_them() -> None:
    for generator, answers in PLAIN.items():
        assert [harmless(generator, answer, ()) for answer in answers] == answers
    for generator, answers in CODE.items():
        assert [harmless(generator, answer, ()) for answer in answers] == [""] * len(answers)
    assert harmless("spiral_matrix", "1 2 3", ["1 2 3"]) == "1 2 3"  # compared before anything runs


DECEITS = {
    "countdown": "{target}; {target}+0*({sum}); {target:#x} # {numbers}; {target:#x}+0x0*({sum}); {target}+0_0*({sum}); {target}.0",
    "puzzle24": "6+6+6+6; 4*6*1*1; 0x18 # {numbers}; 2_4+0_0*({sum}); 24",
    "complex_arithmetic": "nan; n a n; nan+1j; NaN",
    "number_sorting": '[{nan}]; [{strings}]; ["\\u006ean"{more}]',
}
"""Answers that took the whole reward of every task of these generators, by what the task tells."""


@pytest.mark.parametrize("generator", DECEITS)
def test_no_spelling_takes_the_reward_of_every_task(generator: str) -> None:
    environment = ReasoningGym(generator)
    for task in environment.tasks(8, 3):
        metadata = task.verification_info["metadata"]
        numbers = metadata["numbers"] if generator in ARITHMETIC else []
        count = len(metadata.get("original_numbers", []))
        told = {
            "target": metadata.get("target"),
            "numbers": " ".join(map(str, numbers)),
            "sum": "+".join(map(str, numbers)),
            "nan": ",".join(["NaN"] * count),
            "strings": ",".join(['"nan"'] * count),
            "more": ',"nan"' * (count - 1),
        }
        for text in DECEITS[generator].split("; "):
            answer = text.format(**{key: each for key, each in told.items() if each is not None})
            found = environment.score(task, f"<answer>{answer}</answer>")
            assert isinstance(found, Score)
            assert found.task_reward < 0.1, answer
        found = environment.score(task, environment.gold(task))
        assert isinstance(found, Score)
        assert found.task_reward == 1.0


LONG = {
    "coin_flip": ["1e9999999999", "1e-9999999999", "1/1e9999999999"],
    "rubiks_cube": ["R9999999", "R 'R99999999999", "R99 " * 4000],
    "rush_hour": ["A+99999999", "B-99999999"],
    "intermediate_integration": ["1e-99999999999*x", "(x+1)**3000", "(x+y+z+w)**60", "(x+1)**20/(x+C)**20"],
    "propositional_logic": ["(" + " \u2228 ".join(f"x{number}" for number in range(60)) + ")", "P∧" * 4000 + "P"],
}
"""Answers that took minutes and more."""


@pytest.mark.parametrize("generator", LONG)
def test_no_short_answer_takes_long(generator: str) -> None:
    environment = load(f"reasoning-gym:{generator}")
    (task,) = environment.tasks(1, 3)
    for answer in LONG[generator]:
        found = environment.score(task, f"<answer>{answer}</answer>")
        assert isinstance(found, Score), found  # what takes more than `QUESTION_SECONDS` cannot be scored
        assert found.task_reward < 0.5


def test_no_beginning_of_a_probability_is_right() -> None:
    """The package's scorer gives all of the reward to every text that the right number begins with, such as 0, and two thirds to 0.5."""
    environment = ReasoningGym("coin_flip@0-12")
    for task in environment.tasks(40, 2):
        right = float(task.verification_info["answer"])
        for answer in ("0", "0.", "0.0", "0.5", "1", f"{right:.10f}"[:3]):
            found = environment.score(task, f"<answer>{answer}</answer>")
            assert isinstance(found, Score)
            near = abs(float(answer) - right) <= min(1e-4, right / 10)
            assert found.task_reward == float(near), (answer, right)
        assert environment.score(task, f"<answer>{right:.4g}</answer>") == environment.score(
            task, environment.gold(task)
        )


def test_right_polynomials_of_every_level_are_right_however_long() -> None:
    environment = ReasoningGym("polynomial_multiplication@0-3")
    tasks = environment.tasks(80, 2)
    assert max(len(environment.gold(task)) for task in tasks) > 2000
    found = [environment.score(task, environment.gold(task)) for task in tasks]
    assert all(isinstance(each, Score) and each.task_reward == 1.0 for each in found)


def test_right_numbers_and_cubes_are_still_taken() -> None:
    for generator, answers in {
        "coin_flip": ["5/16", "0.3125", "-1", "1,000", "3e-1"],
        "complex_arithmetic": ["3 - 2i", "(1.5e0+J)"],
        "number_sorting": ["['-1.5', '2']", "[1,\n 2]"],
        "rubiks_cube": ["R U2 F' L20", "Rw"],
        "rush_hour": ["A+1 B-2"],
    }.items():
        assert [harmless(generator, answer, ()) for answer in answers] == answers


@given(st.sampled_from(sorted(EXPRESSIONS | LISTS)), st.text(alphabet="x1.()[]'_+*-/=:, ef{}\n\\", max_size=40))
def test_what_reaches_a_scorer_has_no_attribute_and_no_unknown_call(generator: str, answer: str) -> None:
    if kept := harmless(generator, answer, ()):
        assert kept == answer
        for node in ast.walk(ast.parse(kept, mode="eval")):
            assert not isinstance(node, ast.Attribute | ast.Subscript | ast.Lambda | ast.JoinedStr | ast.NamedExpr)
            assert not isinstance(node, ast.Call)  # no function is spelled with these letters


@pytest.mark.parametrize(
    "text",
    [
        "<answer>1</answer>",
        "<answer>a<answer>b</answer>",
        "<answer>\n 2 \n</answer> <answer>",
        "none",
        "</answer><answer>x",
    ],
)
def test_the_answer_is_the_one_that_the_package_finds(text: str) -> None:
    utils = pytest.importorskip("reasoning_gym.utils")
    assert answer_of(text) == utils.extract_answer(text)
    assert answer_of("<answer>" * 200_000) is None  # in linear time


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.tuples(st.integers()), inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back_from_the_task_table_as_they_were(value: Any) -> None:
    task = Task(problem_id="a", task_type="b", prompt="?", verification_info={"value": to_json(value)})
    (read,) = read_tasks(write_tasks([task]))
    assert tasks_digest([read]) == tasks_digest([task])
    back = from_json(read.verification_info["value"])
    assert (back, repr(type(back))) == (value, repr(type(value)))


def test_what_a_task_table_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="a value of type object cannot be held in a task table"):
        to_json({"a": [object()]})
    with pytest.raises(ValueError, match="'!list' does not mark a value"):
        from_json({"!list": []})


def test_slow_tasks_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Task(problem_id=str(number), task_type="a", prompt="?") for number in range(3)]
    assert [len(part) for part in served._parts(iter(tasks))] == [3]
    monkeypatch.setattr(served, "BATCH_SECONDS", 0.0)
    assert [len(part) for part in served._parts(iter(tasks))] == [1, 1, 1]
