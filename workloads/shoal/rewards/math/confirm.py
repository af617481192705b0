"""A second look at what math-verify calls equal: an answer that fits several gold answers is a guess at all of them.

In: a gold answer and another one, as sympy's expressions that math-verify's `verify` holds equal, in this order. Out: whether that stands. Each rule
is a way in which sympy or math-verify takes two things for one (docs/adr/0038). Called by `worker` and by that of the harness; their limits hold.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from math_verify.grader import is_assignment_relation, take_first_relation, take_last_relation, unwrap_fcs
from sympy import (
    Add,
    And,
    Eq,
    Expr,
    FiniteSet,
    Interval,
    MatrixBase,
    Pow,
    S,
    Set,
    Tuple,
    false,
    nan,
    oo,
    simplify,
    solve,
    true,
    zoo,
)
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from shoal.rewards.math.size import too_large

DIGITS = 30
"""To which a divisor is zero when its terms cancel."""
SMALL, CLOSENESS = 1e-3, 1e-3
"""math-verify compares decimals behind the point, of which a number below SMALL has few or none: it is to be as near as this, relatively."""


def confirmed(ours: Any, theirs: Any) -> bool:
    """Whether an answer that is said to be equal to the gold answer `ours` is."""
    wanted, given = unbounded_as_set(ours), unbounded(theirs)
    if ours in (oo, -oo):  # sympy's difference of that and a number is no better than the other way round
        return given == wanted
    return given <= wanted and _as_small(ours, theirs) and _same_equations(ours, theirs)


def guarded(verify: Callable[..., Any]) -> Callable[..., bool]:
    """math-verify's `verify` for tasks of lm-evaluation-harness, which call it themselves: each pair that it holds equal is looked at again."""

    def same(one: Any, other: Any, *rest: Any, **settings: Any) -> bool:
        if isinstance(one, str) or isinstance(other, str):
            return bool(verify([one], [other], *rest, **settings))
        return not too_large(other, one) and bool(verify([one], [other], *rest, **settings)) and confirmed(one, other)

    def confirmed_too(gold: Any, target: Any, *rest: Any, **settings: Any) -> bool:
        pairs = product(*(each if isinstance(each, list) else [each] for each in (gold, target)))
        return any(same(one, other, *rest, **settings) for one, other in pairs)

    return confirmed_too


def unbounded(expression: Any) -> set[Any]:
    """Infinities of an expression, and what is not a number in it, once it is evaluated.

    sympy takes `max(oo, 37) - 1/2` for zero, and other differences of the kind by the draw: so an answer that has an infinity is equal to no gold
    answer that has none, whatever their difference is said to be.
    """
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


def unbounded_as_set(expression: Any) -> set[Any]:
    """The same for a gold answer; the set of an inequality's solutions may be unbounded where the inequality itself names no infinity."""
    found = unbounded(expression)
    with contextlib.suppress(
        Exception
    ):  # of several variables: no set. f(x) > 3 is the set of f's values, as where it is compared
        found |= unbounded(unwrap_fcs(expression).as_set())
    return found


def _divides_by_zero(power: Any) -> bool:
    """Whether a divisor, or an exponent, has a sum of numbers that cancel, which sympy sees only by simplifying it."""
    sums = power.base.atoms(Add) if power.exp.could_extract_minus_sign() else set()
    return any(map(_cancels, sums | power.exp.atoms(Add)))


def _cancels(base: Any) -> bool:
    if not base.is_number:
        return False
    with contextlib.suppress(Exception):  # what has no digits is equal to no number by them
        largest = max(abs(term.evalf(DIGITS)) for term in base.args)
        return bool(abs(base.evalf(DIGITS)) <= largest * 10**-DIGITS)
    return False


def _as_small(ours: Any, theirs: Any) -> bool:
    """Whether the small numbers of the gold answer are those of the other one: else all of them would be zero, and each other."""
    wanted, given = list(_numbers(ours)), list(_numbers(theirs))
    if len(wanted) != len(given):  # an interval and an inequality, a percentage
        return True
    with contextlib.suppress(Exception):  # without digits, or without an order
        pairs = zip(_sorted(wanted), _sorted(given), strict=True)
        return all(_is_near(one, other) for one, other in pairs)
    return True


def _is_near(wanted: Any, given: Any) -> bool:
    value = wanted.evalf(DIGITS)
    if abs(value) >= SMALL or simplify(wanted) == 0:
        return True
    return bool(abs(value - given.evalf(DIGITS)) <= abs(value) * CLOSENESS)


def _sorted(numbers: list[Any]) -> list[Any]:
    return sorted(numbers, key=lambda number: number.evalf(DIGITS).as_real_imag())


def _numbers(expression: Any) -> Iterator[Any]:
    """The numbers of an answer: one where it is a number, several where it is a set, a pair, a matrix of them, or says what something is equal to."""
    if is_assignment_relation(expression):
        yield from _numbers(take_last_relation(expression).rhs)
    elif isinstance(expression, MatrixBase):
        yield from expression.flat()
    elif isinstance(expression, Interval):
        yield from (expression.start, expression.end)
    elif isinstance(expression, (FiniteSet, Tuple)):
        for each in expression.args:
            yield from _numbers(each)
    elif isinstance(expression, Expr) and expression.is_number:
        yield expression


def _same_equations(ours: Any, theirs: Any) -> bool:
    """Whether equations without a solution, or that always hold, are in the answer too; math-verify holds those for equal whose solutions are."""
    given = list(_equations(theirs))
    if theirs is S.EmptySet:  # else it would be the answer to every equation without a solution
        return not list(_equations(ours))
    if isinstance(ours, Relational) and not isinstance(ours, Eq) and _is_settled(ours):
        # else 0 < 1 would be the answer to all that always hold
        return bool(ours == theirs)
    return not given or all(any(_same_equation(one, other) for other in given) for one in _equations(ours))


def _is_settled(relation: Any) -> bool:
    """Whether an inequality holds, or not, whatever its unknowns are."""
    with contextlib.suppress(Exception):  # what cannot be evaluated is taken as it is written
        return simplify(relation.doit()) in (true, false)
    return False


def _equations(expression: Any) -> Iterator[Any]:
    if is_assignment_relation(expression):  # of a chain the first and the last
        yield Eq(take_first_relation(expression).lhs, take_last_relation(expression).rhs, evaluate=False)
    elif isinstance(expression, (And, FiniteSet, Tuple)):
        for each in expression.args:
            yield from _equations(each)
    elif isinstance(expression, Eq):
        yield expression


def _same_equation(ours: Any, theirs: Any) -> bool:
    if {ours.lhs, ours.rhs} == {theirs.lhs, theirs.rhs}:
        return True
    with contextlib.suppress(Exception):  # what cannot be evaluated or solved was not compared by it
        difference = ours.lhs - ours.rhs
        if simplify(difference.doit()) == 0:  # it always holds: so does 0 = 0
            return False
        if solve(ours, ours.free_symbols):
            return True
        ratio = simplify(difference / (theirs.lhs - theirs.rhs))
        return bool(ratio.is_number and ratio.is_finite and ratio != 0)
    return True
