"""Episodes with tools: a model writes, pauses at a call, is given the tool's output, and continues, all in one completion.

An environment with tools has `stop` (texts that end a call) and `most_calls`, and `observe(task, text)`: the tool's output for an episode whose
text so far ends in a call. A completion is then stretches of sampled tokens with the tokens of tools between them, whose `completion_mask` is false.

The rules are those of `Tools`, which workers follow and validators check, token by token, so that they cannot disagree:
- A stretch pauses at the first token with which a text of `stop` is complete. What that token holds behind it is part of what was sampled.
- The tool's output is encoded on its own, as text that makes no control tokens, and follows the pause. The completion ends at
  the pause instead, as "unanswered", in three cases. No call is left (`most_calls`); what comes before is not a call;
  the output would not leave room for one more token below the length limit.
- Every other stretch ends with an end-of-sequence token ("stop") or at the limit ("length"), and the completion with it. Tokens of tools count
  towards the limit.

An environment whose calls end the model's turn, and whose answers are messages of the chat template, has `turns` instead of these rules.
Pure, except for the environment's tools.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol, runtime_checkable

from shoal.contracts.prompts import PromptTerms
from shoal.contracts.rollouts import sampled_stretches
from shoal.contracts.tasks import Task
from shoal.environments.base import Unscorable
from shoal.environments.prompts import encode_text
from shoal.environments.tokens import Tokenizer, completion_text
from shoal.environments.turns import Turns, WithTurns

SPARE_TOKENS = 4
"""More than a stop text has bytes: what a decoder trims at the edge of a window must not hide the text."""


@runtime_checkable
class WithTools(Protocol):
    """Further members of an environment whose model may call tools. `observe` is deterministic and bounded: a validator repeats it."""

    stop: tuple[str, ...]
    most_calls: int

    def observe(self, task: Task, text: str) -> str | Unscorable | None:
        """The tool's output, to be put after the text, which ends with one of `stop`.

        None when the text does not end in a call; Unscorable when the tool itself failed. An empty output is none.
        """


class Tools:
    """The tools of an environment for one tokenizer."""

    by_turns = False

    def __init__(self, environment: WithTools, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        if not environment.stop or not all(environment.stop):
            raise ValueError(f"an environment with tools has stop texts, and none is empty: {environment.stop!r}")
        self._environment = environment
        self._tokenizer = tokenizer
        self._eos = eos_token_ids
        # A token holds a byte at least, so that this many hold any stop text that ends in the last of them.
        self._window = max(len(text.encode()) for text in environment.stop) + SPARE_TOKENS
        self._last_characters = {text[-1] for text in environment.stop}
        self._may_end_a_call: dict[int, bool] = {}

    def pauses(self, tokens: Sequence[int]) -> bool:
        """Is a stop text complete with the last of these tokens of one stretch, and with none before? Never with an end-of-sequence token."""
        if not tokens or tokens[-1] in self._eos or not self._can_end_a_call(tokens[-1]):
            return False
        tail = self._decode(tokens[-self._window :])
        return any(text in tail for text in self._environment.stop)

    def asks(self, finish_reason: str) -> bool:
        """Whether a stretch that ended so may end with a call."""
        return finish_reason == "unanswered"

    def turn_room(self, room: int) -> int:
        """Most tokens of the next stretch. `room`: those that the completion may still take."""
        return room

    def output(
        self, task: Task, tokens: Sequence[int], mask: Sequence[bool], limit: int
    ) -> list[int] | Unscorable | None:
        """Tokens of the tool's output that follows a completion which pauses at its last token; None when it ends there.

        `limit`: the most tokens that the whole completion may have. Unscorable when the tool fails: nothing is known about the episode then.
        """
        calls = sum(not sampled for sampled, _ in groupby(mask))
        if calls >= self._environment.most_calls:
            return None
        given = self._environment.observe(task, self._call_text(tokens, mask))
        if given is None or isinstance(given, Unscorable):
            return given
        encoded = encode_text(self._tokenizer, given)
        return encoded if encoded and len(tokens) + len(encoded) < limit else None

    def problem(
        self, task: Task, tokens: Sequence[int], mask: Sequence[bool], finish_reason: str, limit: int
    ) -> str | Unscorable | None:
        """The fault of a finished completion. None when the answer to every call equals the tool's current output. Every call is run again."""
        if not mask[0] or not mask[-1]:
            return "it begins or ends with a tool's output; a model writes first and last"
        stretches = sampled_stretches(mask)
        for number, stretch in enumerate(stretches):
            pause = self._pause(tokens[stretch])
            end, last = stretch.stop, stretch is stretches[-1]
            if pause is None:
                if not last:
                    return f"what is given as a tool's output at token {end} follows no call"
                if finish_reason == "unanswered":
                    return "finish_reason is unanswered, and it does not end in a call"
                return None
            place = stretch.start + pause + 1
            output = self.output(task, tokens[:place], mask[:place], limit)
            if isinstance(output, Unscorable):
                return output
            if place < end:
                return f"sampled tokens follow the call that ends with token {place - 1}; {_expected(output)}"
            if output is None:
                if not last:
                    return f"a tool's output follows call {number + 1}, but the tool gives none: no call is left, it is not a call, or too long"
                return (
                    None
                    if finish_reason == "unanswered"
                    else f"finish_reason is {finish_reason}, and its call is unanswered"
                )
            if last:
                return f"it ends with call {number + 1}; {_expected(output)}"
            claimed = list(tokens[end : stretches[number + 1].start])
            if claimed != output:
                return f"the tool's output after call {number + 1} is claimed as {self._quote(claimed)}, run again it is {self._quote(output)}"
        return None

    def _pause(self, stretch: Sequence[int]) -> int | None:
        """The first place in a stretch at which it pauses."""
        windows = (stretch[max(0, end - self._window) : end] for end in range(1, len(stretch) + 1))
        return next((place for place, window in enumerate(windows) if self.pauses(window)), None)

    def _can_end_a_call(self, token: int) -> bool:
        """A cheap first look: nearly all tokens do not hold the last character of a stop text."""
        known = self._may_end_a_call.get(token)
        if known is None:
            text = self._decode([token])
            # The last byte of a character outside ASCII may be a token of its own, which no decoder shows.
            known = any(last in text or not last.isascii() for last in self._last_characters)
            self._may_end_a_call[token] = known
        return known

    def _call_text(self, tokens: Sequence[int], mask: Sequence[bool]) -> str:
        """The text of an episode that pauses at its last token, cut behind its last stop text; each stretch is decoded on its own."""
        parts, start = [], 0
        for _, run in groupby(mask):
            end = start + sum(1 for _ in run)
            parts.append(self._decode(tokens[start:end]))
            start = end
        last = parts.pop()
        ends = [last.rfind(text) + len(text) for text in self._environment.stop if text in last]
        return "".join([*parts, last[: max(ends, default=len(last))]])

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _quote(self, tokens: Sequence[int]) -> str:
        return repr(self._decode(tokens)[:80])


