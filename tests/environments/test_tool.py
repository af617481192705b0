"""The calculator in the loop: episodes are played and replayed, and no output of a tool is believed that the tool did not give."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable, digest, load
from shoal.environments.episodes import Tools, WithTools, tools_of
from shoal.environments.tool import CannotCalculate, Tool, calculate
from shoal.inference.completions import Completion, Request
from shoal.inference.rollouts import PlannedRow
from shoal.inference.tool_episodes import ToolFailedError, play

ENVIRONMENT = Tool()
TASK = ENVIRONMENT.tasks(1, seed=2)[0]
EXPRESSION, ANSWER = TASK.metadata["expression"], TASK.verification_info["answer"]
END = 0
"""The end-of-sequence token of the tokenizer below."""
PROMPT = (900, 901)
LIMIT = 500


class Pieces:
    """A tokenizer with a token a character, and some tokens of several: what a stop text may end inside of."""

    long = ((1000, "c>\n"), (1001, "</calc>"), (1002, "</calc>!"), (1003, "calc>x"))

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(dict(self.long).get(token, chr(token)) for token in token_ids)


TOOLS = Tools(ENVIRONMENT, Pieces(), frozenset({END}))


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class Model:
    """An engine whose stretches are given: each is sampled until it pauses, ends, or reaches the request's limit."""

    def __init__(self, *stretches: list[int], again: bool = False) -> None:
        self.stretches, self.again, self.asked = list(stretches), again, list[Request]()

    def __call__(self, requests: list[Request]) -> list[Completion]:
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Completion:
        self.asked.append(request)
        written = self.stretches[0] if self.again else self.stretches.pop(0)
        for end in range(1, len(written) + 1):
            tokens = written[:end]
            if tokens[-1] == END:
                reason = "stop"
            elif TOOLS.pauses(tokens):
                reason = "unanswered"
            elif end == request.max_tokens:
                reason = "length"
            else:
                continue
            return Completion(tokens, [-0.5] * end, reason, bytes([len(self.asked)]))
        raise AssertionError("the stretch has no end")


def episode(model: Callable[..., list[Completion]], tools: Tools = TOOLS, limit: int = LIMIT) -> Completion:
    row = PlannedRow(TASK, 0, 0, None, Request(PROMPT, 77, 1.0, limit))
    return play([row], tools, model)[0]


def problem(made: Completion, tools: Tools = TOOLS, limit: int = LIMIT) -> object:
    assert made.mask is not None
    return tools.problem(TASK, made.tokens, made.mask, made.finish_reason, limit)


