"""What a policy makes of given tokens: one forward pass over prompts and completions, without sampling.

In: a loaded model and rows. Out: `Prefill`s: for every sampled token the last hidden state from which it should
have been drawn (after the final norm, where vLLM's head reads it too); and what the distribution at the row's
temperature says. Called by `judge` for the rows whose proofs are verified.

Rows of like length go together, one a row of the batch and padded at the end: attention is causal, so that nothing
can leak between strangers' rows and padding is seen by nobody. On 24 short rows this takes a third of the time of one
after the other; packed end to end they take half as much again. Rows of 400 tokens three times as
long as alone: because a mask over a pack costs the square of the pack.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.contracts.evaluation import Truncation
from shoal.contracts.pools import SAMPLER, Sampler
from shoal.contracts.rollouts import Rollout
from shoal.contracts.routes import RouteShape
from shoal.models.head import logits_of
from shoal.models.routers import Routers, differs, surplus
from shoal.models.routes import decode
from shoal.sampling import gumbel
from shoal.validation.truncation import Kept, doubt, truncated

LOW_PROBABILITY = 0.05
"""A sampled token with less is improbable; the token-sampling check counts them."""
SURPRISE_CAP = 7.0
"""Surprise (negative log-probability) is counted up to this many nats, so that one unlikely token cannot decide for a
file.
"""
OTHER_TEMPERATURES = (0.8, 1.25)
"""Shares of the run's temperature that the sequential test tells it from (`sequential`)."""
BATCH_TOKENS = 2048
"""Tokens of a batch, padding included. More gained nothing on a CPU (measured to 8,192), and a row of the paper's
length fills a GPU alone.
"""
TILE_ELEMENTS = 1 << 24
"""Logits held at once (64 MiB in float32): 10,000 tokens times 150,000 words would be 6 GB."""
TILE_TOKENS = 4096
"""Positions of a tile at most, however small the vocabulary."""


@dataclass(frozen=True)
class RouteGaps:
    """How a row's recorded routes differ from those of our own routers, over its (sampled token, layer) `pairs`: how many are other experts, and
    by how much our own are ahead of those (`routers.surplus`), on average over all pairs and at most."""

    pairs: int
    differing: int
    mean: float
    largest: float


Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Prefill:
    """Arrays over the n sampled tokens of a row's completion (tools' output is left out), float32 except for `drawn` (int64).

    `hidden` [n, hidden size], states in the model's type and on its device; `logprobs` [n] of the chosen tokens,
    natural logarithms; `eos` [n] probability of ending there; `low` [n] sum of all probabilities below
    LOW_PROBABILITY, that is the chance that an honest sample is improbable there; `surprise_mean` and
    `surprise_variance` [n] of an honest sample's surprise, capped at SURPRISE_CAP nats; `colder` and `hotter` [n]
    log-likelihood ratios of the chosen token at OTHER_TEMPERATURES against the run's; `gaps` [n] by how many nats the
    sampler's own choice is ahead of the chosen token; and `drawn` [n] that choice, both None when the sampler cannot
    be redone. `proof_errors` [proofs] are the mean mantissa errors of the row's proofs, once they were compared. `routes`: of a row that has recorded
    routes, which all of this was computed with.
    """

    hidden: torch.Tensor
    logprobs: Float32
    eos: Float32
    low: Float32
    surprise_mean: Float32
    surprise_variance: Float32
    colder: Float32
    hotter: Float32
    gaps: Float32 | None = None
    drawn: Int64 | None = None
    proof_errors: Float32 = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    routes: RouteGaps | None = None

    @property
    def states(self) -> Float32:
        """The hidden states on the host."""
        copied: Float32 = self.hidden.float().cpu().numpy()
        return copied

    def judged(self, proof_errors: Sequence[float]) -> "Prefill":
        """The same with the errors of its proofs, and without what takes the memory: at the paper's size 100 MB of states a row."""
        return replace(
            self,
            hidden=self.hidden.new_empty((0, self.hidden.shape[1])),
            proof_errors=np.asarray(proof_errors, dtype=np.float32),
        )


