"""The objectives a second time: Python floats, one token after the other, written from the papers' formulas and from nothing of ours.

Each function gives a token's policy loss before the importance weight; `total` puts the whole loss together. `batch_loss` does so for completions,
with the correction of a mismatch, `mixture_loss` where completions have objectives of their own, and `gradient` differentiates either by finite
differences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log


@dataclass(frozen=True)
class Token:
    """`engine`: as the sampler reported it. `fixed`: the log-probability at which a weight without a gradient is computed; None: `logprob`."""

    logprob: float
    entropy: float
    old: float
    base: float
    advantage: float
    behaviour: float
    engine: float = 0.0
    fixed: float | None = None


@dataclass(frozen=True)
class Numbers:
    low: float
    high: float
    delta: float
    kl: float
    entropy: float
    cap: float | None
    divergence: float = inf
    kl_divergence: bool = False


@dataclass(frozen=True)
class Rule:
    """A correction of the mismatch: at most one of truncate (cap), mask (cap) and icepop (low, high), and a completion's band (low, high)."""

    truncate: float | None = None
    mask: float | None = None
    icepop: tuple[float, float] | None = None
    sequence: tuple[float, float] | None = None


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


def cispo(token: Token, numbers: Numbers) -> float:
    """MiniMax-M1 (arXiv:2506.13585), equations 4 and 5, negated: the clipped ratio under a stop-gradient, times A log p."""
    at = token.logprob if token.fixed is None else token.fixed
    weight = min(max(exp(at - token.old), 1 - numbers.low), 1 + numbers.high)
    return -weight * token.advantage * token.logprob


def dppo_masks(token: Token, numbers: Numbers) -> bool:
    """arXiv:2602.04879, equations 12 to 14: beyond the divergence, and on the way further out."""
    p, q = exp(token.logprob), exp(token.behaviour)
    apart = abs(p - q)
    if numbers.kl_divergence:
        apart = q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))
    outwards = (token.advantage > 0 and p / q > 1) or (token.advantage < 0 and p / q < 1)
    return apart > numbers.divergence and outwards


def dppo(token: Token, numbers: Numbers) -> float:
    """The same, equation 11, negated: mask times ratio times advantage, the ratio against the policy that sampled."""
    return 0.0 if dppo_masks(token, numbers) else -exp(token.logprob - token.behaviour) * token.advantage


def gspo(completion: Sequence[Token], numbers: Numbers) -> float:
    """GSPO (arXiv:2507.18071), equations 5 to 7, negated: one clipped ratio, the geometric mean of the tokens' ratios."""
    ratio = exp(sum(token.logprob - token.old for token in completion) / len(completion))
    clipped = min(max(ratio, 1 - numbers.low), 1 + numbers.high)
    return -min(ratio * completion[0].advantage, clipped * completion[0].advantage)


def gspo_token(completion: Sequence[Token], place: int, numbers: Numbers) -> float:
    """The same, equations 13 and 14: the ratio under a stop-gradient, times the token's probability over its own under one."""
    fixed = [token.logprob if token.fixed is None else token.fixed for token in completion]
    gaps = [at - token.old for at, token in zip(fixed, completion, strict=True)]
    ratio = exp(sum(gaps) / len(gaps)) * exp(completion[place].logprob - fixed[place])
    clipped = min(max(ratio, 1 - numbers.low), 1 + numbers.high)
    return -min(ratio * completion[place].advantage, clipped * completion[place].advantage)


SURROGATES = {
    "two_sided_grpo": intellect_2,
    "one_sided_grpo": ppo,
    "dr_grpo": ppo,
    "dapo": ppo,
    "rloo": ppo,
    "decoupled_ppo": ppo,
    "cispo": cispo,
    "dppo": dppo,
}
ALWAYS_WEIGHED = {"decoupled_ppo"}


def token_loss(name: str, token: Token, numbers: Numbers) -> float:
    """Surrogate, weighed by how much likelier the proximal policy made the token than the one that sampled it, plus KL, less entropy."""
    weight = 1.0
    if name in ALWAYS_WEIGHED or numbers.cap is not None:
        weight = exp(token.old - token.behaviour)
        if numbers.cap is not None:
            weight = min(weight, numbers.cap)
    return weight * SURROGATES[name](token, numbers) + bonus(token, numbers)


def bonus(token: Token, numbers: Numbers) -> float:
    """KL penalty (k3, Schulman 2020) less the entropy bonus."""
    kl = exp(token.base - token.logprob) - (token.base - token.logprob) - 1
    return numbers.kl * kl - numbers.entropy * token.entropy


