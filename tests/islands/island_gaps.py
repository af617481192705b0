"""How far rounds of islands are from DiLoCo's outer step in float64, by what is exchanged, and how far they may be.

In: how many islands, ranks of each, and the type of the exchange. Out: the largest difference of the shared weights after some rounds, relative to
the way that they went, and its bound. What islands learn is given, of unequal lengths, so that errors do not feed back. Vectors go through what they
go through in a run: signed headers, encoded bytes, judgement over all ranks, the mean, the outer step. Called by tests and `benchmarks/diloco`.

arXiv:2311.08105, algorithm 1: delta = mean of (theta_start - theta_i), theta = theta_start - OuterOpt(delta), all islands alike. OuterOpt is SGD with
Nesterov momentum (Sutskever et al. 2013, as torch writes it): v = mu v + delta, step = rate (delta + mu v).
"""

from dataclasses import dataclass

import numpy as np
import torch
from island_crowd import KEYS, KNOWN, RUN
from torch import Tensor

from shoal.contracts.islands import ExchangeType, IslandContribution
from shoal.contracts.signed import sign
from shoal.islands.contributions import HEADER_BYTES, Claim, Received, padded, payload_of, receive, sha256
from shoal.islands.judgement import judge_parts, part_of, state_after
from shoal.islands.outer import OuterSettings
from shoal.islands.shared import Meta, SharedState

VALUES, ROUNDS = 3001, 6
RATE, MOMENTUM = 0.7, 0.9
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "int8": 0.5 / 127}
"""Of the largest value of a block, half a step of its type."""
FLOAT32 = 2.0**-24


@dataclass(frozen=True)
class Gap:
    """`found` and `allowed`: of the weights, by the largest way that one went."""

    found: float
    allowed: float
    uniform: bool
    """Whether all islands counted alike on every rank."""


def learnt(islands: int) -> Tensor:
    """What each island learns in each round: a direction that all share and one of its own, and up to twice as much by some as by others."""
    places = np.arange(VALUES) + 1.0
    found = np.empty((ROUNDS, islands, VALUES))
    for number in range(ROUNDS):
        common = np.sin(12.9898 * places + 7.0 * number) * np.exp(-places / VALUES * 3)
        for island in range(islands):
            own = np.sin(78.233 * places + 3.0 * number + 11.0 * island + 0.37 * np.sqrt(places))
            found[number, island] = 0.01 * (1 + island / max(1, islands - 1)) * (common + 0.5 * own)
    return torch.from_numpy(found)


def outer_steps(start: Tensor, given: Tensor) -> Tensor:
    """The paper's algorithm, float64."""
    theta, velocity = start.double(), torch.zeros(VALUES, dtype=torch.float64)
    for number in range(ROUNDS):
        delta = given[number].mean(dim=0)
        velocity = MOMENTUM * velocity + delta
        theta = theta - RATE * (delta + MOMENTUM * velocity)
    return theta


def allowed(start: Tensor, given: Tensor, kind: ExchangeType) -> float:
    """What roundings add up to at most, in the weights. A round's mean is off by half a step of the type, and by roundings of float32: of the
    weights that are subtracted, and of what is added up."""
    largest = float(start.abs().max()) + 20 * float(given.abs().max())
    of_velocity = of_weights = 0.0
    for number in range(ROUNDS):
        vector = float(given[number].abs().max())
        of_mean = (ROUNDING[kind] + 8 * FLOAT32) * vector + 2 * FLOAT32 * largest
        of_velocity = MOMENTUM * of_velocity + of_mean + 40 * FLOAT32 * vector
        of_weights += RATE * (of_mean + MOMENTUM * of_velocity) + FLOAT32 * largest
    return of_weights


def measure(islands: int, ranks: int, kind: ExchangeType) -> Gap:
    """Rounds of `islands` whose vectors lie in parts on `ranks` each."""
    given, start = learnt(islands), torch.linspace(-1, 1, VALUES, dtype=torch.float32)
    names = [f"island-{number}" for number in range(islands)]
    shared = [SharedState(Meta(), part.clone(), torch.zeros(len(part))) for part in start.tensor_split(ranks)]
    alike = True
    for number in range(ROUNDS):
        parts = [given[number].float()[:, held] for held in torch.arange(VALUES).tensor_split(ranks)]
        received = [
            _received(names, own, state, rank, kind)
            for rank, (own, state) in enumerate(zip(parts, shared, strict=True))
        ]
        said = [
            part_of(each, len(state.weights), kind) for each, state in zip(received, shared, strict=True)
        ]  # fmt: skip
        judged = [judge_parts(said, each, shared[0].meta.reference) for each in received]
        alike = alike and all(
            one.coefficients == dict.fromkeys(names, 1 / islands) and not one.problems for one in judged
        )
        shared = [
            state_after(state, each, one, kind, OuterSettings(), names)
            for state, each, one in zip(shared, received, judged, strict=True)
        ]
    wanted = outer_steps(start, given.float().double())
    way = float((wanted - start.double()).abs().max())
    found = torch.cat([state.weights for state in shared]).double()
    return Gap(float((found - wanted).abs().max()) / way, allowed(start, given, kind) / way, alike)


def _received(names: list[str], own: Tensor, state: SharedState, rank: int, kind: ExchangeType) -> list[Received]:
    """What a rank gets of all islands: each trained from the shared weights, and subtracts where it came to."""
    headers, payloads = [], []
    for name, moved in zip(names, own, strict=True):
        payload, counts = payload_of(state.weights - (state.weights - moved), len(moved), kind)
        header = IslandContribution(
            run=RUN, island=name, meeting="1-2-3", round=state.meta.round, rank=rank, contributes=counts,
            sha256=sha256(payload), inner_seconds=1.0, position=state.meta.round,
        )  # fmt: skip
        headers.append(padded(sign(header, KEYS[name]).to_json(), HEADER_BYTES))
        payloads.append(payload)
    return receive(names, headers, payloads, Claim(RUN, "1-2-3", state.meta.round, rank), KNOWN)
