"""An engine of which only the clock is there: rows have lengths that are drawn, and a step takes what a GPU would take.

In: requests. Out: completions without tokens' meaning, and the engine's time, which only steps, swaps and `wait` advance. A step reads all weights
and the keys and values of every running row (the formula of `shoal.planner.step_parts`). It stands for `STRIDE` tokens of each row, so that hours
take seconds; lengths are in strides too.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from shoal.contracts.rollouts import SEGMENT_TOKENS
from shoal.inference.completions import Completion, Request
from shoal.planner.rates import DECODE_SHARE

STRIDE = 64
WEIGHTS_BYTES = 65e9
CACHE_BYTES_A_TOKEN = 262_144.0
"""Keys and values of a 32B model: 64 layers, 8 heads of 128, bfloat16."""
BANDWIDTH = 4 * 3.35e12 * DECODE_SHARE
"""Bytes a second of four H100."""
MEAN_TOKENS, LIMIT_TOKENS, SPREAD = 9_000.0, 30_720, 0.75
"""The paper's lengths; the spread is `shoal.planner.lengths.SPREAD`."""
LIMIT = LIMIT_TOKENS // STRIDE


def length_of(seed: int, mean: float = MEAN_TOKENS, stride: int = STRIDE, limit: int = LIMIT) -> int:
    """Strides of the completion with this seed: lognormal, cut at the limit."""
    tokens = random.Random(seed).lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)
    return max(1, min(limit, round(tokens / stride)))


@dataclass
class _Row:
    length: int
    done: int = 0
    had: int = 0
    """Of `done`: before the last swap, or in another process."""
    proved: int = 0
    """Of `done`: in whole proofs that are made."""
    told: int = 0
    """Of `proved`: what `grown` gave."""


@dataclass
class ClockEngine:
    """`sequences` rows at once, in virtual seconds `now`."""

    sequences: int
    means: Sequence[float] = (MEAN_TOKENS,)
    """Mean tokens of each kind of row: a seed's kind is its rest by their number."""
    weights_bytes: float = WEIGHTS_BYTES
    cache_bytes_a_token: float = CACHE_BYTES_A_TOKEN
    bandwidth: float = BANDWIDTH
    token_seconds: float = 0.0
    """Of computing alone, for each token; where it is the slower of the two."""
    prompt_tokens: float = 0.0
    """Of each row, whose keys and values are read too."""
    stride: int = STRIDE
    limit: int = LIMIT
    """Strides of the longest completion."""
    now: float = 0.0
    tokens: int = 0
    prefill_seconds: float = 0.0
    """Of each token of a row that goes on behind a swap."""
    rows: dict[str, _Row] = field(default_factory=dict)
    count: int = 0
    steps: int = 0

    def start(self, request: Request, pauses: Callable[[Sequence[int]], bool] | None = None) -> str:
        if len(self.rows) >= self.sequences:
            raise RuntimeError("more rows were started than the engine has slots")
        self.count += 1
        had = (
            len(request.prompt_tokens) - 1 if self.prefill_seconds else 0
        )  # strides: a row that begins has a prompt of one
        length = length_of(request.seed, self.means[request.seed % len(self.means)], self.stride, self.limit)
        self.rows[str(self.count)] = _Row(length, had, had, had, had)
        self.now += self.prefill_seconds * self.stride * had
        return str(self.count)

    def step(self) -> list[tuple[str, Completion]]:
        positions = self.prompt_tokens * len(self.rows) + self.stride * sum(row.done for row in self.rows.values())
        reading = (self.weights_bytes + positions * self.cache_bytes_a_token) / self.bandwidth
        self.now += self.stride * max(reading, len(self.rows) * self.token_seconds)
        self.steps += 1
        ended = []
        for name, row in list(self.rows.items()):
            row.done += 1
            if self.steps % self._chunk == 0:
                row.proved = row.had + (row.done - row.had) // self._chunk * self._chunk
            if row.done >= row.length:
                del self.rows[name]
                ended.append(
                    (
                        name,
                        Completion(
                            [0] * (row.length - row.had), [], "length" if row.length == self.limit else "stop", b""
                        ),
                    )
                )
        self.tokens += self.stride * (len(self.rows) + len(ended))
        return ended

    def cut(self) -> list[tuple[str, Completion]]:
        """All that run, each with its strides since the last swap."""
        rows, self.rows = self.rows, {}
        return [(name, Completion([0] * (row.done - row.had), [], "cut", b"")) for name, row in rows.items()]

    @property
    def _chunk(self) -> int:
        """Strides of a proof. Proofs are made as often, of what is whole then (`inference.proofs`)."""
        return max(1, SEGMENT_TOKENS // self.stride)

    def grown(self) -> list[tuple[str, Completion]]:
        """What running rows have more since this was asked last, in whole proofs that are made."""
        found = []
        for name, row in self.rows.items():
            new, row.told = row.proved - row.told, row.proved
            if new:
                found.append((name, Completion([0] * new, [], "cut", b"")))
        return found

    def abort(self, names: Collection[str]) -> None:
        for name in names:
            self.rows.pop(name, None)