def total(name: str, tokens: list[Token], numbers: Numbers) -> float:
    """Sum over tokens, undivided."""
    return sum(token_loss(name, token, numbers) for token in tokens)


def cuts(name: str, tokens: list[Token], numbers: Numbers) -> list[int]:
    """Tokens cut below, above, at delta, and weights cut at the cap."""
    found = [0, 0, 0, 0]
    for token in tokens:
        ratio = exp(token.logprob - token.old)
        found[3] += numbers.cap is not None and exp(token.old - token.behaviour) > numbers.cap
        if name == "cispo":
            found[0] += ratio < 1 - numbers.low
            found[1] += ratio > 1 + numbers.high
            continue
        if name == "dppo":
            found[int(token.advantage > 0)] += dppo_masks(token, numbers)
            continue
        found[0] += token.advantage < 0 and ratio < 1 - numbers.low
        found[1] += token.advantage > 0 and ratio > 1 + numbers.high
        found[2] += name == "two_sided_grpo" and token.advantage < 0 and ratio > numbers.delta
    return found


def correction(completion: Sequence[Token], rule: Rule) -> list[float]:
    """The factor of each token's policy loss. rho = p_old / p_engine.

    Truncated: Yao et al. 2025 (min(rho, C)). Masked: rho where it is at most C. IcePop: arXiv:2510.18855, equation of M(k). A completion: its
    geometric mean of rho.
    """
    found = []
    for token in completion:
        rho = exp(token.old - token.engine)
        if rule.truncate is not None:
            rho = min(rho, rule.truncate)
        elif rule.mask is not None:
            rho = rho if rho <= rule.mask else 0.0
        elif rule.icepop is not None:
            rho = rho if rule.icepop[0] <= rho <= rule.icepop[1] else 0.0
        else:
            rho = 1.0
        found.append(rho)
    if rule.sequence is not None:
        mean = exp(sum(token.old - token.engine for token in completion) / len(completion))
        if not rule.sequence[0] <= mean <= rule.sequence[1]:
            return [0.0] * len(found)
    return found


def batch_loss(
    name: str, completions: Sequence[Sequence[Token]], numbers: Numbers, rule: Rule, longest: int | None = None
) -> float:
    """The loss of an optimizer batch. Divided by its tokens, for Dr. GRPO by completions times `longest`, for GSPO a mean of means."""
    return undivided(name, completions, numbers, rule) / divisor(name, completions, longest)


@dataclass(frozen=True)
class Source:
    """What a source's rows are learnt by."""

    objective: str
    numbers: Numbers
    factor: float


def mixture_loss(
    owners: Sequence[Source], completions: Sequence[Sequence[Token]], rule: Rule, longest: int | None = None
) -> float:
    """Each completion adds what it would add if all had its source's objective, times the source's factor."""
    return sum(
        own.factor
        * undivided(own.objective, [completion], own.numbers, rule)
        / divisor(own.objective, completions, longest)
        for own, completion in zip(owners, completions, strict=True)
    )


def divisor(name: str, completions: Sequence[Sequence[Token]], longest: int | None = None) -> float:
    if name == "gspo":
        return len(completions)
    tokens = sum(len(completion) for completion in completions)
    return len(completions) * longest if name == "dr_grpo" and longest else tokens


def undivided(name: str, completions: Sequence[Sequence[Token]], numbers: Numbers, rule: Rule) -> float:
    whole = 0.0
    for completion in completions:
        factors = correction(completion, rule)
        if name == "gspo":
            if len(set(factors)) == 1:
                policy = gspo(completion, numbers) * factors[0]
            else:
                each = [factor * gspo_token(completion, place, numbers) for place, factor in enumerate(factors)]
                policy = sum(each) / len(completion)
            whole += policy + sum(bonus(token, numbers) for token in completion) / len(completion)
            continue
        for token, factor in zip(completion, factors, strict=True):
            extra = bonus(token, numbers)
            whole += factor * (token_loss(name, token, numbers) - extra) + extra
    return whole


def gradient(
    loss: Callable[[Sequence[Sequence[Token]]], float], completions: Sequence[Sequence[Token]], step: float = 1e-6
) -> list[float]:
    """The derivative of a loss by every log-probability, by central differences. Weights under a stop-gradient stay as they are."""
    fixed = [[replace(token, fixed=token.logprob) for token in completion] for completion in completions]
    found = []
    for number, completion in enumerate(fixed):
        for place, token in enumerate(completion):
            ends = []
            for by in (step, -step):
                moved = [*completion]
                moved[place] = replace(token, logprob=token.logprob + by)
                ends.append(loss([*fixed[:number], moved, *fixed[number + 1 :]]))
            found.append((ends[0] - ends[1]) / (2 * step))
    return found
