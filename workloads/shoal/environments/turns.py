"""Episodes of several turns: a model ends a turn with calls of functions, gets the answers as a message of its template, and takes another turn.

An environment with turns has `functions`, `most_turns`, `longest_turn` and `answers(task, turns)`. A completion is then the model's turns with the
template's messages between them, whose `completion_mask` is false. The seam is that of `episodes.Tools`: `Turns` has the same members.

The rules, which workers follow and validators check:
- A turn ends with an end-of-sequence token, or is cut after `longest_turn` tokens or at the completion's limit ("length"). Then the completion ends.
- A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in what the model wrote behind its thoughts. A turn without one is the last.
  Nothing in a prompt or in an answer of a function is ever a call.
- The answers of a turn's calls are one stretch of tokens: what the template writes around tool messages, and each answer as text, which makes no
  control tokens. The completion ends at the turn ("stop") where no turn is left, or no room for the answers and one more token.
- Answers are a function of the task and of all calls so far. Nothing is kept between episodes, and the calls of a whole episode are answered at once.

A validator checks the shape of every row before the proofs (`problem`), and runs the calls of every row again behind them (`run_again`). An answer
that is `sure` is the same on every machine, so another one is a lie. Where others differ, the row cannot be scored, and nobody is at fault.
Costs: one decoding of each turn; a worker answers the calls of turn n together with those before it, a validator those of an episode once.
Pure, except for the environment's functions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

from shoal.contracts.prompts import PromptTerms
from shoal.contracts.rollouts import sampled_stretches
from shoal.contracts.tasks import Task
from shoal.environments.base import Unscorable
from shoal.environments.prompts import CALL, CALL_END, FIRST_MARK, BadPrompt, check_functions, encode_text
from shoal.environments.results import Answers as Answers
from shoal.environments.results import FunctionCall as FunctionCall
from shoal.environments.results import ToolAnswer as ToolAnswer
from shoal.environments.tokens import Tokenizer

MOST_CALLS = 8
"""Of one turn; further ones are not read."""
MOST_NESTED = 64
"""Levels of lists and objects in a call. Python reads some thousand, how many differs between versions and places, and all machines must agree."""
LONGEST_ANSWER = 4000
"""Characters of one answer that the model is given."""
TURN_END = "\x1e"
"""Between the turns of an episode's text (ASCII's record separator). A model that writes one gets U+FFFD in its place."""
PROBE, SAID = "Tell me.", "Here it is."


@dataclass(frozen=True)
class Rerun:
    """What came of running an episode's calls again. `lie`: no machine makes this row. `differs`: another machine might, so that it is not scored.

    `failed`: this machine could not run them now.
    """

    lie: str | None = None
    differs: str | None = None
    failed: str | None = None
    program_seconds: float = 0.0


@runtime_checkable
class WithTurns(Protocol):
    """Further members of an environment whose model takes several turns.

    `functions`: JSON schemas with `name`, `description` and `parameters`, for the prompt. `most_turns`: of the model in an episode. `longest_turn`:
    tokens of one turn, None for no limit of its own.
    """

    functions: Sequence[Mapping[str, Any]]
    most_turns: int
    longest_turn: int | None

    def answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        """Answers to the calls of an episode's first turns, those of each earlier turn included. Bounded; any arguments are allowed.

        Calls with a `problem` never come here. Unscorable when the functions themselves failed.
        """


def calls_of(turn: str) -> list[FunctionCall]:
    """The calls in the text of one turn, at most `MOST_CALLS`. What stands in the model's thoughts is none. Takes time in line with the text."""
    text, found, place = turn.rpartition("</think>")[2], list[FunctionCall](), 0
    while len(found) < MOST_CALLS:
        start = text.find(CALL, place)
        end = text.find(CALL_END, start + len(CALL)) if start >= 0 else -1
        if end < 0:
            break
        found.append(_call(text[start + len(CALL) : end]))
        place = end + len(CALL_END)
    return found


def episode_text(turns: Sequence[str]) -> str:
    """What an environment with turns scores: what the model wrote, and nothing that it was given."""
    return TURN_END.join(turn.replace(TURN_END, "\ufffd") for turn in turns)


