"""Whether an answer is larger than can be evaluated in the time that a judge has, told from how it is written. Pure; evaluates nothing large.

In: an expression as math-verify parses it, unevaluated. Out: yes or no. An answer that is, and whose gold answer is not, is wrong: it must not
choose to be left out by taking longer than the judge waits. What hangs sympy for another reason (an infinite product, say) is not seen here. Called
by `worker` and by that of the harness.
"""

import math
from typing import Any

from sympy import Add, Float, Mul, Pow, Rational, binomial, exp, factorial, preorder_traversal
from sympy.core.relational import Equality

MOST_BITS = 14_000
"""Of an integer: 4,300 digits, which is what Python turns into a text."""
MOST_TERMS = 10_000
"""Of a power of a sum once it is expanded."""
HIGHEST_DEGREE = 12
"""Of an unknown in an equation: sympy looks for roots."""


class _TooLarge(Exception):
    pass


def too_large(theirs: Any, ours: Any) -> bool:
    """Whether evaluating an answer (sympy) means integers, sums or, where the gold answer `ours` is solved
    too, equations beyond the bounds above; and evaluating `ours` does not."""
    if ours.has(Equality) and _degree(theirs) > HIGHEST_DEGREE >= _degree(ours):
        return True
    return _is_large(theirs) and not _is_large(ours)


def _is_large(expression: Any) -> bool:
    try:
        _Sizes().bits(expression)
    except _TooLarge:
        return True
    return False


def _degree(expression: Any) -> float:
    sizes, highest = _Sizes(), 1.0
    for part in preorder_traversal(expression):
        if isinstance(part, Equality):
            for power in part.atoms(Pow):
                if power.base.free_symbols:
                    try:
                        highest = max(highest, sizes.amount(power.exp))
                    except _TooLarge:
                        return math.inf
    return highest


class _Sizes:
    """Bounds of the parts of one expression, each reckoned once: in a tower of powers they are asked for again and again."""

    def __init__(self) -> None:
        self._bits: dict[int, tuple[Any, float]] = {}  # with the part itself, so that no other has its id
        self._amounts: dict[int, tuple[Any, float]] = {}

    def bits(self, part: Any) -> float:
        """Upper bound of the binary digits of the number that `part` is, unknowns counting nothing. Raises _TooLarge for what has more inside."""
        if id(part) not in self._bits:
            bits = self._reckoned(part)
            if not bits <= MOST_BITS:  # nor if it is no number
                raise _TooLarge
            self._bits[id(part)] = (part, bits)
        return self._bits[id(part)][1]

    def _reckoned(self, part: Any) -> float:
        if isinstance(part, Rational):
            return float(max(abs(part.p).bit_length(), part.q.bit_length()))
        if isinstance(part, Float):
            return 64.0
        if isinstance(part, Pow):
            return self._of_power(part.base, part.exp)
        if isinstance(part, exp):
            return 2.0 * self.amount(part.args[0])
        if isinstance(part, factorial):
            size = self.amount(part.args[0])
            return size * math.log2(size + 2.0)
        if isinstance(part, binomial):
            above, below = map(self.amount, part.args)
            return min(below, max(above - below, 0.0)) * math.log2(above + 2.0)
        inside = [self.bits(each) for each in getattr(part, "args", ())]
        if isinstance(part, Mul):
            return sum(inside)
        return max(inside, default=0.0) + (math.log2(len(inside)) if isinstance(part, Add) else 0.0)

    def _of_power(self, base: Any, exponent: Any) -> float:
        size = self.amount(exponent)
        if isinstance(base, Add) and size > 1.0:
            terms = math.lgamma(len(base.args) + size) - math.lgamma(size + 1.0) - math.lgamma(len(base.args))
            if not terms <= math.log(MOST_TERMS):
                raise _TooLarge
        return self.bits(base) * size

    def amount(self, part: Any) -> float:
        """Upper bound of a number's amount, an unknown taken for 1: `x - x + 99999999` is evaluated to what its numbers are."""
        if id(part) not in self._amounts:
            self._amounts[id(part)] = (part, self._amount(part))
        return self._amounts[id(part)][1]

    def _amount(self, part: Any) -> float:
        bits = self.bits(part)
        try:
            if isinstance(part, Rational):
                return float(abs(part))
            if not part.free_symbols:
                return self._evaluated(part, bits)
            if isinstance(part, Add):
                return math.fsum(map(self.amount, part.args))
            if isinstance(part, Mul):
                return math.prod(map(self.amount, part.args))
            if isinstance(part, Pow):
                return float(self.amount(part.base) ** self.amount(part.exp))
        except OverflowError:
            raise _TooLarge from None
        return 1.0

    def _evaluated(self, part: Any, bits: float) -> float:
        if bits > 64.0:
            raise _TooLarge
        try:
            return float(abs(part.evalf(15)))
        except (TypeError, ValueError):  # infinite, or no number
            return float(2.0**bits)
