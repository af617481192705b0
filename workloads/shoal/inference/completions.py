"""What an engine is told and gives: its `EngineTerms` and `HostSpan`, `Request`, `Pauses` and `Completion`.

Apart from `engine`, so that nobody imports vLLM for types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.contracts.evaluation import Truncation
from shoal.contracts.pools import Quantization
from shoal.contracts.routes import RouteShape

Pauses = Callable[[Sequence[int]], bool]
"""Does a sequence pause behind these tokens that it has sampled?"""


@dataclass(frozen=True)
class HostSpan:
    """This host's part of an engine over `hosts` of them. Ranks meet at `address` (of host 0) and `port`."""

    number: int
    hosts: int
    address: str
    port: int


@dataclass(frozen=True)
class EngineTerms:
    """What all hosts of an engine must have alike, beside the pool's settings; see `engine.Engine`."""

    max_sequence_length: int
    batch: int
    quantization: Quantization | None = None
    routes: RouteShape | None = None


@dataclass(frozen=True)
class Request:
    """One completion to sample: prompt tokens, sampling seed (63 bits), temperature, longest completion (tokens), and what the sampler leaves out."""

    prompt_tokens: Sequence[int]
    seed: int
    temperature: float
    max_tokens: int
    truncation: Truncation | None = None


@dataclass(frozen=True)
class Completion:
    """One completion. `logprobs` are natural logarithms at the temperature; `proofs` are TOPLOC proofs.

    A `finish_reason` of `stop` means that the last token is an end-of-sequence token, `unanswered` that the last token ends a call of a tool. `cut`
    means that it was taken out of the engine and goes on: no row of a file ends so. `mask` is false where a token is a tool's output; None: every
    token was sampled. `segments`: each version that sampled it, and the position of its first token; empty: one version, which the caller knows.
    `routes` are those of its sampled tokens (`models.routes`); None where the engine does not record them.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length", "unanswered", "cut"]
    proofs: bytes
    mask: list[bool] | None = None
    segments: Sequence[tuple[int, int]] = ()
    routes: bytes | None = None

    @property
    def sampled(self) -> int:
        """Tokens that the engine sampled."""
        return len(self.tokens) if self.mask is None else sum(self.mask)
