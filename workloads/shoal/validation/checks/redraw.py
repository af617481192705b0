"""Every token is the one that the row's seed draws from the claimed policy: the sampler's choices, made again.

The paper checks the distribution of the chosen tokens' probabilities (INTELLECT-2, section 2.3.2). A rule by which a seed draws (`sampling.gumbel`)
allows a stronger check: given weights, prompt and seed, there is one completion, and any other is wrong. It shows another seed, the best of several
samples, a colder sampler, and an early or improbable end in one row. It shows tokens of other weights too, and tokens changed at the end, where no
hidden state depends on them.

Which rule it is, the run's configuration says (`ValidationJob.sampler`), never the worker. Where two tokens are nearly equal, rounding decides, and
an engine and we may differ. What rounding may do is a budget of the file (`DrawnGaps`): one token is not far behind, and all together are neither
behind too often nor by too much. So a liar who knows the budget can choose a few tokens, and not each one (docs/adversaries.md). Rarely rounding puts
an honest token farther behind: its row is left out of the file, as if it could not be scored (ADR 0090). A row of another seed has many such tokens,
and is found by itself. It rests on statistics, so it slashes only when a second check finds the same.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.contracts.rollouts import Rollout
from shoal.contracts.thresholds import DrawnGaps
from shoal.sampling.tails import at_least
from shoal.validation.facts import File, Finding, reject
from shoal.validation.prefill import Prefill

OUTLIERS_TOGETHER = 1.0
"""How many a row is expected to have that has one, beside those of `DrawnGaps.outliers`: what rounds one token far may round others of its row."""


@dataclass(frozen=True)
class Outliers:
    """Of one row: tokens farther behind than one may be, of how many, and what is wrong in words."""

    count: int
    tokens: int
    words: str


def outliers(file: File, prefills: Mapping[int, Prefill], budget: DrawnGaps) -> dict[int, Outliers]:
    """Rows of `prefills` (by row number) with a token farther behind than one may be. None where nobody draws again."""
    found = {}
    for number, ours in prefills.items():
        if ours.gaps is None or ours.drawn is None:
            continue
        row = file.rows[number]
        allowed = budget.largest / _scale(row.temperature)
        behind = np.flatnonzero(~(ours.gaps <= allowed))
        if behind.size:
            first = int(behind[0])
            place = int(np.flatnonzero(row.completion_mask)[first])
            words = (
                f"row {number}: {behind.size} of {ours.gaps.size} tokens are not what seed {row.seed} draws "
                f"from version {file.policy_version}; the first is token {place}: {row.completion_tokens[place]} is "
                f"claimed, drawn is {int(ours.drawn[first])}, {float(ours.gaps[first]):.3g} nats ahead (allowed "
                f"{allowed:g})"
            )
            found[number] = Outliers(int(behind.size), int(ours.gaps.size), words)
    return found


def add(found: dict[int, Outliers], more: Mapping[int, Outliers]) -> None:
    """Put what was found in another segment of some rows with what is known of them."""
    for number, each in more.items():
        before = found.get(number)
        if before is not None:
            each = Outliers(before.count + each.count, before.tokens + each.tokens, before.words)
        found[number] = each


def check(found: Mapping[int, Outliers], rows: Collection[Rollout], budget: DrawnGaps, chance: float) -> Finding | None:
    """No more rows have such a token than rounding explains in `rows`; none at all where the budget does not say how many do.

    One row is always explained, unless more of its tokens are such than rounding puts together. `rows` are all of this look, also those that come
    after the ones in `found`: so it may be asked at any time, and rejects an honest file for its rows with at most `chance` nevertheless.
    """
    if not found:
        return None
    first = next(iter(found.values())).words
    if budget.outliers is None:
        return reject("redraw", first)
    for row in found.values():
        if at_least(row.count, OUTLIERS_TOGETHER + budget.outliers * row.tokens) < chance:
            return reject("redraw", row.words)
    if len(found) == 1:
        return None
    expected = budget.outliers * sum(sum(row.completion_mask) for row in rows)
    if at_least(len(found), expected) >= chance:
        return None
    return reject(
        "redraw", f"{len(found)} of {len(rows)} rows have such a token, rounding explains {expected:.2g}. {first}"
    )


def check_budget(file: File, prefills: Mapping[int, Prefill], budget: DrawnGaps, chance: float) -> Finding | None:
    """All tokens of these rows are together within the budget. `chance`: how often an honest file may be rejected here."""
    seen = [
        ours.gaps * _scale(file.rows[number].temperature) for number, ours in prefills.items() if ours.gaps is not None
    ]
    if not seen:
        return None
    gaps = np.concatenate(seen).astype(np.float64)
    behind, total = int((gaps > 0.0).sum()), float(gaps.sum())
    allowed = sum_allowed(budget, gaps.size, chance / 2)
    if at_least(behind, budget.share * gaps.size) >= chance / 2 and total <= allowed:
        return None
    return reject(
        "redraw",
        f"{behind} of {gaps.size} tokens of {len(seen)} rows are not what their seeds draw from version {file.policy_version}; of honest ones "
        f"{budget.share * gaps.size:.3g} are. They are behind by {total:.3g} nats together (allowed {allowed:.3g})",
    )


def sum_allowed(budget: DrawnGaps, tokens: int, chance: float) -> float:
    """Nats by which `tokens` tokens may be behind together: an honest file's are more with at most `chance`.

    Bernstein's inequality, as of `toploc.codec.file_mean_allowed`.
    """
    nats = math.log(1.0 / chance)
    return budget.mean * tokens + budget.deviation * math.sqrt(2.0 * tokens * nats) + budget.largest * nats / 3.0


def _scale(temperature: float) -> float:
    """A temperature below 1 divides logits, and so what rounding does to them; `sampling` has seen that it is the run's."""
    return min(1.0, temperature)