def text(made: Completion) -> str:
    return Pieces().decode(made.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_a_call_is_answered_and_the_model_goes_on() -> None:
    call, result, rest = f"Well, <calc>{EXPRESSION}</calc>", f"<result>{ANSWER}</result>", f"\nAnswer: {ANSWER}"
    model = Model(ids(call), [*ids(rest), END])
    made = episode(model)
    assert text(made) == call + result + rest + chr(END)
    assert made.mask == [True] * len(call) + [False] * len(result) + [True] * (len(rest) + 1)
    assert made.logprobs == [-0.5 * sampled for sampled in made.mask]
    assert made.finish_reason == "stop"
    assert made.proofs == b"\x01\x02"
    assert made.sampled == len(call) + len(rest) + 1
    assert problem(made) is None
    assert ENVIRONMENT.score(TASK, text(made)[:-1]) == Score(1.0, "the answer is right")
    first, second = model.asked
    assert (first.prompt_tokens, first.seed, first.max_tokens) == ([*PROMPT], 77, LIMIT)
    assert second.prompt_tokens == [*PROMPT, *ids(call + result)]
    assert (second.seed, second.max_tokens) == (77, LIMIT - len(call + result))


def test_rows_without_a_call_are_what_they_would_be_without_tools() -> None:
    made = episode(Model([*ids("Answer: 1"), END]))
    assert made.mask == [True] * 10
    assert (made.finish_reason, made.proofs, problem(made)) == ("stop", b"\x01", None)


def test_a_model_that_only_calls_has_no_more_calls_after_some() -> None:
    model = Model(ids("<calc>1+1</calc>"), again=True)
    made = episode(model)
    assert len(model.asked) == ENVIRONMENT.most_calls + 1
    assert text(made).count("<result>2</result>") == ENVIRONMENT.most_calls
    assert text(made).endswith("<calc>1+1</calc>")
    assert (made.finish_reason, problem(made)) == ("unanswered", None)


def test_a_stop_text_that_ends_no_call_ends_the_episode() -> None:
    made = episode(Model(ids("x</calc>")))
    assert (text(made), made.finish_reason, problem(made)) == ("x</calc>", "unanswered", None)


@pytest.mark.parametrize("room", [0, 1, 18, 19])
def test_an_output_that_leaves_no_room_for_a_token_is_not_put_in(room: int) -> None:
    call, result = "<calc>2*3</calc>", "<result>6</result>"
    assert len(result) == 18
    made = episode(Model(ids(call), ids("a" * 9)), limit=len(call) + room)
    if room <= len(result):
        assert (text(made), made.finish_reason) == (call, "unanswered")
    else:
        assert (text(made), made.finish_reason) == (call + result + "a", "length")
    assert problem(made, limit=len(call) + room) is None


@pytest.mark.parametrize(
    "last",
    [[*ids("</calc>")], [*ids("</cal"), 1000], [1001], [1002], [*ids("</"), 1003]],
    ids=["characters", "ends inside a token", "one token", "one token and more", "begins outside"],
)
def test_a_stretch_pauses_at_the_token_that_completes_the_stop_text_and_keeps_all_of_it(last: list[int]) -> None:
    call = [*ids("<calc>2*3"), *last]
    assert [TOOLS.pauses(call[:end]) for end in range(len(call) + 1)] == [False] * len(call) + [True]
    made = episode(Model([*call, *ids("never sampled")], [*ids("Answer: 6"), END]))
    assert made.tokens == [*call, *ids("<result>6</result>Answer: 6"), END]
    assert problem(made) is None


def test_a_stretch_does_not_pause_because_of_what_the_tool_wrote() -> None:
    made = episode(Model(ids("<calc>2*3</calc>"), [*ids(">"), END]))
    assert text(made) == f"<calc>2*3</calc><result>6</result>>{chr(END)}"


CALL, RESULT, REST = ids("<calc>2*3</calc>"), ids("<result>6</result>"), [*ids("Answer: 6"), END]


def completion(*parts: tuple[list[int], bool], reason: str = "stop") -> Completion:
    """What a dishonest worker writes: parts of (tokens, sampled)."""
    tokens = [token for part, _ in parts for token in part]
    mask = [sampled for part, sampled in parts for _ in part]
    return Completion(tokens, [0.0] * len(tokens), reason, b"", mask)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (
            completion((CALL, True), (ids("<result>7</result>"), False), (REST, True)),
            "the tool's output after call 1 is claimed as '<result>7</result>', run again it is '<result>6</result>'",
        ),
        (completion((CALL, True), (RESULT[:-1], False), (REST, True)), "is claimed as '<result>6</result', run again"),
        (completion((RESULT, False), (REST, True)), "it begins or ends with a tool's output"),
        (completion((CALL, True), (RESULT, False), reason="length"), "it begins or ends with a tool's output"),
        (completion((ids("6"), True), (RESULT, False), (REST, True)), "a tool's output at token 1 follows no call"),
        (
            completion((CALL, True), (REST, True)),
            "sampled tokens follow the call that ends with token 15; the tool's output of 18 tokens is missing",
        ),
        (
            completion((CALL, True), (RESULT, True), (REST, True)),
            "sampled tokens follow the call that ends with token 15",
        ),
        (
            completion((CALL, True), reason="unanswered"),
            "it ends with call 1; the tool's output of 18 tokens is missing",
        ),
        (
            completion((ids("x</calc>"), True), (RESULT, False), (REST, True)),
            "a tool's output follows call 1, but the tool gives none",
        ),
        (
            completion((ids("x</calc>y"), True), (REST, True)),
            "sampled tokens follow the call that ends with token 7; the tool gives no output there",
        ),
        (
            completion(*[(CALL, True), (RESULT, False)] * 9, (REST, True)),
            "a tool's output follows call 9, but the tool gives none: no call is left",
        ),
        (completion((CALL[:9], True), (CALL[9:] + RESULT, False), (REST, True)), "follows no call"),
        (completion((CALL, True), (RESULT + REST[:3], False), (REST[3:], True)), "is claimed as"),
        (completion((REST, True), reason="unanswered"), "finish_reason is unanswered, and it does not end in a call"),
        (completion((ids("x</calc>"), True), reason="length"), "finish_reason is length, and its call is unanswered"),
    ],
    ids=[
        "forged output",
        "output cut short",
        "output first",
        "output last",
        "output without a call",
        "call left out",
        "tool's tokens marked as sampled",
        "call not made",
        "output of no call",
        "went on behind no call",
        "too many calls",
        "sampled tokens marked as the tool's, before",
        "sampled tokens marked as the tool's, behind",
        "unanswered without a call",
        "unanswered as length",
    ],
)
def test_an_episode_that_no_tool_made_is_told_apart(made: Completion, what: str) -> None:
    found = problem(made)
    assert isinstance(found, str)
    assert what in found


