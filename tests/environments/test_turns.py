"""Episodes of several turns: calls are read from what the model wrote, answers come in the template's own messages, and both sides agree."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from real_tokenizers import FAMILIES, checkpoint
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable, interpreter
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.episodes import tools_of
from shoal.environments.exact_programs import is_exact
from shoal.environments.interpreter import CELLS, ENDED, SILENT, STOPPED, Interpreter, run_cells
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import BadPrompt, load_tokenizer, prompt_pieces
from shoal.environments.tokens import eos_token_ids
from shoal.environments.turns import (
    LONGEST_ANSWER,
    MOST_CALLS,
    MOST_NESTED,
    TURN_END,
    Answers,
    FunctionCall,
    ToolAnswer,
    Turns,
    calls_of,
    episode_text,
    last_turn,
    pieces_around,
)
from shoal.rewards.sandbox import SandboxFailed

ENVIRONMENT = Interpreter()
TASK = ENVIRONMENT.tasks(1, seed=1)[0]
RAW = PromptTerms(template="Raw", tokenizer_digest="0" * 64)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def nested(levels: int) -> list[Any]:
    """Lists in a list."""
    found: list[Any] = []
    for _ in range(levels - 1):
        found = [found]
    return found


def of(family: str) -> tuple[Any, frozenset[int], PromptTerms]:
    folder = checkpoint(family)
    tokenizer = load_tokenizer(folder)
    return tokenizer, eos_token_ids(folder), decided(PromptSettings(), folder, tokenizer)


@pytest.mark.parametrize(
    ("turn", "wanted"),
    [
        ("Answer: 4", []),
        (call("python", code="1"), [FunctionCall("python", {"code": "1"})]),
        (f"{call('a')} and {call('b', x=[1])}", [FunctionCall("a"), FunctionCall("b", {"x": [1]})]),
        (f"<think>{call('a')}</think>Hm.", []),
        (f"<think>Hm.</think>{call('a')}", [FunctionCall("a")]),
        ("<tool_call>{</tool_call>", [FunctionCall(problem="what stands in a tool call is no JSON")]),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", [FunctionCall(problem="what stands in a tool call is no JSON")]),
        (call("a", x=nested(MOST_NESTED - 2)), [FunctionCall("a", {"x": nested(MOST_NESTED - 2)})]),
        (call("a", x=nested(MOST_NESTED - 1)), [FunctionCall(problem="what stands in a tool call is no JSON")]),
        (call("a", x=nested(500)), [FunctionCall(problem="what stands in a tool call is no JSON")]),
        ("<tool_call>[]</tool_call>", [FunctionCall(problem="a tool call is an object with a name and arguments")]),
        ('<tool_call>{"name": 1}</tool_call>', [FunctionCall(problem="a tool call is an object with a name and arguments")]),
        ('<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', [FunctionCall(problem="a tool call is an object with a name and arguments")]),
        ("<tool_call>", []),
        (call("a") * 20, [FunctionCall("a")] * MOST_CALLS),
    ],
    ids=["none", "one", "two", "thoughts", "behind thoughts", "no JSON", "deep", "nested", "nested too deep",
         "nested for Python", "a list", "no name", "text", "open", "many"],
)  # fmt: skip
def test_calls_are_read_from_a_turn(turn: str, wanted: list[FunctionCall]) -> None:
    assert calls_of(turn) == wanted


@pytest.mark.parametrize("turn", ["<tool_call>" * 100_000, "<tool_call></tool_call>" * 100_000], ids=["open", "closed"])
def test_calls_are_read_in_time_that_grows_with_the_text_alone(turn: str) -> None:
    assert len(calls_of(turn)) <= MOST_CALLS  # in the square of it, the first text takes minutes


def test_an_episodes_text_keeps_turns_apart_whatever_the_model_writes() -> None:
    text = episode_text(["Answer: 1", f"no{TURN_END}Answer: 2"])
    assert text.count(TURN_END) == 1
    assert last_turn(text) == "no\ufffdAnswer: 2"
    assert last_turn("Answer: 1") == "Answer: 1"


@pytest.mark.parametrize("family", FAMILIES)
def test_real_templates_have_a_place_for_answers(family: str) -> None:
    tokenizer, eos, terms = of(family)
    turns = Turns(ENVIRONMENT, tokenizer, eos, terms)
    end = min(eos & set(tokenizer.encode(tokenizer.apply_chat_template([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], tokenize=False), add_special_tokens=False)))  # fmt: skip
    written = tokenizer.encode(call("calculate", expression="6*7") + call("oracle"), add_special_tokens=False)
    tokens, mask = [*written, end], [True] * (len(written) + 1)
    given = turns.output(TASK, tokens, mask, 10_000)
    assert isinstance(given, list)
    text = tokenizer.decode(given, skip_special_tokens=False)
    assert "42" in text
    assert "error: there is no such function; allowed: calculate, python" in text
    assert turns.output(TASK, tokens, mask, len(tokens) + len(given)) is None
    rest = [*tokenizer.encode("Answer: 42", add_special_tokens=False), end]
    whole, masks = [*tokens, *given, *rest], [*mask, *[False] * len(given), *[True] * len(rest)]
    assert turns.problem(TASK, whole, masks, "stop", 10_000) is None
    assert turns.run_again(TASK, whole, masks, "stop", 10_000).lie is None
    assert turns.answer_text(whole, masks).endswith(f"{TURN_END}Answer: 42")
    forged = list(whole)
    place = next(
        at for at in range(len(tokens), len(tokens) + len(given)) if "42" in tokenizer.decode(forged[at : at + 2])
    )
    forged[place] = rest[0]
    assert turns.run_again(TASK, forged, masks, "stop", 10_000).lie is not None
    listed = "".join(prompt_pieces(tokenizer, ENVIRONMENT, TASK, None, terms))
    assert listed.count("<tool_call>") >= 1
    assert "calculate" in listed


def test_raw_prompts_have_no_turns() -> None:
    tokenizer, eos, _ = of("qwen3")
    for terms in (None, RAW):
        with pytest.raises(BadPrompt, match="needs prompts by a chat template"):
            tools_of(ENVIRONMENT, tokenizer, eos, terms)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ messages[0].content }}<|im_end|>", "it leaves out answers"),
        (
            "{% for m in messages %}{{ m.content }}\n{% endfor %}",
            "it does not end a turn of the model with a stop token",
        ),
        ("{{ raise_exception('only users here') }}", "only users here"),
    ],
)
def test_a_template_without_a_place_for_answers_is_refused(template: str, problem: str) -> None:
    tokenizer, eos, terms = of("qwen3")
    tokenizer.chat_template = template
    with pytest.raises(BadPrompt, match=problem):
        pieces_around(tokenizer, eos, terms, 1)


def test_a_function_that_spells_a_control_token_is_refused() -> None:
    class Hostile(Interpreter):
        functions = ({"name": "a", "description": "<|im_end|>", "parameters": {}},)

    tokenizer, _, terms = of("qwen3")
    with pytest.raises(BadPrompt, match="spells a control token"):
        prompt_pieces(tokenizer, Hostile(), TASK, None, terms)


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ([{"description": "adds", "parameters": {}}], "function 1 of the environment has no name: a text"),
        ([{"name": "a"}, {"name": ""}], "function 2 of the environment has no name: a text"),
        ([{"name": 3}], "function 1 of the environment has no name: a text"),
        (["a"], "function 1 of the environment must be an object"),
        ([{"name": "a"}, {"name": "a"}], "function 2 of the environment has the name 'a' of another"),
    ],
    ids=["no name", "empty name", "a number", "no object", "twice"],
)
def test_a_function_that_cannot_be_called_by_its_name_is_refused(functions: list[Any], problem: str) -> None:
    environment: Any = Interpreter()
    environment.functions = functions
    tokenizer, eos, terms = of("qwen3")
    for work in (
        lambda: Turns(environment, tokenizer, eos, terms),
        lambda: prompt_pieces(tokenizer, environment, TASK, None, terms),
    ):
        with pytest.raises(BadPrompt, match=problem) as refused:
            work()
        assert "\n" not in str(refused.value)


def test_functions_of_an_environment_without_turns_are_not_in_its_prompt() -> None:
    class Library(Arithmetic):
        functions = ("sin", "cos")

    tokenizer, _, terms = of("qwen3")
    task = Arithmetic().tasks(1, seed=1)[0]
    plain = prompt_pieces(tokenizer, Arithmetic(), task, None, terms)
    assert prompt_pieces(tokenizer, Library(), task, None, terms) == plain


def test_an_environment_that_answers_other_calls_is_not_believed() -> None:
    class Odd(Interpreter):
        def answers(self, task: Task, turns: Any) -> Answers | Unscorable:
            return Answers([[ToolAnswer("1"), ToolAnswer("2")]])

    tokenizer, eos, terms = of("qwen3")
    tokens = [*tokenizer.encode(call("python", code="1"), add_special_tokens=False), max(eos)]
    found = Turns(Odd(), tokenizer, eos, terms).output(TASK, tokens, [True] * len(tokens), 10_000)
    assert found == Unscorable("the environment answers other calls than it was asked")


def test_cells_share_a_memory_and_see_one_clock_and_one_chance() -> None:
    cells = ["x = 6\nprint(x*7)", "x**2", "import random, time\nrandom.random(), time.time()", "y", "1/0", "x"]
    first, again = run_cells(cells)[0], run_cells(cells)[0]
    assert first == again
    assert [answer.text for answer in first[:2]] == ["42", "36"]
    assert [answer.text for answer in first[3:]] == [
        "NameError: name 'y' is not defined",
        "ZeroDivisionError: division by zero",
        "6",
    ]
    assert [answer.sure for answer in first] == [True, True, False, False, False, False]
    assert run_cells(["x"])[0][0].text == "NameError: name 'x' is not defined"


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        (["x = 1", "import os; os._exit(3)", "x"], [SILENT, ENDED, ENDED]),
        (["import sys; sys.exit(0)", "1"], ["SystemExit: 0", "1"]),
        (["import os; os.write(1, b'no line of ours\\n')", "1"], [ENDED, ENDED]),
        (["def f(): f()\nf()", "1"], ["RecursionError: maximum recursion depth exceeded", "1"]),
    ],
    ids=["ends", "exit", "writes", "recursion"],
)
def test_what_a_cell_does_to_its_interpreter_is_said_in_its_answers(cells: list[str], texts: list[str]) -> None:
    assert [answer.text.removeprefix("error: ") for answer in run_cells(cells)[0]] == texts


def test_a_cell_without_an_end_is_stopped_and_those_behind_it_do_not_run() -> None:
    first, second = run_cells(["import os\nwhile True: pass", "1"])[0]
    assert first == second
    assert not first.sure
    assert first.text.removeprefix("error: ") in (STOPPED["cpu"], STOPPED["wall"])  # a busy machine waits


@pytest.mark.parametrize("cells", [["while True: pass"], ["x = 1", "while True: pass", "import math"]])
def test_a_machine_that_stalls_an_exact_program_has_failed(cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "LIMITS", replace(interpreter.LIMITS, wall_seconds=0.1))
    with pytest.raises(SandboxFailed, match="the sandbox stopped a program that cannot wait"):
        run_cells(cells)
    assert run_cells(["import math", "while True: pass"])[0][1].text == f"error: {STOPPED['wall']}"


def test_what_python_warns_of_is_no_part_of_an_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CELLS],
        input=json.dumps([r'print("area = \(3\)")', "1if True else 2"]),
        env=os.environ | {"PYTHONWARNINGS": "always"},  # each version of Python warns of other things by itself
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[r"area = \(3\)", True], ["1", True]]


def test_a_long_answer_is_cut() -> None:
    assert run_cells(["print('a' * 10**6)"])[0][0].text == "a" * LONGEST_ANSWER


@pytest.mark.parametrize(
    ("source", "exact"),
    [
        ("print(123*456)", True),
        ("x = [n*n for n in range(10) if n % 3 == 0]\nprint(sum(x), x[1:], end='')", True),
        ("a, b = 0, 1\nwhile a < 100:\n    a, b = b, a + b\na", True),
        ("7**3 % 5", True),
        ("1/3", False),
        ("0.5", False),
        ("2**-1", False),
        ("x = 2\nx**x", False),
        ("import math", False),
        ("print(print)", False),
        ("print = 3", False),
        ("print((n for n in [1]))", False),
        ("id(1)", False),
        ("{1, 2}", False),
        ("def f(): pass\nf", False),
        ("'a'.upper()", False),
        ("__name__", False),
        ("lambda: 1", False),
        ("open('x')", False),
        ("f(1)", False),
        ("print(*[1])", False),
        ("(", False),
        ("1" + "+1" * 5000, False),
        ("'a' 'b' * 3", True),
        (r"['\U0001fae8']", False),
        ("'\u00e9'", False),
        ("\u00e9 = 1", False),
        ("['%c' % 129768]", False),
        (r"['\x25' + 'c']", False),
    ],
)
def test_exact_programs_are_told_by_their_syntax(source: str, exact: bool) -> None:
    assert is_exact(source) is exact


def test_gold_answers_score_and_broken_ones_do_not() -> None:
    for task in ENVIRONMENT.tasks(12, seed=3):
        assert ENVIRONMENT.score(task, ENVIRONMENT.gold(task)) == Score(1.0, "the answer is right")
        assert isinstance(found := ENVIRONMENT.score(task, ENVIRONMENT.broken(task)), Score)
        assert found.task_reward == 0.0
        [python], [] = (calls_of(turn) for turn in ENVIRONMENT.gold(task).split(TURN_END))
        answered = ENVIRONMENT.answers(task, [[python]])
        assert isinstance(answered, Answers)
        assert answered.turns[0][0].text == task.verification_info["answer"]


def test_an_answer_in_an_earlier_turn_is_none() -> None:
    answer = TASK.verification_info["answer"]
    assert ENVIRONMENT.score(TASK, f"Answer: {answer}{TURN_END}Done.") == Score(
        0.0, "there is no 'Answer:' in the last turn"
    )
    assert not ENVIRONMENT.has_answer(TASK, f"Answer: {answer}{TURN_END}Done.")


def test_arguments_of_any_kind_are_answered() -> None:
    calls = [
        FunctionCall("python", {"code": 1}),
        FunctionCall("python"),
        FunctionCall("calculate", {"expression": None}),
    ]
    found = ENVIRONMENT.answers(TASK, [calls])
    assert isinstance(found, Answers)
    assert all(answer.text.startswith("error: ") and answer.sure for answer in found.turns[0])
