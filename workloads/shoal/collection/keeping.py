"""Which completions a data set keeps: right ones, whole ones, of a fitting length, few enough of a problem, each text once. Pure.

In: completions of whole problems, in order. Out: traces, and why each of the others was left out. The order decides which of several alike is kept,
so the same completions give the same data set. Called by `collector`; a restarted one fills `Sieve` with the rows written so far.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.filtering import ProblemCount
from shoal.contracts.sft_data import MAX_TEXT_BYTES, Trace

UNSCORED = "could not be scored"
WRONG = "is wrong"
CUT_OFF = "did not end by itself"
TOOL_OUTPUT = "has a tool's output inside"
OTHER_PROMPT = "has a prompt that reads as other tokens when it is text"
TOO_SHORT = "is too short"
TOO_LONG = "is too long"
TOO_LARGE = "has a text that is too long in bytes"
SAME = "is an exact duplicate"
ALIKE = "is a duplicate except for case, spaces and Unicode forms"
ENOUGH = "its problem has enough completions already"

DIGEST_BYTES = 16
"""128 bits tell a hundred million texts apart; memory is about 100 bytes a row."""


@dataclass(frozen=True)
class Completed:
    """One completion with all that is asked of it. `task_reward` is None where it could not be scored, `whole` False where it was cut off."""

    problem_id: str
    task_type: str
    prompt: str
    completion: str
    tokens: int
    task_reward: float | None
    whole: bool = True
    tool_output: bool = False
    other_prompt: bool = False
    """The prompt's text makes other tokens than those that were sampled from: it spells a control token, say."""


@dataclass
class Sieve:
    """Remembers which texts there are already."""

    settings: GenerateSettings
    _exact: set[bytes] = field(default_factory=set)
    _normal: set[bytes] = field(default_factory=set)

    def remember(self, traces: Iterable[Trace]) -> None:
        """Rows that were written before a restart."""
        for trace in traces:
            self._exact.add(_digest(trace.prompt, trace.completion))
            self._normal.add(_digest(normal(trace.prompt), normal(trace.completion)))

    def keep(self, problem: Sequence[Completed]) -> tuple[list[Trace], Counter[str]]:
        """The traces to keep of all completions of one problem, and how many of the others were left out for which reason."""
        kept: list[Trace] = []
        left_out: Counter[str] = Counter()
        for row in problem:
            reason = self._reason(row, len(kept))
            if reason is not None:
                left_out[reason] += 1
                continue
            trace = Trace(row.problem_id, row.task_type, row.prompt, row.completion, 1.0, row.tokens)
            self.remember([trace])
            kept.append(trace)
        return kept, left_out

    def _reason(self, row: Completed, kept: int) -> str | None:
        """Why a completion is left out; the first that applies."""
        if row.task_reward is None:
            return UNSCORED
        if row.task_reward < 1.0:
            return WRONG
        if not row.whole:
            return CUT_OFF
        if row.tool_output:
            return TOOL_OUTPUT
        if row.other_prompt:
            return OTHER_PROMPT
        if row.tokens < self.settings.min_completion_tokens:
            return TOO_SHORT
        if self.settings.max_completion_tokens is not None and row.tokens > self.settings.max_completion_tokens:
            return TOO_LONG
        if max(len(row.prompt.encode(errors="replace")), len(row.completion.encode(errors="replace"))) > MAX_TEXT_BYTES:
            return TOO_LARGE
        if _digest(row.prompt, row.completion) in self._exact:
            return SAME
        if _digest(normal(row.prompt), normal(row.completion)) in self._normal:
            return ALIKE
        return ENOUGH if kept >= self.settings.traces_per_problem else None


def count(problem: Sequence[Completed]) -> ProblemCount:
    """How often a problem was solved, over the completions that could be scored."""
    scored = [row for row in problem if row.task_reward is not None]
    tokens = sum(row.tokens for row in problem)
    return ProblemCount(
        problem_id=problem[0].problem_id,
        samples=len(scored),
        correct=sum(row.task_reward == 1.0 for row in scored),
        mean_tokens=tokens / len(problem),
    )


def normal(text: str) -> str:
    """A text without what does not matter: Unicode compatibility forms, case, runs of white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _digest(prompt: str, completion: str) -> bytes:
    running = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (prompt, completion):
        data = part.encode(errors="surrogatepass")
        running.update(len(data).to_bytes(8, "big"))
        running.update(data)
    return running.digest()
