"""Units at the end of an answer: `5 cm`, `12 m/s`, `30 degrees`, `50%`, `7 apples`.

In: a normalised answer. Out: the number's text and a `Unit`, or no unit. A unit has a dimension and a factor to the dimension's base, so that
`50 mm` is `5 cm`; a word that is not a known unit is a dimension of its own. Pure; called by `compare`. Factors are exact (SI brochure, 9th edition;
international yard and pound, 1959).
"""

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """`dimension` names what is measured, `factor` how many base units one of these is."""

    dimension: str
    factor: Fraction


PERCENT = Unit("percent", Fraction(1, 100))


def _table(dimension: str, rows: dict[str, str]) -> dict[str, Unit]:
    return {name: Unit(dimension, Fraction(factor)) for names, factor in rows.items() for name in names.split()}


UNITS: dict[str, Unit] = {
    **_table("length", {
        "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "dm decimeter decimetre": "1/10",
        "m meter metre": "1", "km kilometer kilometre": "1000", "inch inches in": "0.0254", "ft foot feet": "0.3048",
        "yd yard": "0.9144", "mi mile": "1609.344",
    }),
    **_table("mass", {
        "mg milligram": "1/1000000", "g gram": "1/1000", "kg kilogram": "1", "t ton tonne": "1000",
        "lb lbs pound": "0.45359237", "oz ounce": "0.028349523125",
    }),
    **_table("time", {
        "ms millisecond": "1/1000", "s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400",
        "week": "604800",
    }),
    **_table("volume", {"ml milliliter millilitre": "1/1000000", "l liter litre": "1/1000"}),
    **_table("angle", {"degree deg": "1"}),
    **_table("dollar", {"cent": "1/100", "dollar usd": "1"}),
    **_table("power", {"w watt": "1", "kw kilowatt": "1000"}),
    **_table("energy", {"j joule": "1", "kj kilojoule": "1000"}),
    **_table("force", {"n newton": "1"}),
    "%": PERCENT, "percent": PERCENT,
}  # fmt: skip

_WORD = r"[A-Za-z]+(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_TAIL = re.compile(
    rf"^(?P<number>.*(?:[\d\)\}}\]]|\\pi))(?P<gap>\s*)(?P<unit>%|(?:(?:square|cubic)\s+)?{_WORD}(?:\s*(?:/|\bper\b)\s*{_WORD})?)$",
    re.DOTALL,
)
_MODULO = re.compile(r"^(?P<number>.*\S)\s*(?:\\p?mod|\(\s*\\?mod)\s*\{?\s*(?P<of>\d{1,40})\s*\}?\s*\)?$", re.DOTALL)
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_ONE_WORD = re.compile(r"^(?:(square|cubic)\s+)?([A-Za-z]+)(?:\s*\^\s*\{?\s*([23])\s*\}?)?$")


def split_unit(text: str) -> tuple[str, Unit | None]:
    """The number's text and its unit; the text as it is when it ends in none.

    A single letter that touches the number (`3m`) is a variable, as in algebra; with a space it is a unit if it is one.
    """
    if len(text) > 300:
        return text, None
    if (modulo := _MODULO.match(text)) is not None:
        return modulo["number"], Unit(f"modulo {int(modulo['of'])}", Fraction(1))
    found = _TAIL.match(text)
    if found is None:
        return text, None
    number, gap, name = found["number"].strip(), found["gap"], found["unit"]
    if name == "%":
        return number, PERCENT
    if not gap and (len(name) == 1 or _simple(name) is None):
        return text, None
    parts = re.split(r"\s*/\s*|\s+per\s+", name)
    units = [_simple(part) for part in parts]
    if has_variables(number) and (len(name) == 1 or (units[0] is None and len(name) < 4)):  # `x^{2} h` is a product
        return text, None
    if any(unit is None for unit in units):
        word, _, power = name.strip().lower().partition("^")
        word = word.strip()
        if len(word) < 3 or "/" in name:
            return text, None
        return number, Unit(word.removesuffix("s") + power.strip(" {}"), Fraction(1))
    top = units[0]
    assert top is not None
    if len(units) == 1:
        return number, top
    bottom = units[1]
    assert bottom is not None
    return number, Unit(f"{top.dimension}/{bottom.dimension}", top.factor / bottom.factor)


def has_variables(number: str) -> bool:
    """Whether a text has letters that stand for something; those of `x = 5`, left of the sign, say what is asked for."""
    return re.search("[a-zA-Z]", _COMMAND.sub("", number.rpartition("=")[2])) is not None


def in_other_letters(text: str, unit: Unit | None, other: str, other_unit: Unit | None) -> bool:
    """Whether a unit of one letter, as in `6 t`, is a variable of the other answer, which is in no unit."""
    return (
        unit is not None
        and other_unit is None
        and re.search(r" [a-zA-Z]$", text) is not None
        and text[-1] in _VARIABLE.findall(other)
    )


def _simple(name: str) -> Unit | None:
    """One unit with its power: `cm^2`, `square cm`, `hours`."""
    found = _ONE_WORD.match(name.strip())
    if found is None:
        return None
    adjective, word, digit = found.groups()
    low = word.lower()
    unit = UNITS.get(low) or UNITS.get(low.removesuffix("s"))
    if unit is None or (word[0].isupper() and len(word) == 1 and low not in ("l", "w", "j", "n")):
        return None
    power = int(digit) if digit else {"square": 2, "cubic": 3}.get(adjective, 1)
    if power == 1:
        return unit
    if unit.dimension == "length" and power == 3:
        return Unit("volume", unit.factor**3)
    return Unit(f"{unit.dimension}^{power}", unit.factor**power)
