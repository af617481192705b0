"""A process that asks sympy whether two expressions are equal; it may hang, blow up or be killed, and nobody else is hurt.

Reads one JSON line a question, `[[gold, answer], ...]`, and writes one line, `[verdict, detail]`, with verdict `equal`, `unequal`, `no-gold` (ours
cannot be read) or `error`. A question `{"prove": [[gold, wrong answer], ...]}` asks for a proof that the gold answer can be judged: `equal`, or
`no-gold` with the reason. Started by `judging`, never imported. It has no timers of its own: an alarm does not stop sympy's C parts and reaches only
a main thread. Before the first question it gives up files, sockets, processes and memory that it does not need.
"""

import json
import logging
import os
import sys
from typing import Any

from shoal.rewards.gold_proof import prove
from shoal.rewards.judging import lock_in

PRECISION_DIGITS = 6
"""Decimals to which results that have no exact form are compared (math-verify's own default)."""


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
    from sympy import I, Set, evaluate
    from sympy.core.random import seed

    from shoal.rewards.math.confirm import confirmed
    from shoal.rewards.math.intervals import as_interval
    from shoal.rewards.math.size import too_large

    kinds = [LatexExtractionConfig(), ExprExtractionConfig()]

    def read(text: str) -> list[Any]:
        found = parse(f"${text}$", extraction_config=kinds, extraction_mode="first_match", parsing_timeout=None)
        return [complex_(item) for item in found if not isinstance(item, str)]

    def complex_(item: Any) -> Any:
        """With the imaginary unit where math-verify has an unknown of the name i; an index of that name stays one."""
        with evaluate(False):  # what was written is looked at, not what becomes of it
            return item.xreplace({each: I for each in item.free_symbols if each.name == "i"})

    def equal(ours: Any, theirs: Any) -> bool:
        if too_large(theirs, ours):
            return False
        wanted, given = as_interval(ours), as_interval(theirs)
        if wanted is not None and given is not None:
            if wanted[0] != given[0]:
                return False
            ours, theirs = wanted[1], given[1]
        elif given is not None and isinstance(ours, Set):  # the other way round math-verify does it
            theirs = given[1]
        elif wanted is not None and isinstance(theirs, Set):  # of two inequalities, too
            ours = wanted[1]
        same = verify([ours], [theirs], float_rounding=PRECISION_DIGITS, timeout_seconds=None)
        return bool(same) and confirmed(ours, theirs)

    def fits(ours: list[Any], answer: str) -> bool:
        try:
            return any(equal(one, other) for one in ours for other in read(answer))
        except (MemoryError, RecursionError):
            raise
        except Exception:  # an answer that breaks sympy is wrong, not left out, unless the gold answer breaks it too
            for one in ours:
                equal(one, one)
            return False

    def judge(pairs: list[list[str]] | dict[str, list[list[str]]]) -> tuple[str, str]:
        seed(0)  # sympy looks for what it may assume in an order that it draws: not another one on each machine
        if isinstance(pairs, dict):
            return prove(pairs["prove"], read, equal, fits)
        verdict = ("unequal", "not equal by sympy")
        for gold, answer in pairs:
            ours = read(gold)
            if not ours:
                verdict = ("no-gold", "the gold answer is not an expression")
                continue
            if fits(ours, answer):
                return ("equal", "equal by sympy")
        return verdict

    for gold, answer in (
        (r"\frac{x^2-1}{x-1}+\sqrt{8}", r"x+1+2\sqrt{2}"), (r"\{1,2\}", r"\{2,1\}"), ("(1,2]", "[1,2)"), (r"x\le 3", r"(-\infty,3]"),
        ("1,2", "2,1"), ("x=5", "5"), ("x^2+2x+1", "(x+1)^2"),
    ):  # fmt: skip
        judge([[gold, answer]])
    return judge


if __name__ == "__main__":
    main()
