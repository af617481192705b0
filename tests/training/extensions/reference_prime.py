"""PRIME a second time: Python floats, one completion after the other, written from the paper's formulas and from nothing of ours."""

from dataclasses import dataclass
from math import exp, log


@dataclass(frozen=True)
class Completion:
    """Log-probabilities of the sampled tokens, if there are any, under the reward model and the base model, in order; `outcome` is 0 to 1."""

    group: int
    outcome: float
    reward: float
    prm: list[float]
    ref: list[float]


def token_rewards(one: Completion, beta: float) -> list[float]:
    """Equation 3: beta * log(pi_prm / pi_ref)."""
    return [beta * (ours - base) for ours, base in zip(one.prm, one.ref, strict=True)]


def loss(completions: list[Completion], beta: float) -> float:
    """Equation 4: mean binary cross-entropy of sigmoid(sum of the token rewards) against the outcome."""
    total = 0.0
    for one in completions:
        said = 1 / (1 + exp(-sum(token_rewards(one, beta))))
        total -= one.outcome * log(said) + (1 - one.outcome) * log(1 - said)
    return total / len(completions)


def mixed(
    completions: list[Completion], beta: float, outcome_weight: float, process_weight: float
) -> list[list[float]]:
    """Equation 5 before whitening: for each completion and token, the weighted sum of process return and outcome advantage.

    The paper says nothing of a completion without others: it has itself for a baseline.
    """
    found = []
    for index, one in enumerate(completions):
        others = [other for place, other in enumerate(completions) if other.group == one.group and place != index]
        means = [sum(token_rewards(other, beta)) / len(other.prm) for other in others or [one] if other.prm]
        baseline = sum(means) / len(means) if means else 0.0
        rewards = [other.reward for other in others or [one]]
        outcome = one.reward - sum(rewards) / len(rewards)
        centred = [reward - baseline for reward in token_rewards(one, beta)]
        found.append(
            [process_weight * sum(centred[place:]) + outcome_weight * outcome for place in range(len(centred))]
        )
    return found


def whitened(values: list[list[float]]) -> list[list[float]]:
    """Zero mean and unit (population) variance over all tokens."""
    flat = [value for row in values for value in row]
    mean = sum(flat) / len(flat)
    deviation = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    return [[(value - mean) / deviation for value in row] for row in values]
