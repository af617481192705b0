"""Inequalities that say no more than an interval: `0 < x < 2` is (0, 2), however it is written.

In: an expression as math-verify parses it. Out: its set, with the unknown that it is about, for comparing it with another; None for anything that
would have to be solved. Pure; called by `worker`.
"""

from itertools import combinations
from typing import Any

from sympy import And, Eq, FiniteSet, Ne, S, Set, Union
from sympy.core.relational import Relational


def as_interval(expression: Any) -> tuple[Any, Set] | None:
    """The unknown and the numbers that it may be; None, too, where none may be. Several that exclude each other are meant to be joined by `or`."""
    if isinstance(expression, FiniteSet):
        found = [as_interval(each) for each in expression.args]
        several = [each for each in found if each is not None]
        apart = all(one[1].is_disjoint(other[1]) for one, other in combinations(several, 2))
        if len(several) < len(found) or len({unknown for unknown, _ in several}) != 1 or not apart:
            return None
        return several[0][0], Union(*(each[1] for each in several))
    parts = expression.args if isinstance(expression, And) else (expression,)
    if not all(isinstance(part, Relational) and not isinstance(part, (Eq, Ne)) for part in parts):
        return None
    sides = [side for part in parts for side in part.args]
    unknowns = {side for side in sides if side.is_Symbol}
    if len(unknowns) != 1 or not all(side.is_Symbol or (side.is_number and side.is_extended_real) for side in sides):
        return None
    if any(part.lhs.is_Symbol == part.rhs.is_Symbol for part in parts):
        return None
    numbers = expression.as_set()
    return None if numbers is S.EmptySet else (unknowns.pop(), numbers)
