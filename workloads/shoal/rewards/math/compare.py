"""Whether two answers are equal, as far as text and exact numbers can tell; the rest is a question for sympy.

In: the gold answer and a given one, as written. Out: a decision, or the pairs of expressions of which one must be equal. Linear in the text, no
evaluation: nothing that an answer says can make this slow. Pure; called by `judge` in the caller's process, before any worker is asked.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from shoal.rewards.math.extract import LONGEST_ANSWER
from shoal.rewards.math.normalise import normalise, squeezed
from shoal.rewards.math.units import PERCENT, Unit, in_other_letters, split_unit

_NUMBER = re.compile(r"^([+-]?)\s*(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})$")
_FRACTION = re.compile(
    r"^([+-]?)\s*(?:\\frac\s*\{\s*([+-]?\d{1,400})\s*\}\s*\{\s*(\d{1,400})\s*\}|(\d{1,400})\s*/\s*(\d{1,400}))$"
)
_TOO_LARGE = re.compile(
    r"\^\s*\{?\s*[\d.]+\s*\^|\^\s*\{?\s*[\d.]{5,}|!\s*!|\d{4,}\s*!|\\[dt]?binom\s*\{\s*(?:\d{5}|\{?\s*[\d.]+\s*\}?\s*[\^!])|\^\s*\{?\s*[\d.]{3,}[\s})\]]*\^\s*\{?\s*[\d.]{3,}"
)
"""A power of a power, an exponent of five digits, a factorial of a factorial: nobody's answer unless the gold answer has one too.
What `size` sees in an expression is refused here where reading it already evaluates it (in sets, and arguments of functions)."""
_SIDE_BY_SIDE = re.compile(r"(?<![_^\d])\d+ \d")
"""math-verify adds them."""
_LAST_LETTER = re.compile(r"(?<=[\d)}\] ])([a-hj-zA-Z])$")
"""A variable at the end, as in `6t`, which math-verify takes for a unit and drops; not the imaginary unit, which it reads as it is."""
_CHOICE = re.compile(r"^\(([A-J])\)[ :.]*\S")
"""`(A) 5`: the choice and what stands there."""
DEEPEST = 12
"""Brackets inside brackets, unless the gold answer has more: the parser takes a second for 10 round ones and 14 for 50. No usual one comes near."""


@dataclass(frozen=True)
class Decided:
    equal: bool
    detail: str


@dataclass(frozen=True)
class Questions:
    """Pairs (gold, answer) of LaTeX; the answers are equal when one pair is."""

    pairs: tuple[tuple[str, str], ...]


def compare(gold: str, answer: str) -> Decided | Questions:
    """Decide without evaluating anything, or say what to ask."""
    if gold.strip() == answer.strip():
        return Decided(True, "the same text")
    if len(answer) > LONGEST_ANSWER:
        return Decided(False, f"the answer has {len(answer)} characters; at most {LONGEST_ANSWER} are allowed")
    ours, theirs = normalise(gold), normalise(answer)
    if not theirs:
        return Decided(False, "the answer is empty")
    if squeezed(ours) == squeezed(theirs):
        return Decided(True, "the same text after spelling")
    if _depth(theirs) > max(DEEPEST, _depth(ours)):
        return Decided(False, f"the answer has brackets more than {DEEPEST} deep")
    if _TOO_LARGE.search(theirs) and not _TOO_LARGE.search(ours):
        return Decided(False, "the answer is a number too large to be evaluated")
    if _SIDE_BY_SIDE.search(theirs) and not _SIDE_BY_SIDE.search(ours):
        return Decided(False, "the answer has two numbers side by side")
    if (chosen := _CHOICE.match(theirs)) is not None and len(ours.strip("() ")) == 1:
        return Decided(chosen[1] == ours.strip("() "), "the letter of a choice")
    left, left_unit = split_unit(ours)
    right, right_unit = split_unit(theirs)
    if in_other_letters(ours, left_unit, theirs, right_unit):
        left, left_unit = ours, None
    elif in_other_letters(theirs, right_unit, ours, left_unit):
        right, right_unit = theirs, None
    candidates = _in_one_unit((left, left_unit), (right, right_unit))
    if candidates is None:
        return Decided(False, "the answer is in a unit of another kind")
    pairs: list[tuple[str, str]] = []
    for (one, factor), (other, other_factor) in candidates:
        exact, given = number(one), number(other)
        if exact is not None and given is not None:
            if exact * factor == given * other_factor:
                return Decided(True, "the same number")
        else:
            pairs.append((_scaled(one, factor), _scaled(other, other_factor)))
    if not pairs:
        return Decided(False, "another number")
    return Questions(tuple(pairs))


def number(text: str) -> Fraction | None:
    """A decimal or a fraction of whole numbers, exactly; None for anything else."""
    found = _NUMBER.match(text)
    if found is not None:
        sign, digits = found.groups()
        return -Fraction(digits) if sign == "-" else Fraction(digits)
    found = _FRACTION.match(text)
    if found is None:
        return None
    sign, top, bottom, plain_top, plain_bottom = found.groups()
    below = int(bottom or plain_bottom)
    if below == 0:
        return None
    value = Fraction(int(top or plain_top), below)
    return -value if sign == "-" else value


Scaled = tuple[str, Fraction]
ONE = Fraction(1)


def _in_one_unit(gold: tuple[str, Unit | None], answer: tuple[str, Unit | None]) -> list[tuple[Scaled, Scaled]] | None:
    """Readings of both in the same unit, or None when there is none.

    A unit that one side leaves out is taken as understood: the question asked for it. A percentage without its sign may be the number of
    hundredths or the share.
    """
    (left, left_unit), (right, right_unit) = gold, answer
    if left_unit is not None and right_unit is not None:
        if left_unit.dimension != right_unit.dimension:
            return None
        return [((left, left_unit.factor), (right, right_unit.factor))]
    readings = [((left, ONE), (right, ONE))]
    if left_unit == PERCENT:
        readings.append(((left, PERCENT.factor), (right, ONE)))
    if right_unit == PERCENT:
        readings.append(((left, ONE), (right, PERCENT.factor)))
    return readings


def _scaled(text: str, factor: Fraction) -> str:
    text = _LAST_LETTER.sub(r"{\1}", text)
    return text if factor == 1 else rf"({text})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
    return deepest
