"""Rows of an environment with tools: sample until a call, or to the end of a turn with calls, put the tool's output behind it, go on.

In: planned rows, the environment's tools, an engine. Out: one `Completion` a row, with a mask. Each stretch is a request of its own: its prompt is
all that the row has so far, its seed the row's, which draws by position (`sampling.gumbel`). The rules are in `environments.episodes` and `turns`.
Validators follow them from the other side. Workers (`batch`) let each row go on by itself; `play` plays rows together, in rounds, for `evaluation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shoal.contracts.rollouts import SEGMENT_TOKENS
from shoal.environments import Unscorable
from shoal.environments.episodes import EpisodeTools
from shoal.inference import metrics
from shoal.inference.completions import Completion, Request
from shoal.inference.rollouts import PlannedRow

Generate = Callable[[Sequence[Request]], list[Completion]]
"""An engine's `generate`, which ends a sequence where it pauses."""


class ToolFailedError(RuntimeError):
    """A tool failed, so that the row cannot continue: nobody's fault, and no file can be made of this lease."""


@dataclass
class Episode:
    """One row on its way: what it has so far, and what it asks for next."""

    row: PlannedRow
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    proofs: bytes = b""
    routes: bytes | None = None
    made: Completion | None = None
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Of a row without tools that may go on under newer weights: each version, and the position of its first token."""

    def request(self, tools: EpisodeTools | None = None) -> Request:
        """The next stretch."""
        first = self.row.request
        room = first.max_tokens - len(self.tokens)
        return Request(
            prompt_tokens=[*first.prompt_tokens, *self.tokens],
            seed=first.seed,
            temperature=first.temperature,
            max_tokens=room if tools is None else tools.turn_room(room),
            truncation=first.truncation,
        )

    def add(self, made: Completion) -> None:
        """A stretch that was sampled."""
        self.made = made
        self._append(made.tokens, made.logprobs, sampled=True)
        self.proofs += made.proofs
        if made.routes is not None:
            self.routes = (self.routes or b"") + made.routes

    def cut(self, made: Completion, version: int, every: int = SEGMENT_TOKENS) -> int:
        """Keep what `version` sampled up to the last place where a segment may begin, a multiple of `every` tokens. Returns how many are dropped, to
        be sampled again. Segments begin where proofs do: a proof of part of its tokens would be weaker.
        """
        kept = len(made.tokens) // every * every
        if kept:
            size = len(made.proofs) // -(-len(made.tokens) // every)
            proofs = made.proofs[: kept // every * size]
            self.segments.append((version, len(self.tokens)))
            self.add(Completion(made.tokens[:kept], made.logprobs[:kept], "cut", proofs))
        return len(made.tokens) - kept

    def since(self, first: int, every: int = SEGMENT_TOKENS) -> Completion:
        """What a row that was cut has from this token on, a multiple of `every`."""
        size = len(self.proofs) // max(1, len(self.tokens) // every)
        return Completion(self.tokens[first:], self.logprobs[first:], "cut", self.proofs[first // every * size :])

    def ends(self, made: Completion, version: int) -> Completion:
        """The row, whose last stretch `version` sampled; for rows without tools."""
        self.segments.append((version, len(self.tokens)))
        if len(self.segments) == 1:
            return replace(made, segments=tuple(self.segments))
        self.add(made)
        return Completion(self.tokens, self.logprobs, made.finish_reason, self.proofs, segments=tuple(self.segments))

    def goes_on(self, tools: EpisodeTools) -> bool:
        """Ask the tool if the row pauses. Raises ToolFailedError."""
        assert self.made is not None
        if not tools.asks(self.made.finish_reason):
            return False
        output = tools.output(self.row.task, self.tokens, self.mask, self.row.request.max_tokens)
        if isinstance(output, Unscorable):
            metrics.TOOL_CALLS.labels("failed").inc()
            raise ToolFailedError(f"task {self.row.task.problem_id}: {output.reason}")
        if output is not None or self.made.finish_reason == "unanswered":
            metrics.TOOL_CALLS.labels("unanswered" if output is None else "answered").inc()
        if output is None:
            return False
        self._append(output, [0.0] * len(output), sampled=False)
        return True

    def completion(self) -> Completion:
        """All of the row."""
        assert self.made is not None
        return Completion(
            self.tokens, self.logprobs, self.made.finish_reason, self.proofs, self.mask, routes=self.routes
        )

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float], *, sampled: bool) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.mask += [sampled] * len(tokens)


def play(planned: Sequence[PlannedRow], tools: EpisodeTools, generate: Generate) -> list[Completion]:
    """One completion a row, in their order. Raises ToolFailedError, and what `generate` raises."""
    episodes = [Episode(row) for row in planned]
    going = episodes
    while going:
        for episode, made in zip(going, generate([episode.request(tools) for episode in going]), strict=True):
            episode.add(made)
        going = [episode for episode in going if episode.goes_on(tools)]
    return [episode.completion() for episode in episodes]