def test_a_result_that_the_model_wrote_itself_is_only_text() -> None:
    assert problem(completion(([*ids("<result>7</result>Answer: 7"), END], True))) is None


def test_a_tool_that_fails_makes_no_file_and_nobody_wrong() -> None:
    class Failing(Tool):
        def observe(self, task: Task, text: str) -> Unscorable:
            return Unscorable("the tool's machine is away")

    failing = Tools(Failing(), Pieces(), frozenset({END}))
    with pytest.raises(ToolFailedError, match="the tool's machine is away"):
        episode(Model(CALL), failing)
    made = episode(Model(CALL, REST))
    assert problem(made, failing) == Unscorable("the tool's machine is away")


def test_an_environment_without_tools_has_none_and_one_with_them_names_its_stop_texts() -> None:
    class Silent(Tool):
        stop = ("",)

    assert tools_of(load("arithmetic"), Pieces(), frozenset()) is None
    assert tools_of(ENVIRONMENT, Pieces(), frozenset()) is not None
    with pytest.raises(ValueError, match="stop texts, and none is empty"):
        tools_of(Silent(), Pieces(), frozenset())


@given(st.lists(st.sampled_from([*CALL, *RESULT, *REST, 1000, 1001, 1002, 1003]), min_size=1, max_size=60), st.data())
@settings(deadline=None, max_examples=200)
def test_any_mask_over_any_tokens_has_a_problem_or_none_and_never_a_crash(
    tokens: list[int], data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    found = TOOLS.problem(TASK, tokens, mask, "stop", LIMIT)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("1/3", "1/3"),
        ("7//2", "3"),
        ("7%4", "3"),
        ("2**10", "1024"),
        ("-5", "-5"),
        ("0.1+0.2", "3/10"),
        (" 1 ", "1"),
        ("2**-1", "1/2"),
    ],
)
def test_the_calculator_is_exact(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "not an expression"),
        ("1+", "not an expression"),
        ("1" * 201, "longer than 200"),
        ("9**9**9", "exponent"),
        ("2**65", "exponent"),
        ("((99**64)**64)", "too large"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "exponent"),
        ("__import__('os')", "allowed: numbers"),
        ("x", "allowed: numbers"),
        ("'a'*9", "allowed: numbers"),
        ("True", "allowed: numbers"),
        ("[1]", "allowed: numbers"),
        ("1 if 1 else 2", "allowed: numbers"),
        ("1e999", "too large"),
        ("(" * 90 + "1" + ")" * 90, None),
        ("\0", "not an expression"),
        ("1j", "allowed: numbers"),
    ],
)
def test_what_the_calculator_does_not_take_is_said(expression: str, problem: str | None) -> None:
    if problem is None:
        assert calculate(expression) == "1"
        return
    with pytest.raises(CannotCalculate, match=problem):
        calculate(expression)
    assert ENVIRONMENT.observe(TASK, f"<calc>{expression}</calc>").startswith("<result>error: ")


@given(st.text(alphabet="0123456789+-*/%(). e<calx>", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_call_gets_an_output_and_always_the_same(expression: str) -> None:
    output = ENVIRONMENT.observe(TASK, f"<calc>{expression}</calc>")
    assert isinstance(output, str)
    assert output == ENVIRONMENT.observe(TASK, f"<calc>{expression}</calc>")


def test_gold_scores_one_and_broken_zero() -> None:
    for task in ENVIRONMENT.tasks(50, seed=3):
        assert ENVIRONMENT.score(task, ENVIRONMENT.gold(task)).task_reward == 1.0
        assert ENVIRONMENT.score(task, ENVIRONMENT.broken(task)).task_reward == 0.0
    assert ENVIRONMENT.score(TASK, "42").task_reward == 0.0
    assert ENVIRONMENT.tasks(50, seed=3) != ENVIRONMENT.tasks(50, seed=4)


def test_the_environment_is_found_and_says_that_it_has_tools() -> None:
    assert isinstance(load("tool"), WithTools)
    assert not isinstance(load("arithmetic"), WithTools)
    assert len(digest(load("tool"))) == 64
