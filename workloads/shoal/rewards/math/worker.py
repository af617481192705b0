"""A process that asks sympy whether two expressions are equal; it may hang, blow up or be killed, and nobody else is hurt.

Reads one JSON line a question, `[[gold, answer], ...]`, and writes one line, `[verdict, detail]`, with verdict `equal`, `unequal`, `no-gold` (ours
cannot be read) or `error`. Started by `judging`, never imported. It has no timers of its own: an alarm does not stop sympy's C parts and reaches only
a main thread. Before the first question it gives up files, sockets, processes and memory that it does not need.
"""

import contextlib
import json
import logging
import os
import sys
from typing import Any

from shoal.rewards.judging import lock_in

PRECISION_DIGITS = 6
"""Decimals to which results that have no exact form are compared (math-verify's own default)."""
DIGITS = 30
"""To which a divisor is zero when its terms cancel."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    logging.disable(logging.CRITICAL)
    judge = _load()
    lock_in()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        try:
            reply = judge(json.loads(line))
        except MemoryError:
            reply = ("error", "the expressions need more memory than is allowed")
        except RecursionError:
            reply = ("unequal", "the answer is nested too deeply")
        except Exception as error:  # sympy raises anything; what it does is no verdict
            reply = ("error", f"{type(error).__name__}: {error}"[:200])
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _load() -> Any:
    """The function that judges, warmed: the first parse of a grammar takes a second."""
    from math_verify import parse, verify
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig
    from sympy.core.random import seed

    kinds = [LatexExtractionConfig(), ExprExtractionConfig()]

    def read(text: str) -> list[Any]:
        return list(parse(f"${text}$", extraction_config=kinds, extraction_mode="first_match", parsing_timeout=None))

    def equal(ours: Any, theirs: Any) -> bool:
        if not verify([ours], [theirs], float_rounding=PRECISION_DIGITS, timeout_seconds=None):
            return False
        return unbounded(theirs) <= unbounded_as_set(ours)

    def judge(pairs: list[list[str]]) -> tuple[str, str]:
        seed(0)  # sympy looks for what it may assume in an order that it draws: not another one on each machine
        verdict = ("unequal", "not equal by sympy")
        for gold, answer in pairs:
            ours = [item for item in read(gold) if not isinstance(item, str)]
            if not ours:
                verdict = ("no-gold", "the gold answer is no expression")
                continue
            theirs = [item for item in read(answer) if not isinstance(item, str)]
            if any(equal(one, other) for one in ours for other in theirs):
                return ("equal", "equal by sympy")
        return verdict

    for gold, answer in (
        (r"\frac{x^2-1}{x-1}+\sqrt{8}", r"x+1+2\sqrt{2}"), (r"\{1,2\}", r"\{2,1\}"), ("(1,2]", "[1,2)"), (r"x\le 3", r"(-\infty,3]"),
        ("1,2", "2,1"), ("x=5", "5"), ("x^2+2x+1", "(x+1)^2"),
    ):  # fmt: skip
        judge([[gold, answer]])
    return judge


def unbounded(expression: Any) -> set[Any]:
    """Infinities of an expression, and what is no number in it, once it is evaluated.

    sympy takes `max(oo, 37) - 1/2` for zero, and other differences of the kind by the draw: so an answer that has an infinity is equal to no gold
    answer that has none, whatever their difference is said to be.
    """
    from sympy import Pow, Set, nan, oo, zoo
    from sympy.logic.boolalg import Boolean

    if isinstance(expression, Boolean):  # an equation of infinity would be evaluated to no more than "false"
        return set().union(*map(unbounded, expression.args))
    # Before it is evaluated, which cancels z / z; sympy's digits of that are noise, or those of zero, and so it equals two numbers.
    found = {zoo} if any(map(_divides_by_zero, expression.atoms(Pow))) else set()
    with contextlib.suppress(Exception):  # sympy raises anything; what cannot be evaluated is taken as it is written
        expression = expression.doit()
    if isinstance(expression, Set):  # the real numbers name no infinity
        with contextlib.suppress(Exception):
            found |= {expression.inf, expression.sup} & {oo, -oo}
    return found | {each for each in (oo, -oo, zoo, nan) if expression.has(each)}


def _divides_by_zero(power: Any) -> bool:
    """Whether a divisor is a sum of numbers that cancel, which sympy sees only by simplifying it."""
    base = power.base
    if not (base.is_Add and base.is_number and power.exp.could_extract_minus_sign()):
        return False
    with contextlib.suppress(Exception):  # what has no digits is equal to no number by them
        largest = max(abs(term.evalf(DIGITS)) for term in base.args)
        return bool(abs(base.evalf(DIGITS)) <= largest * 10**-DIGITS)
    return False


def unbounded_as_set(expression: Any) -> set[Any]:
    """The same for a gold answer; the set of an inequality's solutions may be unbounded where the inequality itself names no infinity."""
    from math_verify.grader import unwrap_fcs  # f(x) > 3 is the set of f's values, as where it is compared

    found = unbounded(expression)
    with contextlib.suppress(Exception):  # of several variables: no set
        found |= unbounded(unwrap_fcs(expression).as_set())
    return found


if __name__ == "__main__":
    main()
