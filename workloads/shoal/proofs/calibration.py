"""The proof profile of a model: what honest proofs differ by, thresholds from it, and how often both kinds of error happen.

In: a model in its type of serving, and prompts. Out: `ProofProfile`, which belongs into the checkpoint's folder. Called by prepare for a run's base
model and by `shoal calibrate`.

Honest errors come from the difference between decoding in batches with a cache and one pass over the whole: the same numbers summed in another order.
The thresholds are the largest honest errors times a margin, for the kernels of another engine or device differ again; never above the published
ones. What they let through is then measured with dishonest weights and with proofs made without a forward pass.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import exp, lgamma, log
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.contracts.pools import Quantization
from shoal.contracts.proof_profile import DRAWN_GAPS, CalibrationSize, Control, ErrorRate, HonestErrors, ProofProfile
from shoal.contracts.thresholds import DrawnGaps, FileMean, ProofThresholds
from shoal.models.head import logits_of
from shoal.models.rounded import restore, round_in_place
from shoal.proofs import CannotCalibrate, forgeries
from shoal.proofs.chunks import Chunks, Points, by_file, distance, layout, points_of
from shoal.proofs.forgeries import OLDER, changes, other_weights
from shoal.proofs.forward import Decoded, decode, prefill
from shoal.proofs.masking import masked_dimensions
from shoal.proofs.placement import enough_memory
from shoal.sampling import gumbel
from shoal.toploc.codec import ErrorTable, Proofs, compare_points, file_mean_allowed, parse
from shoal.toploc.top_points import Bool, Float32

CONFIDENCE = 0.95
HALVINGS = 60  # of an interval of length 1: past float64's own precision


def error_rate(events: int, trials: int) -> ErrorRate:
    """The rate of `events` in `trials` with its interval; of no trials nothing is known, so it is from 0 to 1."""
    if not 0 <= events <= trials:
        raise ValueError(f"{events} events in {trials} trials: events are from 0 to the number of trials")
    tail = (1.0 - CONFIDENCE) / 2
    low = 0.0 if events == 0 else _solve(lambda p: 1.0 - _at_most(events - 1, trials, p) < tail)
    high = 1.0 if events == trials else _solve(lambda p: _at_most(events, trials, p) > tail)
    return ErrorRate(events=events, trials=trials, low=low, high=high)


def _solve(below: Callable[[float], bool]) -> float:
    """The point of [0, 1] up to which `below` holds."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _at_most(events: int, trials: int, p: float) -> float:
    """Chance of at most `events` in `trials` of probability `p`, 0 < p < 1. Sums the shorter tail."""
    if events > trials / 2:
        return 1.0 - _at_most(trials - events - 1, trials, 1.0 - p)
    total = 0.0
    for k in range(events + 1):
        ways = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
        total += exp(ways + k * log(p) + (trials - k) * log(1.0 - p))
    return total


MARGIN = 2.0
"""Thresholds are this many times the largest honest error seen: another engine's or device's kernels are further off (docs/toploc.md)."""
UNSERVED_MARGIN = 3.0
"""The same in 16-bit types where fewer than `LEAST_CHUNKS` of the serving engine itself were measured: it rounds elsewhere, and an
honest node beyond a threshold is evicted. SmolLM2-135M-Instruct: 132 chunks of transformers differed by at most 8, 2.61 and 2.0; vLLM's by 13, 2.99
and 2.0."""
LEAST_CHUNKS = 128
"""Honest chunks that are measured whatever the time: of 36 the largest were 6, 2.03 and 2.0, which evicted an honest node."""
LEAST_FLOAT32 = ProofThresholds(max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0)
"""Thresholds are at least these: a value on the border of two exponents may fall on either side on another machine, in float32 too."""
LEAST_HALF = ProofThresholds(max_exponent_mismatches=10, max_mantissa_error_mean=2.2, max_mantissa_error_median=2.0)
"""The same of 16-bit types. What an engine rounds between fused operations does not show within transformers: vLLM's honest proofs were
up to 5, 1.06 and 1.0 off in bfloat16, transformers' own 3, 0.31 and 0.0. Twice vLLM's.
"""
FILE_MARGIN = 1.25
"""The bound on a file's mean, and the deviation, are this many times the engine's own: a mean of many chunks hardly scatters, but another
device's lies elsewhere."""
FILE_CHANCE = 1e-6
"""How often an honest file may exceed the bound on its mean, for the rates told: about what a look of a run with the default rate has."""
BATCHES = (1, 32, 7)
"""Sequences decoded together, in turn: another batch is another order of sums."""
CONTROL_SEQUENCES = 256
"""Sequences that each dishonest proof is made for, at most."""
PUBLISHED = "published weights"
"""The control of a run whose weights are rounded."""
CONTROL_BATCH = 32
"""Rows of one pass, where they are short (forward.PREFILL_TOKENS)."""


