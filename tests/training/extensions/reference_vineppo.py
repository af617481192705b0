"""VinePPO a second time: Python floats, one completion after the other, written from the paper's formulas and from nothing of ours."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rolled:
    """A completion of `length` tokens with its reward; `rollouts` has the rewards of continuations by the number of tokens that they go on from."""

    group: int
    length: int
    reward: float
    rollouts: dict[int, list[float]] = field(default_factory=dict)


def value(completions: list[Rolled], index: int, tokens: int) -> float:
    """V-hat after `tokens` tokens: equation 5, the mean return of rollouts from that state. The state after the prompt is every sibling's too."""
    one = completions[index]
    returns = list(one.rollouts.get(tokens, []))
    if tokens == 0:
        returns += [
            other.reward for place, other in enumerate(completions) if other.group == one.group and place != index
        ]
    return sum(returns) / len(returns)


def advantages(completions: list[Rolled]) -> list[list[float]]:
    """Equation 6 with no discount and the reward at the end: r + V(next state) - V(state), a state being the end of a part."""
    found = []
    for index, one in enumerate(completions):
        states = sorted({0, *one.rollouts})
        of_tokens: list[float] = []
        for token in range(one.length):
            state = max(place for place in states if place <= token)
            later = [place for place in states if place > token]
            after = value(completions, index, min(later)) if later else one.reward
            of_tokens.append(after - value(completions, index, state))
        found.append(of_tokens)
    return found


def whitened(given: list[list[float]], masks: list[list[bool]]) -> list[list[float]]:
    """Zero mean and unit (population) variance over all sampled tokens."""
    flat = [
        number
        for row, mask in zip(given, masks, strict=True)
        for number, sampled in zip(row, mask, strict=True)
        if sampled
    ]
    mean = sum(flat) / len(flat)
    deviation = (sum((number - mean) ** 2 for number in flat) / len(flat)) ** 0.5
    return [[(number - mean) / deviation for number in row] for row in given]