def last_turn(completion: str) -> str:
    """The model's last turn in such a text."""
    return completion.rpartition(TURN_END)[2]


class Turns:
    """The functions of an environment for one tokenizer and the run's prompts.

    Raises BadPrompt where the template has no place for answers, or a function has no name of its own.
    """

    by_turns = True

    def __init__(
        self,
        environment: WithTurns,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        terms: PromptTerms | None,
    ) -> None:
        if environment.most_turns < 1 or (environment.longest_turn is not None and environment.longest_turn < 1):
            raise ValueError("an environment with turns has most_turns and longest_turn of at least 1")
        self._environment = environment
        self._tokenizer = tokenizer
        self._eos = eos_token_ids
        self._terms = terms
        self._pieces: dict[int, list[list[int]]] = {}
        check_functions(environment.functions)
        self._names = [each["name"] for each in environment.functions]
        self.longest_turn = environment.longest_turn
        added = tokenizer.added_tokens_decoder
        # Tokens that no answer's text is encoded to.
        self._control = eos_token_ids | {number for number, each in added.items() if each.special}
        self._around(1)

    def pauses(self, tokens: Sequence[int]) -> bool:
        """Never: a turn ends where a completion does."""
        return False

    def asks(self, finish_reason: str) -> bool:
        """Whether a turn that ended so may hold calls."""
        return finish_reason == "stop"

    def turn_room(self, room: int) -> int:
        """Most tokens of the next turn. `room`: those that the completion may still take."""
        return room if self.longest_turn is None else min(room, self.longest_turn)

    def output(
        self, task: Task, tokens: Sequence[int], mask: Sequence[bool], limit: int
    ) -> list[int] | Unscorable | None:
        """Tokens between a completion's last turn, which has just ended, and the next; None when the completion ends there.

        `limit`: the most tokens that the whole completion may have. Unscorable when the functions fail.
        """
        turns = [calls_of(text) for text in self._texts(tokens, mask)]
        if not turns[-1] or len(turns) >= self._environment.most_turns:
            return None
        found = self._answered(task, turns)
        if isinstance(found, Unscorable):
            return found
        message = self._message(found.turns[-1])
        return message if len(tokens) + len(message) < limit else None

    def problem(
        self, task: Task, tokens: Sequence[int], mask: Sequence[bool], finish_reason: str, limit: int
    ) -> str | Unscorable | None:
        """The fault of a completion that shows without running anything; None when its turns and messages are where they may be."""
        if not mask[0] or not mask[-1]:
            return "it begins or ends with a function's answer; a model writes first and last"
        if finish_reason == "unanswered":
            return "finish_reason is unanswered, and an episode of turns ends with stop or length"
        stretches = sampled_stretches(mask)
        if len(stretches) > self._environment.most_turns:
            return f"it has {len(stretches)} turns; allowed: {self._environment.most_turns}"
        for number, stretch in enumerate(stretches, 1):
            turn = tokens[stretch]
            if any(token in self._eos for token in turn[:-1]):
                return f"turn {number} goes on behind an end-of-sequence token"
            if self.longest_turn is not None and len(turn) > self.longest_turn:
                return f"turn {number} has {len(turn)} tokens; allowed: {self.longest_turn}"
        for number, (before, after) in enumerate(pairwise(stretches), 1):
            if tokens[before.stop - 1] not in self._eos:
                return (
                    f"what is given as answers at token {before.stop} stands inside turn {number}, which has not ended"
                )
            calls = len(calls_of(self._text(tokens[before])))
            if not calls:
                return f"answers follow turn {number}, which calls nothing"
            wrong = self._wrong_around(list(tokens[before.stop : after.start]), calls)
            if wrong is not None:
                return f"the message after turn {number} {wrong}"
        return None

    def calls(self, tokens: Sequence[int], mask: Sequence[bool]) -> bool:
        """Whether the model calls anything in a completion."""
        return any(calls_of(text) for text in self._texts(tokens, mask))

    def run_again(
        self, task: Task, tokens: Sequence[int], mask: Sequence[bool], finish_reason: str, limit: int
    ) -> Rerun:
        """Answer all calls of a completion again, whose shape has no `problem`, and compare."""
        stretches = sampled_stretches(mask)
        turns = [calls_of(text) for text in self._texts(tokens, mask)]
        if not any(turns):
            return Rerun()
        found = self._answered(task, turns)
        if isinstance(found, Unscorable):
            name = "failed" if found.passing else "differs"
            return Rerun(**{name: found.reason}, program_seconds=found.program_seconds)
        lie = differs = None
        for number, (before, after) in enumerate(pairwise(stretches), 1):
            claimed = list(tokens[before.stop : after.start])
            ours = found.turns[number - 1]
            if claimed == self._message(ours):
                if before.stop + len(claimed) >= limit:
                    lie = f"the message after turn {number} leaves no room for another turn"
                continue
            words = f"after turn {number} {self._quote(claimed)} is claimed, run again it is {self._quote(self._message(ours))}"
            if self._contradicts(claimed, ours):
                lie = lie or words
            differs = differs or words
        if lie is None and differs is None and finish_reason == "stop":
            lie, differs = self._left_unanswered(turns, found, len(tokens), limit)
        return Rerun(lie, differs, program_seconds=found.program_seconds)

    def answer_text(self, tokens: Sequence[int], mask: Sequence[bool]) -> str:
        """What is scored of a completion."""
        return episode_text(self._texts(tokens, mask))

    def _left_unanswered(
        self, turns: Sequence[Sequence[FunctionCall]], found: Answers, length: int, limit: int
    ) -> tuple[str | None, str | None]:
        """What is wrong with a completion of `length` tokens that ends at its last turn, if that calls something."""
        if not turns[-1] or len(turns) >= self._environment.most_turns:
            return None, None
        ours = found.turns[-1]
        if length + len(self._message(ours)) >= limit:
            return None, None
        words = f"it ends with turn {len(turns)}, whose calls have answers, and there is room for another turn"
        longest = sum(len(piece) for piece in self._around(len(ours)))
        # A token holds a byte at least, and a character has at most four.
        longest += sum(len(each.text.encode()) if each.sure else 4 * LONGEST_ANSWER for each in ours)
        return (words, None) if length + longest < limit else (None, words)

    def _answered(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        """Answers to every call, those that are none included. Unscorable also when the environment gives others than were asked for."""
        checked = [[self._known(call) for call in turn] for turn in turns]
        asked = [[call for call in turn if call.problem is None] for turn in checked]
        found = self._environment.answers(task, asked) if any(asked) else Answers([[] for _ in turns])
        if isinstance(found, Unscorable):
            return found
        if [len(turn) for turn in found.turns] != [len(turn) for turn in asked]:
            return Unscorable("the environment answers other calls than it was asked", found.program_seconds)
        filled = []
        for turn, given in zip(checked, found.turns, strict=True):
            answers = iter(given)
            filled.append(
                [
                    ToolAnswer(f"error: {call.problem}", True) if call.problem is not None else _bounded(next(answers))
                    for call in turn
                ]
            )
        return Answers(filled, found.program_seconds)

    def _known(self, call: FunctionCall) -> FunctionCall:
        if call.problem is None and call.name not in self._names:
            return FunctionCall(problem=f"there is no such function; allowed: {', '.join(self._names)}")
        return call

    def _message(self, answers: Sequence[ToolAnswer]) -> list[int]:
        """Tokens between two turns."""
        first, *others = self._around(len(answers))
        tokens = list(first)
        for answer, piece in zip(answers, others, strict=True):
            tokens += [*encode_text(self._tokenizer, answer.text), *piece]
        return tokens

    def _wrong_around(self, claimed: list[int], count: int) -> str | None:
        """Why no answers of `count` calls make this message; None when some may."""
        first, *_, last = self._around(count)
        behind = len(claimed) - len(last)
        if behind < len(first) or claimed[: len(first)] != first or claimed[behind:] != last:
            return "is not what the chat template writes around answers"
        inside = claimed[len(first) : behind]
        pieces = sum(map(len, self._around(count)[1:-1]))
        if len(inside) > pieces + count * 4 * LONGEST_ANSWER:
            return f"has {len(inside)} tokens of answers; an answer has at most {LONGEST_ANSWER} characters"
        if count == 1 and not self._control.isdisjoint(inside):
            return "holds a control token in an answer, which no text makes"
        return None

    def _contradicts(self, claimed: list[int], ours: Sequence[ToolAnswer]) -> bool:
        """Whether a claimed message, which is not ours, cannot be another machine's: a sure answer differs, before any that is not."""
        place = 0
        for piece, answer in zip(self._around(len(ours)), (*ours, ToolAnswer("")), strict=True):
            if claimed[place : place + len(piece)] != piece:
                return True
            place += len(piece)
            if not answer.sure:
                break
            text = encode_text(self._tokenizer, answer.text)
            if claimed[place : place + len(text)] != text:
                return True
            place += len(text)
        return all(each.sure for each in ours)

    def _around(self, count: int) -> list[list[int]]:
        """Tokens before, between and behind the answers of `count` calls."""
        known = self._pieces.get(count)
        if known is None:
            known = self._pieces[count] = pieces_around(self._tokenizer, self._eos, self._terms, count)
        return known

    def _texts(self, tokens: Sequence[int], mask: Sequence[bool]) -> list[str]:
        """The text of each turn, without its end-of-sequence token."""
        return [self._text(tokens[stretch]) for stretch in sampled_stretches(mask)]

    def _text(self, turn: Sequence[int]) -> str:
        kept = turn[:-1] if turn[-1] in self._eos else turn
        return self._tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _quote(self, tokens: Sequence[int]) -> str:
        return repr(
            self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)[:200]
        )