@dataclass(frozen=True)
class Effort:
    """How much to measure. `sequences` completions of up to `max_tokens` tokens; after `seconds` only up to `LEAST_CHUNKS` chunks."""

    sequences: int
    max_tokens: int
    seconds: float
    file_sequences: int
    learning_rate: float
    updates: int
    seed: int = 0


Report = Callable[[str, int, int], None]
"""Told what is done, how much of it is, and how much there is."""


@dataclass(frozen=True)
class Served:
    """One sequence from a serving engine: token ids, the proofs that came with the completion, and the seed that drew it at temperature 1."""

    prompt: list[int]
    completion: list[int]
    proofs: bytes
    seed: int


LEAST_GAPS = {
    "float32": DRAWN_GAPS["float32"],
    "bfloat16": DrawnGaps(share=5e-4, mean=2e-5, deviation=1e-3, largest=0.05),
    "float16": DrawnGaps(share=6e-5, mean=3e-7, deviation=1e-4, largest=0.03),
}
"""Least budgets: a few thousand tokens show no rarer gaps. bfloat16: about what the demo's trained model had; float16: an eighth of these.
"""
LARGEST_GAP_MARGIN = 2.0
"""For the largest gap, as for other thresholds. What is farther behind costs a row and not the file."""


LEAST_TOKENS = 1000
"""Of fewer tokens the rule for outliers would allow more than one row of each file."""


Serve = Callable[[Sequence[Sequence[int]], int, Sequence[int]], list[Served]]
"""Completes prompts with up to this many tokens by the workers' own engine, whose proofs leave out the masked dimensions given last."""


@dataclass(frozen=True)
class Compared:
    """Proofs against our own states: where the chunks are from, and their errors."""

    chunks: Chunks
    errors: ErrorTable

    def and_(self, other: "Compared") -> "Compared":
        """Both, the other's sequences after ours."""
        after = int(self.chunks.sequence[-1]) + 1 if len(self.chunks) else 0
        ours, theirs = self.chunks, other.chunks
        chunks = Chunks(
            np.concatenate([ours.sequence, theirs.sequence + after]), np.concatenate([ours.tokens, theirs.tokens])
        )
        columns = [
            np.concatenate([getattr(self.errors, each.name), getattr(other.errors, each.name)])
            for each in fields(ErrorTable)
        ]
        return Compared(chunks, ErrorTable(*columns))


@dataclass(frozen=True)
class ServedErrors:
    """What a serving engine's honest sequences differ by: their proofs, and `gaps`, a value for each token (`sampling.gumbel.redraw`)."""

    proofs: Compared
    gaps: Float32


@dataclass(frozen=True)
class RoundedModel:
    """What a run with a term of quantisation samples with: the rule, and the folder of the checkpoint as it is published."""

    quantization: Quantization
    folder: Path


