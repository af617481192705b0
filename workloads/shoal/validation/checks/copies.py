"""Continuations that were copied and not sampled, whole or with edits (algorithm vineppo).

Most rows of such a file say how an answer that is there already might have gone on: the cheapest of them is what a row before it said, with a token
changed here and there and a forward pass for the proofs. Where the sampler's choices cannot be drawn again, every such token is one that the policy
might have drawn. What gives a copy away is how well the rows before it foretell it.

`agreements` follows each row with a pointer into the rows of its prompt before it: a continuation's begins where its completion continues; it stays
on its course over tokens that differ; where the last `GRAM` tokens were said before it is set behind them. So each token is foretold from
those before it, or nothing is. `find` compares two ways in which the row can have been produced: P, the policy sampled it, and Q, each token was
copied except for a share `EDITED`, which was sampled. Under P the ratio Q / P is a martingale of mean 1, whatever the
rule of the pointer; the sum R of the ratios since every place follows R -> (1 + R) x ratio. R ever exceeds a border c in a row of n tokens with a
chance of at most n / c (Shiryaev and Roberts' statistic; Pollak, Annals of Statistics 13, 1985). No number of pairs or of places has to be
corrected for.

Copies are found as long as the tokens that agree are more improbable than the edits are expensive: with 0.5 nats a token an edit in ten tokens is
still found, with 0.2 nats one in thirty. Pure.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.contracts.rollouts import Rollout
from shoal.contracts.vine import Continuation, continuations
from shoal.validation.facts import Facts, File, Finding, reject

CHANCE = 1e-6
"""How often an honest file may be rejected here, by what its rows claim and once more by our own log-probabilities."""
GRAM = 8
"""Equal tokens in a row after which a pointer is set, and tokens that differ in a row after which it is dropped."""
EDITED = (1 / 8, 1 / 32)
"""Shares of a copy that were sampled; the evidence is the mean of both."""
MOST_ANCHORS = 500_000
"""Places of one prompt's rows that a pointer can be set to: about 100 MB. With more tokens it is every second, every third."""
MOST_SURPRISE = 30.0
"""Nats that one token counts at most, so that a sum stays a number. Less than the truth only spares a row."""

AGREES, DIFFERS = 1, 2

Agreements = dict[int, bytearray]
"""By row number: for each token of the completion AGREES, DIFFERS, or 0 where nothing was foretold."""


def check(file: File, facts: Facts) -> Finding | None:
    """Look at all rows, by the log-probabilities that they claim. Without continuations there is nothing to look for."""
    if facts.vine is None:
        return None
    return find(agreements(file, facts), {number: row.completion_logprobs for number, row in enumerate(file.rows)})


def agreements(file: File, facts: Facts) -> Agreements:
    """Where each row says what the rows of its prompt before it foretell."""
    by_prompt: dict[int, list[int]] = {}
    for number, row in enumerate(file.rows):
        by_prompt.setdefault(row.prompt_index, []).append(number)
    places = {each.row: each for each in continuations(facts.completions, facts.vine)}
    found: Agreements = {}
    for numbers in by_prompt.values():
        stride = 1 + sum(len(file.rows[number].completion_tokens) for number in numbers) // MOST_ANCHORS
        anchors: dict[int, tuple[int, int]] = {}
        for number in numbers:
            tokens = file.rows[number].completion_tokens
            found[number] = _follow(file.rows, number, _beginning(file.rows, places.get(number)), anchors)
            for place in range(GRAM, len(tokens), stride):
                anchors[hash(tuple(tokens[place - GRAM : place]))] = (number, place)
    return found


def _beginning(rows: Sequence[Rollout], place: Continuation | None) -> tuple[int, int] | None:
    """Row and position that a continuation's first token is foretold from."""
    if place is None:
        return None
    return place.parent, len(rows[place.row].prompt_tokens) - len(rows[place.parent].prompt_tokens)


def _follow(
    rows: Sequence[Rollout], number: int, pointer: tuple[int, int] | None, anchors: Mapping[int, tuple[int, int]]
) -> bytearray:
    tokens = rows[number].completion_tokens
    found = bytearray(len(tokens))
    equal, different = GRAM, 0  # in a row; a pointer is believed when it is set
    for place, token in enumerate(tokens):
        if place >= GRAM and (pointer is None or equal < GRAM):
            seen = anchors.get(hash(tuple(tokens[place - GRAM : place])))
            if seen is not None:
                pointer, equal, different = seen, GRAM, 0
        if pointer is None:
            continue
        source, at = pointer
        said = rows[source].completion_tokens
        if at >= len(said):
            pointer = None
            continue
        if said[at] == token:
            found[place], equal, different = AGREES, equal + 1, 0
        else:
            found[place], equal, different = DIFFERS, 0, different + 1
        pointer = (source, at + 1) if different < GRAM else None
    return found


def find(found: Agreements, logprobs: Mapping[int, npt.ArrayLike]) -> Finding | None:
    """The first of the rows in `logprobs` (natural logarithms, a value a token) that copying explains and sampling does not."""
    border = math.log(sum(map(len, found.values())) / CHANCE)
    for number, own in logprobs.items():
        evidence, agreeing, surprise = _evidence(found[number], own, border)
        if evidence >= border:
            return reject(
                "replay",
                f"row {number} was copied: {agreeing} of {len(found[number])} tokens, of log-probability {-surprise:.1f}, are those that earlier "
                f"rows of its prompt predict: this is e^{evidence:.1f} times as likely of a copy (allowed e^{border:.1f})",
            )
    return None


def _evidence(found: bytearray, logprobs: npt.ArrayLike, border: float) -> tuple[float, int, float]:
    """The greatest logarithm of R up to where it exceeds `border`; tokens that agree, and their surprise (nats)."""
    agrees = np.frombuffer(bytes(found), dtype=np.uint8) == AGREES
    surprises = np.clip(-np.asarray(logprobs, dtype=np.float64), 0.0, MOST_SURPRISE)
    surprise = float(surprises[agrees].sum())
    if surprise + math.log(len(found)) < border:  # R is at most n times the product of 1 / p
        return 0.0, int(agrees.sum()), surprise
    greatest, ratios, limit = 0.0, [0.0] * len(EDITED), math.exp(border)
    for kind, nats in zip(found, surprises.tolist(), strict=True):
        for index, edited in enumerate(EDITED):
            ratio = 1.0 if not kind else (1.0 - edited) * math.exp(nats) + edited if kind == AGREES else edited
            ratios[index] = (1.0 + ratios[index]) * ratio
        greatest = max(greatest, sum(ratios) / len(ratios))
        if greatest >= limit:
            break
    return math.log(max(greatest, 1.0)), int(agrees.sum()), surprise
