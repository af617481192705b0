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


def too_large(expression: Any) -> bool:
    """Whether evaluating the expression (sympy) means integers, sums or equations beyond the bounds above."""
    if any(isinstance(part, Equality) and _degree(part) > HIGHEST_DEGREE for part in preorder_traversal(expression)):
        return True
    try:
        _bits(expression)
    except _TooLarge:
        return True
    return False


def _degree(equation: Any) -> float:
    powers = [power for power in equation.atoms(Pow) if power.base.free_symbols]
    return max((_size(power.exp) for power in powers), default=1.0)


def _bits(part: Any) -> float:
    """Upper bound of the binary digits of the number that `part` is; 0 for what is none. Raises _TooLarge for anything inside beyond the bounds."""
    if isinstance(part, Rational):
        bits: float = max(abs(part.p).bit_length(), part.q.bit_length())
    elif isinstance(part, Float):
        bits = 64.0
    elif isinstance(part, Pow):
        bits = _bits_of_power(part.base, part.exp)
    elif isinstance(part, exp):
        bits = 2.0 * _size(part.args[0])
    elif isinstance(part, factorial):
        size = _size(part.args[0])
        bits = size * math.log2(size + 2.0)
    elif isinstance(part, binomial):
        above, below = map(_size, part.args)
        bits = min(below, max(above - below, 0.0)) * math.log2(above + 2.0)
    else:
        inside = [_bits(each) for each in getattr(part, "args", ())]
        bits = sum(inside) if isinstance(part, Mul) else max(inside, default=0.0)
        bits += math.log2(len(inside)) if isinstance(part, Add) else 0.0
    if bits > MOST_BITS:
        raise _TooLarge
    return bits


def _bits_of_power(base: Any, exponent: Any) -> float:
    size = _size(exponent)
    if isinstance(base, Add) and size > 1.0:
        terms = math.lgamma(len(base.args) + size) - math.lgamma(size + 1.0) - math.lgamma(len(base.args))
        if terms > math.log(MOST_TERMS):
            raise _TooLarge
    return _bits(base) * size


def _size(part: Any) -> float:
    """Upper bound of a number's amount, where it is one; 1 for an unknown."""
    bits = _bits(part)
    if part.free_symbols:
        return 1.0
    if isinstance(part, Rational):
        return float(abs(part))
    if bits > 64.0:
        raise _TooLarge
    try:
        return float(abs(part.evalf(15)))
    except (TypeError, ValueError, OverflowError):  # complex, infinite, or no number
        return 2.0**bits
