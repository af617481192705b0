"""Whether right answers can be judged against a gold answer, proven on an equivalent one before a run. Called by `environments.math`."""

from shoal.rewards.judging import NoReply
from shoal.rewards.math.compare import Decided, compare, number
from shoal.rewards.math.judge import MathJudge
from shoal.rewards.math.normalise import normalise
from shoal.rewards.math.units import split_unit

WRONG = "-987654321"
"""No problem's answer."""


class JudgeFailed(RuntimeError):
    """There was no worker to ask, or it ended by itself."""


def gold_flaw(judge: MathJudge, gold: str) -> str | None:
    """Why a right answer might not be judged against `gold`, None when it can: an equivalent answer, by value, is equal and a wrong one is not.

    Raises JudgeFailed where no worker was available, which says nothing about the answer.
    A number takes a few microseconds, another expression one question to a worker, of 5 to 300 ms.
    """
    value = number(split_unit(normalise(gold))[0])
    if value is not None:
        found = compare(gold, rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}")
        if isinstance(found, Decided) and found.equal:
            return None
    found = compare(gold, WRONG)
    if isinstance(found, Decided):
        return "a wrong answer equals the gold answer" if found.equal else None
    reply = judge.judges.ask({"prove": found.pairs})
    if isinstance(reply, NoReply):
        if reply.reason:
            raise JudgeFailed(reply.reason)
        return f"sympy does not decide it within {judge.question_seconds:.0f} s of CPU time"
    verdict, detail = map(str, reply)
    return None if verdict == "equal" else detail
