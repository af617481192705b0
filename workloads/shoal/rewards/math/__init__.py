"""Are two mathematical answers the same? `shared_judge().equal(gold, answer)` is all that an environment needs."""

from shoal.rewards.math.extract import final_answer
from shoal.rewards.math.judge import MathJudge, MathVerdict, Undecided, shared_judge

__all__ = ["MathJudge", "MathVerdict", "Undecided", "final_answer", "shared_judge"]
