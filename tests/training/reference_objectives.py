"""The objectives a second time: Python floats, one token after the other, written from the papers' formulas and from nothing of ours.

Each function gives a token's policy loss before the importance weight; `total` puts the whole loss together.
"""

from dataclasses import dataclass
from math import exp


@dataclass(frozen=True)
class Token:
    logprob: float
    entropy: float
    old: float
    base: float
    advantage: float
    behaviour: float


@dataclass(frozen=True)
class Numbers:
    low: float
    high: float
    delta: float
    kl: float
    entropy: float
    cap: float | None


def ppo(token: Token, numbers: Numbers) -> float:
    """arXiv:1707.06347, equation 7, negated."""
    ratio = exp(token.logprob - token.old)
    clipped = min(max(ratio, 1 - numbers.low), 1 + numbers.high)
    return -min(ratio * token.advantage, clipped * token.advantage)


def intellect_2(token: Token, numbers: Numbers) -> float:
    """INTELLECT-2, section 3.4: the ratio is bounded by delta before it meets the advantage."""
    ratio = exp(token.logprob - token.old)
    clipped = min(max(ratio, 1 - numbers.low), 1 + numbers.high)
    return -min(min(ratio, numbers.delta) * token.advantage, clipped * token.advantage)


SURROGATES = {
    "two_sided_grpo": intellect_2,
    "one_sided_grpo": ppo,
    "dr_grpo": ppo,
    "dapo": ppo,
    "rloo": ppo,
    "decoupled_ppo": ppo,
}
ALWAYS_WEIGHED = {"decoupled_ppo"}


def token_loss(name: str, token: Token, numbers: Numbers) -> float:
    """Surrogate, weighed by how much likelier the proximal policy made the token than the one that sampled it, plus KL, less entropy."""
    weight = 1.0
    if name in ALWAYS_WEIGHED or numbers.cap is not None:
        weight = exp(token.old - token.behaviour)
        if numbers.cap is not None:
            weight = min(weight, numbers.cap)
    kl = exp(token.base - token.logprob) - (token.base - token.logprob) - 1
    return weight * SURROGATES[name](token, numbers) + numbers.kl * kl - numbers.entropy * token.entropy


def total(name: str, tokens: list[Token], numbers: Numbers) -> float:
    """Sum over tokens, undivided."""
    return sum(token_loss(name, token, numbers) for token in tokens)


def cuts(name: str, tokens: list[Token], numbers: Numbers) -> list[int]:
    """Tokens cut below, above, at delta, and weights cut at the cap."""
    found = [0, 0, 0, 0]
    for token in tokens:
        ratio = exp(token.logprob - token.old)
        found[0] += token.advantage < 0 and ratio < 1 - numbers.low
        found[1] += token.advantage > 0 and ratio > 1 + numbers.high
        found[2] += name == "two_sided_grpo" and token.advantage < 0 and ratio > numbers.delta
        found[3] += numbers.cap is not None and exp(token.old - token.behaviour) > numbers.cap
    return found