@enough_memory()
def calibrate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    effort: Effort,
    report: Report,
    serve: Serve | None = None,
    as_rounded: RoundedModel | None = None,
) -> ProofProfile:
    """Measure a Hugging Face causal language model, in evaluation mode. Raises CannotCalibrate.

    With `as_rounded` the model has rounded weights. Then honest proofs are theirs, and those of the published weights are a control.

    With `serve` the engine's honest proofs are measured too, and in 16-bit types bound the mean over a file. The weights are changed on the way
    and are as before when it returns.
    """
    hidden_size = model.config.hidden_size
    honest = _decoded(model, prompts, effort, report)
    if sum(len(each.completion) for each in honest) == 0:
        raise CannotCalibrate("no completion has a token: give other prompts")
    report("compute again", 0, len(honest))
    again = prefill(model, honest, 1)  # one by one, as different from batches as can be
    masked = masked_dimensions([each.states for each in honest])
    mask = _mask(masked, hidden_size)
    decoded = Compared(
        layout([len(states) for states in again]),
        distance(points_of([each.states for each in honest], mask), points_of(again, mask)),
    )
    served = _served(model, prompts, mask, masked, effort, report, serve) if serve is not None else None
    all_honest = decoded.and_(served.proofs) if served is not None else decoded
    chunks, errors = all_honest.chunks, all_honest.errors
    thresholds = thresholds_for(errors, dtype_name(model), served)
    controls = [
        Control(
            name=name,
            chunks=error_rate(int(each.errors.accepted(thresholds).sum()), len(each.chunks)),
            files=_rate(~_rejected_files(each, thresholds, effort.file_sequences)),
        )
        for name, each in _controls(model, honest, again, mask, effort, report, as_rounded)
    ]
    rejected = ~errors.accepted(thresholds)
    return ProofProfile(
        hidden_size=hidden_size,
        dtype=dtype_name(model),
        quantization=as_rounded.quantization if as_rounded is not None else None,
        logits="float32" if served is not None and dtype_name(model) != "float32" else None,
        masked_dimensions=masked,
        thresholds=thresholds,
        size=CalibrationSize(
            prover="transformers" if served is None else "transformers and the serving engine",
            sequences=int(chunks.sequence[-1]) + 1,
            tokens=int(chunks.tokens.sum()),
            chunks=len(chunks),
            file_sequences=effort.file_sequences,
        ),
        honest=HonestErrors(
            max_mismatches=int((errors.exponent_mismatches + errors.sign_mismatches).max()),
            max_mantissa_error_mean=float(errors.mantissa_error_mean.max()),
            max_mantissa_error_median=float(errors.mantissa_error_median.max()),
            rejected_chunks=error_rate(int(rejected.sum()), len(rejected)),
            rejected_files=_rate(_rejected_files(all_honest, thresholds, effort.file_sequences)),
        ),
        controls=controls,
    )


def thresholds_for(errors: ErrorTable, dtype: str, served: "ServedErrors | None" = None) -> ProofThresholds:
    """The largest honest errors with the margin, rounded up; at least those of the type of serving, at most the published thresholds.

    `served`: what came from the serving engine; its tokens set the budget of gaps, and in 16-bit types its proofs bound the mean over a file.
    """
    least, published = LEAST_FLOAT32 if dtype == "float32" else LEAST_HALF, ProofThresholds()
    mismatches = int((errors.exponent_mismatches + errors.sign_mismatches).max())
    mean, median = float(errors.mantissa_error_mean.max()), float(errors.mantissa_error_median.max())
    known = served is not None and len(served.proofs.chunks) >= LEAST_CHUNKS
    margin = MARGIN if known or dtype == "float32" else UNSERVED_MARGIN

    def within(least: float, wanted: float, most: float) -> float:
        return min(max(least, wanted), most)

    return ProofThresholds(
        max_exponent_mismatches=int(
            within(least.max_exponent_mismatches, math.ceil(margin * mismatches), published.max_exponent_mismatches)
        ),
        max_mantissa_error_mean=within(
            least.max_mantissa_error_mean, math.ceil(100 * margin * mean) / 100, published.max_mantissa_error_mean
        )
        if math.isfinite(mean)
        else published.max_mantissa_error_mean,
        max_mantissa_error_median=within(
            least.max_mantissa_error_median,
            margin * median,
            published.max_mantissa_error_median,
        ),
        file_mean=_file_mean(served.proofs.errors) if served is not None and dtype != "float32" else None,
        drawn_gaps=drawn_gaps(served.gaps, dtype) if served is not None else None,
    )


def _file_mean(served: ErrorTable) -> FileMean | None:
    """The bound on a file's mean from the engine's honest chunks; None where theirs are so far off already that it could not bind."""
    errors = served.mantissa_error_mean
    if not np.isfinite(errors).all():
        return None
    bound, deviation = (math.ceil(1000 * FILE_MARGIN * float(value)) / 1000 for value in (errors.mean(), errors.std()))
    most = ProofThresholds().max_mantissa_error_mean
    return FileMean(bound=bound, deviation=deviation) if max(bound, deviation) <= most else None


