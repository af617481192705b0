"""The proof that a gold answer can be judged, as far as sympy makes it. Runs in a worker of `math`, whose readers and comparisons it is given."""

from collections.abc import Callable
from typing import Any


def prove(
    pairs: list[list[str]],
    read: Callable[[str], list[Any]],
    equal: Callable[[Any, Any], bool],
    fits: Callable[[list[Any], str], bool],
) -> tuple[str, str]:
    """Whether one reading of the gold answer equals what sympy writes for it, or itself by value, and not the wrong answer."""
    from sympy import latex

    why = "the gold answer is not an expression"
    for gold, wrong in pairs:
        ours = read(gold)
        if not ours:
            continue
        if not fits(ours, latex(ours[0])) and not any(equal(one, one) for one in ours):
            why = "the gold answer does not equal itself"
        elif fits(ours, wrong):
            why = "a wrong answer equals the gold answer"
        else:
            return ("equal", "an equivalent answer is right")
    return ("no-gold", why)