def pieces_around(tokenizer: Any, eos: frozenset[int], terms: PromptTerms | None, count: int) -> list[list[int]]:
    """What the chat template writes behind an ended turn, around the answers of `count` calls, and up to where the next turn begins.

    Returns `count` + 1 lists of token ids. Answers are messages of role `tool`; where the template has none, one message of the user.
    Raises BadPrompt for raw prompts, and for a template that takes neither or does not end a turn with a stop token.
    """
    if terms is None or terms.template != "Chat":
        raise BadPrompt(
            "an environment with turns needs prompts by a chat template (template: Chat), and these are raw"
        )
    marks = [chr(FIRST_MARK + number) for number in range(count)]
    problem = ""
    roles: tuple[Literal["tool", "user"], ...] = ("tool", "user")
    for role in roles:
        given = marks if role == "tool" else ["\n".join(marks)]
        messages = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": SAID}]
        messages += [{"role": role, "content": each} for each in given]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **terms.template_arguments
            )
        except Exception as error:  # a template is a program of the model's author
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        behind = str(text).rpartition(SAID)[2]
        parts = re.split("|".join(marks), behind)
        first = tokenizer.encode(parts[0], add_special_tokens=False)
        if re.findall("|".join(marks), behind) != marks:
            problem = "it leaves out answers of functions"
        elif not first or first[0] not in eos:
            problem = "it does not end a turn of the model with a stop token"
        else:
            others = [*parts[1:-1], parts[-1] + terms.assistant_prefix]
            return [first[1:], *(tokenizer.encode(part, add_special_tokens=False) for part in others)]
    raise BadPrompt(f"the chat template has no place for answers of functions: {problem}")


def _call(text: str) -> FunctionCall:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if given is None or (isinstance(given, list | dict) and not _is_shallow(given)):
        return FunctionCall(problem="what stands in a tool call is no JSON")
    name = given.get("name") if isinstance(given, dict) else None
    arguments = given.get("arguments", {}) if isinstance(given, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return FunctionCall(problem="a tool call is an object with a name and arguments")
    return FunctionCall(name, arguments)


def _is_shallow(given: list[Any] | dict[str, Any]) -> bool:
    """Whether lists and objects are nested in at most `MOST_NESTED` levels. Takes time in line with the value."""
    level = [given]
    for _ in range(MOST_NESTED):
        values = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
        level = [part for part in values if isinstance(part, list | dict)]
        if not level:
            return True
    return False


def _bounded(answer: ToolAnswer) -> ToolAnswer:
    """As the model is given it: no longer than allowed, without halves of characters."""
    text = answer.text.encode("utf-8", "replace").decode()[:LONGEST_ANSWER]
    return ToolAnswer(text, answer.sure)