EpisodeTools = Tools | Turns
"""Both have the same members: what a worker asks while it samples, and what a validator checks."""


def has_tools(environment: object) -> bool:
    """Whether its model may call anything."""
    return isinstance(environment, WithTools | WithTurns)


def tools_of(
    environment: object, tokenizer: Tokenizer, eos_token_ids: frozenset[int], terms: PromptTerms | None = None
) -> EpisodeTools | None:
    """The tools of an environment, None when it has none. Raises BadPrompt where the run's prompts (`terms`) have no place for answers."""
    if isinstance(environment, WithTurns):
        return Turns(environment, tokenizer, eos_token_ids, terms)
    return Tools(environment, tokenizer, eos_token_ids) if isinstance(environment, WithTools) else None


def scored_text(
    tools: EpisodeTools | None, tokenizer: Tokenizer, tokens: Sequence[int], mask: Sequence[bool], ends: frozenset[int]
) -> str:
    """The text of a completion that its environment scores: all of it, or of turns what the model wrote (`turns.episode_text`)."""
    if isinstance(tools, Turns):
        return tools.answer_text(tokens, mask)
    return completion_text(tokenizer, tokens, ends)


def _expected(output: list[int] | None) -> str:
    if output is None:
        return "the tool gives no output there, so it ends there as unanswered"
    return f"the tool's output of {len(output)} tokens is missing"