def drawn_gaps(gaps: Float32, dtype: str) -> DrawnGaps:
    """The budget from the gaps of an engine's honest tokens, with the margins; at least `LEAST_GAPS`, rounded up to two digits.

    Of n honest tokens and one more, any is the farthest behind with 1 / (n + 1). That is the share of `outliers`, whatever the tail. The margin of
    `largest` then covers a sample whose farthest token was a near one.
    """
    least, most = LEAST_GAPS[dtype], DRAWN_GAPS["bfloat16"]
    measured = {
        "share": FILE_MARGIN * max(3.0, float((gaps > 0).sum())) / gaps.size,  # of none seen, the rate is below 3 / n
        "mean": FILE_MARGIN * float(gaps.mean(dtype=float)),
        "deviation": FILE_MARGIN * float(gaps.std(dtype=float)),
        "largest": LARGEST_GAP_MARGIN * float(gaps.max()),
    }
    return DrawnGaps(
        outliers=_rounded_up(1.0 / max(gaps.size, LEAST_TOKENS)),
        **{
            name: min(max(_rounded_up(value), getattr(least, name)), max(getattr(most, name), getattr(least, name)))
            for name, value in measured.items()
        },
    )


def _rounded_up(value: float) -> float:
    if value <= 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")


def dtype_name(model: Any) -> Any:
    """`float32`, `bfloat16` or `float16`: the type of the model's weights. Raises CannotCalibrate for another."""
    name = str(next(model.parameters()).dtype).removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        raise CannotCalibrate(f"the weights are of type {name}; allowed: float32, bfloat16, float16")
    return name


def _decoded(model: Any, prompts: Sequence[Sequence[int]], effort: Effort, report: Report) -> list[Decoded]:
    """Sequences of the model's own, decoded in batches of several sizes. At least `LEAST_CHUNKS` chunks, whatever the time."""
    if not prompts:
        raise CannotCalibrate("there are no prompts")
    wanted = [prompts[number % len(prompts)] for number in range(effort.sequences)]
    made: list[Decoded] = []
    end = time.monotonic() + effort.seconds

    def enough() -> bool:
        return time.monotonic() >= end and len(layout([len(each.completion) for each in made])) >= LEAST_CHUNKS

    number = turn = 0
    while number < len(wanted) and not enough():
        batch = BATCHES[turn % len(BATCHES)]
        # Several batches of a size, so that prompts of one length find each other.
        part = wanted[number : number + 4 * batch]
        for group in decode(model, part, effort.max_tokens, effort.seed + turn, batch):
            made += [each for each in group if each.completion]
            report("decode", len(made), len(wanted))
            if enough():
                break
        number += len(part)
        turn += 1
    return made


def _served(
    model: Any,
    prompts: Sequence[Sequence[int]],
    mask: Bool | None,
    masked: Sequence[int],
    effort: Effort,
    report: Report,
    serve: Serve,
) -> ServedErrors:
    """The serving engine's honest proofs and tokens against one pass over each of its sequences."""
    wanted = [prompts[number % len(prompts)] for number in range(effort.sequences)]
    report("serve", 0, len(wanted))
    made = [each for each in serve(wanted, effort.max_tokens, masked) if each.completion]
    if not made:
        raise CannotCalibrate("the serving engine completed no prompt with a single token: give other prompts")
    none = np.zeros((0, 0), dtype=np.float32)
    report("compute again", 0, len(made))
    again = prefill(model, [Decoded(each.prompt, each.completion, none) for each in made], 1)
    proofs = [parse(each.proofs, len(each.completion), model.config.hidden_size) for each in made]
    whole = Proofs(np.concatenate([p.moduli for p in proofs]), np.concatenate([p.coefficients for p in proofs]))
    report("serve", len(made), len(wanted))
    compared = Compared(layout([len(states) for states in again]), compare_points(whole, *points_of(again, mask)))
    return ServedErrors(compared, np.concatenate([_gaps(model, *each) for each in zip(made, again, strict=True)]))