def joined(parts: Sequence[Prefill]) -> Prefill:
    """One row's Prefills without states, of its segments in their order, as one."""
    if len(parts) == 1:
        return parts[0]

    def together(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else np.concatenate(values)

    names = [each.name for each in fields(Prefill) if each.name != "hidden"]
    return replace(parts[0], **{name: together(name) for name in names})


def batches(lengths: Mapping[int, int], budget: int = BATCH_TOKENS) -> list[list[int]]:
    """Row numbers in groups of like length (tokens), each at most `budget` tokens with its padding; a longer row alone."""
    groups: list[list[int]] = []
    for number in sorted(lengths, key=lambda number: (lengths[number], number)):
        if groups and (len(groups[-1]) + 1) * lengths[number] <= budget:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def prefill_rows(
    model: Any,
    rows: Mapping[int, Rollout],
    eos_token_ids: frozenset[int],
    sampler: Sampler | None = None,
    truncation: Truncation | None = None,
    routes: RouteShape | None = None,
) -> Iterator[dict[int, Prefill]]:
    """Prefills by row number, a batch at a time: whoever drops `hidden` in between holds those of one batch only.

    With `routes` the rows' experts are those that they recorded. What they are by our own routers is compared, and does not add up over the layers.
    """
    lengths = {number: len(row.prompt_tokens) + len(row.completion_tokens) for number, row in rows.items()}
    for numbers in batches(lengths):
        found = _prefill(model, [rows[number] for number in numbers], eos_token_ids, sampler, truncation, routes)
        yield dict(zip(numbers, found, strict=True))


def prefill(
    model: Any,
    row: Rollout,
    eos_token_ids: frozenset[int],
    sampler: Sampler | None = None,
    truncation: Truncation | None = None,
    routes: RouteShape | None = None,
) -> Prefill:
    """One row alone."""
    found: list[Prefill] = _prefill(model, [row], eos_token_ids, sampler, truncation, routes)
    return found[0]


@torch.inference_mode()
def _prefill(
    model: Any,
    rows: Sequence[Rollout],
    eos_token_ids: frozenset[int],
    sampler: Sampler | None,
    truncation: Truncation | None,
    routes: RouteShape | None,
) -> list[Prefill]:
    """Run a Hugging Face causal language model over one batch."""
    device = next(model.parameters()).device
    tokens = [torch.tensor([*row.prompt_tokens, *row.completion_tokens]) for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True).to(device)
    # No mask: with one, some attention kernels would be chosen that treat equal rows differently.
    with _routed(model, rows, padded.shape[1], routes) as gaps:
        hidden = model.model(input_ids=padded, use_cache=False).last_hidden_state
    eos = torch.tensor(sorted(eos_token_ids), device=device)
    differ: list[RouteGaps] | list[None] = gaps() or [None] * len(rows)
    return [
        replace(_one_row(model, row, hidden[place], padded[place], eos, sampler, truncation), routes=gap)
        for place, (row, gap) in enumerate(zip(rows, differ, strict=True))
    ]


@contextmanager
def _routed(
    model: Any, rows: Sequence[Rollout], length: int, shape: RouteShape | None
) -> Iterator[Callable[[], list[RouteGaps]]]:
    """Within this the model's routers use the routes of these rows, which are padded to `length`. What it gives says afterwards how they differ."""
    if shape is None:
        yield lambda: []
        return
    device = next(model.parameters()).device
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def seen(layer: int, router: Any, logits: torch.Tensor, own: torch.Tensor, recorded: torch.Tensor) -> None:
        found.append((differs(own, recorded), surplus(router, logits, recorded)))

    counts = [int(np.sum(row.completion_mask)) for row in rows]
    at = [
        place * length + len(row.prompt_tokens) - 1 + np.flatnonzero(row.completion_mask)
        for place, row in enumerate(rows)
    ]
    given = [decode(row.routes or b"", count, shape) for row, count in zip(rows, counts, strict=True)]
    routers = Routers(model, shape, follows=True, seen=seen)
    try:
        recorded = torch.from_numpy(np.concatenate(given).astype(np.int32)).to(device)
        routers.give(recorded, torch.from_numpy(np.concatenate(at)).to(device))
        yield lambda: _gaps(found, counts)
    finally:
        routers.close()


def _gaps(found: Sequence[tuple[torch.Tensor, torch.Tensor]], counts: Sequence[int]) -> list[RouteGaps]:
    """By row, of what was seen in each layer over all rows' sampled tokens."""
    differing, behind = (
        torch.stack(each).float().cpu().split(list(counts), dim=1) for each in zip(*found, strict=True)
    )
    return [
        RouteGaps(of_row.numel(), int(of_row.sum()), float(far.mean()), float(far.max()))
        for of_row, far in zip(differing, behind, strict=True)
    ]


def _one_row(
    model: Any,
    row: Rollout,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    eos: torch.Tensor,
    sampler: Sampler | None,
    truncation: Truncation | None,
) -> Prefill:
    # The state at position p is what token p+1 was drawn from: P-1 .. P+n-2 for n tokens after a prompt of P.
    sampled = torch.tensor(np.flatnonzero(row.completion_mask), device=hidden.device) + len(row.prompt_tokens)
    states, chosen = hidden[sampled - 1], tokens[sampled]
    if sampler not in (SAMPLER, None):
        raise ValueError(f"sampler is {sampler!r}; allowed: {SAMPLER}, or None where nothing is drawn again")
    seeds = torch.full_like(chosen, row.seed)
    tile = min(TILE_TOKENS, max(1, TILE_ELEMENTS // model.config.vocab_size))
    parts, gaps, drawn = [], [], []
    for start in range(0, len(sampled), tile):
        here = slice(start, start + tile)
        logits = logits_of(model, states[here])
        logprobs = torch.log_softmax(logits / row.temperature, dim=-1)
        kept = truncated(logprobs, truncation, doubt(model.dtype, row.temperature)) if truncation is not None else None
        parts.append(_distribution(logits, logprobs, chosen[here], row.temperature, eos, kept))
        if sampler is not None:
            limits = (kept.surely, kept.perhaps) if kept is not None else None
            behind, winners = gumbel.redraw(logprobs, chosen[here], seeds[here], sampled[here] - 1, limits)
            gaps.append(behind)
            drawn.append(winners)
    own, eos_chance, low, mean, variance, colder, hotter = (
        torch.cat(column).float().cpu().numpy() for column in zip(*parts, strict=True)
    )
    return Prefill(
        hidden=states,
        logprobs=own,
        eos=eos_chance,
        low=low,
        surprise_mean=mean,
        surprise_variance=variance,
        colder=colder,
        hotter=hotter,
        gaps=torch.cat(gaps).cpu().numpy() if gaps else None,
        drawn=torch.cat(drawn).cpu().numpy() if drawn else None,
    )


def _distribution(
    logits: torch.Tensor,
    logprobs: torch.Tensor,
    chosen: torch.Tensor,
    temperature: float,
    eos: torch.Tensor,
    kept: Kept | None,
) -> tuple[torch.Tensor, ...]:
    """The columns of `Prefill` after `hidden`, each [n], from logits [n, vocabulary].

    With `kept` they are of the tokens that the sampler kept. A token that may have been kept, by rounding, has the probability that it would have.
    """
    possible = None
    if kept is not None:
        mass = torch.logsumexp(logprobs.masked_fill(~kept.exactly, -torch.inf), dim=-1, keepdim=True)
        possible = (logprobs - mass).masked_fill(~kept.perhaps, -torch.inf)
        logprobs = (logprobs - mass).masked_fill(~kept.exactly, -torch.inf)
        logits = logits.masked_fill(~kept.exactly, -torch.inf)
    probabilities = logprobs.exp()
    low = torch.where(probabilities < LOW_PROBABILITY, probabilities, 0.0).sum(dim=-1)
    surprise = (-logprobs).clamp(max=SURPRISE_CAP)
    mean = (probabilities * surprise).sum(dim=-1)
    variance = (probabilities * (surprise - mean[:, None]).square()).sum(dim=-1)
    own = (logprobs if possible is None else possible).gather(1, chosen[:, None])[:, 0]
    at_chosen = logits.gather(1, chosen[:, None])[:, 0] / temperature
    ratios = [
        at_chosen / share - torch.logsumexp(logits / (temperature * share), dim=-1) - own
        for share in OTHER_TEMPERATURES
    ]
    if kept is not None:  # of a token that was not kept they say nothing
        ratios = [torch.where(torch.isfinite(at_chosen), ratio, 0.0) for ratio in ratios]
    ends = probabilities if possible is None else possible.exp()
    return own, ends[:, eos].sum(dim=-1), low, mean, variance, *ratios
