"""What sampled answers say about a model: avg@k, pass@k, confidence intervals, lengths, the share that was cut. Pure.

In: answers by problem. Out: `Scores`. Problems are the independent draws, not answers: answers to one problem are alike, so every interval is
over problems. Called by `sampling` and `cli/eval.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, variance

from pydantic import Field

from shoal.contracts.base import Contract, unset

Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Answer:
    """One completion: its task reward (0 to 1; None where it could not be scored), its length in tokens, and whether it was cut off at the limit.

    `answered`: whether it gives a final answer, right or wrong, in the form that is asked for; None where the environment cannot tell.
    """

    reward: float | None
    tokens: int
    cut: bool
    answered: bool | None = None


@dataclass(frozen=True)
class AnsweredTask:
    """One task and all that was answered to it."""

    problem_id: str
    answers: Sequence[Answer]

    @property
    def scored(self) -> list[float]:
        """Rewards of the answers that could be scored."""
        return [answer.reward for answer in self.answers if answer.reward is not None]


class Estimate(Contract):
    """A mean over `problems` problems with its 95 % interval; `k` is the number of answers a problem that it speaks of."""

    k: int = Field(ge=1)
    value: float = Field(ge=0.0, le=1.0)
    low: float = Field(ge=0.0, le=1.0)
    high: float = Field(ge=0.0, le=1.0)
    problems: int = Field(ge=1)


class Lengths(Contract):
    """Tokens of the completions, and the share that was cut off at the limit."""

    mean: float = Field(ge=0.0)
    median: float = Field(ge=0.0)
    most: int = Field(ge=0)
    cut_share: float = Field(ge=0.0, le=1.0)


class ProblemScore(Contract):
    """One line of the record: `right` of `scored` answers have the whole reward."""

    problem_id: str
    scored: int = Field(ge=0)
    right: int = Field(ge=0)
    mean_reward: float | None


class Scores(Contract):
    """All figures. `avg_at_k` is the mean reward; `pass_at_k` the chance that one of k answers is right. None and empty: nothing could be scored."""

    avg_at_k: Estimate | None
    pass_at_k: list[Estimate]
    lengths: Lengths
    unscored: int = Field(ge=0, description="answers that could not be scored; they count only in the lengths")
    unanswered_share: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        exclude_if=unset,
        description="share of completions without a final answer in the form that is asked for; None: the environment cannot tell",
    )
    problems: list[ProblemScore]


def scores(problems: Sequence[AnsweredTask], samples: int) -> Scores:
    """The figures for `samples` answers a problem. Raises ValueError without an answer, or when a reward is not in 0 to 1."""
    answers = [answer for problem in problems for answer in problem.answers]
    if not answers:
        raise ValueError("there are no answers; allowed: one or more problems with one or more answers each")
    for problem in problems:
        for reward in problem.scored:
            if not 0.0 <= reward <= 1.0:
                raise ValueError(f"a reward of problem {problem.problem_id} is {reward}; allowed: 0 to 1")
    lengths = sorted(answer.tokens for answer in answers)
    middle = len(lengths) // 2
    return Scores(
        avg_at_k=_estimate(samples, [fmean(one.scored) for one in problems if one.scored], problems),
        pass_at_k=[found for k in ks(samples) if (found := _pass_at(k, problems)) is not None],
        lengths=Lengths(
            mean=fmean(lengths),
            median=lengths[middle] if len(lengths) % 2 else (lengths[middle - 1] + lengths[middle]) / 2,
            most=lengths[-1],
            cut_share=fmean(answer.cut for answer in answers),
        ),
        unscored=sum(answer.reward is None for answer in answers),
        unanswered_share=fmean(not answer.answered for answer in answers) if answers[0].answered is not None else None,
        problems=[
            ProblemScore(
                problem_id=one.problem_id,
                scored=len(one.scored),
                right=right(one),
                mean_reward=fmean(one.scored) if one.scored else None,
            )
            for one in problems
        ],
    )


def ks(samples: int) -> list[int]:
    """Which pass@k are told: powers of two up to the samples, and the samples themselves."""
    powers = [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]
    return powers if powers[-1] == samples else [*powers, samples]


def right(problem: AnsweredTask) -> int:
    """Answers with the whole reward."""
    return sum(reward >= 1.0 for reward in problem.scored)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that k answers, drawn without replacement from `samples` with `correct` right ones, hold a right one.

    Unbiased for the chance that one of k new answers is right; there 1 - (1 - correct / samples)^k is too small (arXiv:2107.03374, section 2.1).
    Raises ValueError unless 1 <= k <= samples and 0 <= correct <= samples.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(
            f"pass@{k} of {correct} right ones among {samples}; allowed: k from 1 to the samples, right ones from 0"
        )
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def interval(values: Sequence[float], trials: int) -> tuple[float, float]:
    """A 95 % interval for the mean of independent values in 0 to 1, one a problem, from `trials` answers in all.

    Wilson's interval. It stays within 0 to 1 and has a width where all values are equal. It counts as many trials as would give the spread that was
    seen: more than problems where these are alike, never more than answers. Where no spread is seen it is one trial a problem. Raises ValueError
    without values.
    """
    if not values:
        raise ValueError("an interval needs one or more values")
    mean, effective = fmean(values), float(len(values))
    if len(values) > 1 and 0.0 < mean < 1.0 and (spread := variance(values) / len(values)) > 0.0:
        effective = min(mean * (1.0 - mean) / spread, float(max(trials, len(values))))
    square = Z_95**2
    centre = (mean + square / (2 * effective)) / (1 + square / effective)
    half = Z_95 / (1 + square / effective) * sqrt(mean * (1 - mean) / effective + square / (4 * effective**2))
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _pass_at(k: int, problems: Sequence[AnsweredTask]) -> Estimate | None:
    """Over the problems with as many scored answers as that."""
    enough = [one for one in problems if len(one.scored) >= k]
    return _estimate(k, [pass_at_k(len(one.scored), right(one), k) for one in enough], enough)


def _estimate(k: int, values: Sequence[float], problems: Sequence[AnsweredTask]) -> Estimate | None:
    if not values:
        return None
    low, high = interval(values, sum(len(one.scored) for one in problems))
    return Estimate(k=k, value=fmean(values), low=low, high=high, problems=len(values))