@torch.inference_mode()
def _gaps(model: Any, served: Served, states: Float32) -> Float32:
    """How far each token is behind the one that its seed draws from these states; nats, at least 0."""
    weight = next(model.lm_head.parameters())
    logprobs = torch.log_softmax(logits_of(model, torch.from_numpy(states).to(weight)), dim=-1)
    chosen = torch.tensor(served.completion, device=weight.device)
    positions = torch.arange(len(chosen), device=weight.device) + len(served.prompt) - 1
    gaps: Float32 = gumbel.redraw(logprobs, chosen, torch.full_like(chosen, served.seed), positions)[0].cpu().numpy()
    return gaps


def _controls(
    model: Any,
    honest: Sequence[Decoded],
    again: Sequence[Float32],
    mask: Bool | None,
    effort: Effort,
    report: Report,
    as_rounded: RoundedModel | None,
) -> Iterator[tuple[str, Compared]]:
    """Each kind of dishonest proof: its name, and its errors."""
    half = max(1, min(len(honest) // 2, CONTROL_SEQUENCES))
    given, seen = list(honest[-half:]), list(honest[:-half]) or list(honest)
    chunks = layout([len(each.completion) for each in given])
    ours = points_of(again[-half:], mask)

    def compared(claimed: Points) -> Compared:
        return Compared(chunks, distance(claimed, ours))

    for name, change in changes(effort.learning_rate, effort.updates).items():
        if as_rounded is not None and name == as_rounded.quantization:  # which is honest here
            continue
        report(name, 0, half)
        with _published(model, as_rounded), other_weights(model, name, change, effort.seed):
            if as_rounded is not None and name == OLDER:  # an older version is rounded too, by whoever still serves it
                round_in_place(model, as_rounded.quantization)
            states = prefill(model, given, CONTROL_BATCH)
        yield name, compared(points_of(states, mask))
    if as_rounded is not None:
        report(PUBLISHED, 0, half)
        with _published(model, as_rounded):
            states = prefill(model, given, CONTROL_BATCH)
        yield PUBLISHED, compared(points_of(states, mask))
    report("proofs without a forward pass", 0, half)
    known = [each.states for each in seen]
    yield "dimension prior", compared(forgeries.dimension_prior(known, mask, chunks))
    prior = forgeries.token_prior(known, [_read(each) for each in seen], [_read(each) for each in given], mask)
    yield "token prior", compared(prior)
    claimed = points_of([each.states for each in given], mask)
    yield "signs flipped", compared(forgeries.flipped(claimed))
    for name, proofs in (
        ("constant", forgeries.constants(claimed, len(chunks))),
        ("low degree", forgeries.low_degree(claimed)),
    ):
        yield name, Compared(chunks, compare_points(proofs, *ours))


@contextmanager
def _published(model: Any, as_rounded: RoundedModel | None) -> Iterator[None]:
    """The published weights in the place of rounded ones; nothing where none are rounded."""
    if as_rounded is None:
        yield
        return
    restore(model, as_rounded.folder)
    try:
        yield
    finally:
        round_in_place(model, as_rounded.quantization)


def _read(each: Decoded) -> list[int]:
    """For each row of states the token that the model read last."""
    return [each.prompt[-1], *each.completion[:-1]]


def _rejected_files(each: Compared, thresholds: ProofThresholds, file_sequences: int) -> Bool:
    """Which files have a chunk beyond its bounds, or too large a mean; bool [files]."""
    rejected = by_file(~each.errors.accepted(thresholds), each.chunks, file_sequences)
    number = each.chunks.sequence // file_sequences
    for file in range(len(rejected)):
        errors = each.errors.mantissa_error_mean[number == file]
        rejected[file] |= bool(errors.mean() > file_mean_allowed(thresholds, len(errors), FILE_CHANCE))
    return rejected


def _rate(events: Bool) -> ErrorRate:
    return error_rate(int(events.sum()), len(events))


def _mask(masked: Sequence[int], hidden_size: int) -> Bool | None:
    if not masked:
        return None
    mask = np.zeros(hidden_size, dtype=np.bool_)
    mask[list(masked)] = True
    return mask
