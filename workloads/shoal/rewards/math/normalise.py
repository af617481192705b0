r"""One spelling for what LaTeX and Unicode spell in many ways, before anything is parsed.

`\dfrac` and `\frac`, `\left(` and `(`, `½`, full-width and Arabic digits; a minus sign that is none of ASCII's, thousands separators, dollar signs,
text in boxes. Nothing here changes what an answer means; linear in the text. Pure; called by `compare` and `units`.
"""

# ruff: noqa: RUF001 - look-alikes are what this is about

import re
import unicodedata

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "∩": r"\cap ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": r"^\circ ", "′": "'", "∈": r"\in ", "±": r"\pm ", "θ": r"\theta ",
}  # fmt: skip
SUPERSCRIPTS = {character: str(digit) for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-"}

_TRIGONOMETRIC = r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?)"
_ARGUMENT = r"\d|[a-zA-Z]|\\pi(?![a-zA-Z])"
"""A token that LaTeX takes as one argument without braces."""

SPELLINGS = (
    (r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?)(?![a-zA-Z])\.?", ""),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le"),
    (r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge"),
    (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset"),
    (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
    (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
    (r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
    (r"(?<!\\)\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])", " "),
    (r"\\degree(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
    (
        _TRIGONOMETRIC
        + r"\s*(?:(\()|(\{))?\s*(\d{1,20}(?:\.\d{1,20})?)\s*\^\s*\\circ(?![a-zA-Z])(?(2)\s*\))(?(3)\s*\})",
        r"\1(\\frac{\4\\pi}{180})",
    ),
    (r"\^\s*\\circ(?![a-zA-Z])", r" degrees "),
    (r"\\%", "%"),
    (r"\\\$", "$"),
    (rf"\\frac\s*({_ARGUMENT})\s*({_ARGUMENT})", r"\\frac{\1}{\2}"),
    (rf"\\frac\s*({_ARGUMENT})\s*\{{", r"\\frac{\1}{"),
    (rf"\\frac\s*\{{([^{{}}]*)\}}\s*({_ARGUMENT})", r"\\frac{\1}{\2}"),
    (r"(?:\\|(?<![\\a-zA-Z]))sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"\\sqrt\s*(\d+)", r"\\sqrt{\1}"),
    (r"(?<![\\a-zA-Z])(?:pi|PI|Pi)(?![a-zA-Z])", r"\\pi "),
    (r"\\lg(?![a-zA-Z])", r"\\log_{10}"),
    (r"\\(?:R|Reals|reals)(?![a-zA-Z])", r"\\mathbb{R}"),
    (r"\\(?:text|mathrm|textbf|mathbf|mbox|rm|textrm|operatorname)\s*\{([^{}]*)\}", r" \1 "),
    (r"(?i)^\s*all\s+real\s+numbers\s*$", r"\\mathbb{R}"),
    (r"\s+(?:or|and)\s+", ", "),
)
_SPELLINGS = tuple((re.compile(pattern), replacement) for pattern, replacement in SPELLINGS)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}"))
_SPACES = re.compile(r"\s+")
_WHOLE = (
    (r"([+-]?\d{1,400}) +(\d{1,400}) ?/ ?(\d{1,400})", r"\1\\frac{\2}{\3}"),  # 1 1/2
    (r"([+-]?\d{1,400}(?:\.\d{1,400})?)[eE]([+-]?\d{1,3})", r"\1\\cdot 10^{\2}"),
    (r"\\\{ ?[a-zA-Z] ?(?:\\(?:mid|vert|colon)(?![a-zA-Z])|[|:])([^{}|:]*)\\\}", r"\1"),  # the x with 1 < x < 2
)
_WHOLES = tuple((re.compile(pattern), replacement) for pattern, replacement in _WHOLE)
"""Spellings of an answer as a whole."""
_REPEATING = re.compile(r"([+-]?)(\d{0,20})\.(\d{0,20})(?:\\(?:overline|bar|dot) ?(?:\{ ?(\d{1,20}) ?\}|(\d)))")
_BETWEEN_OTHERS = re.compile(r"(?<!\d) | (?!\d)")
_IN_THREES = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})+(?! ?\d)")


def normalise(text: str) -> str:
    """The text in one spelling. Any string is allowed."""
    text = _ascii(text)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _unwrap(text.strip().removesuffix(".").strip())
    text = text.lstrip("$").strip() if text.startswith("$") else text
    if _is_one_number(text):
        text = text.replace("{,}", "").replace(",", "")
    text = _IN_THREES.sub(lambda found: found[0].replace(" ", ""), _SPACES.sub(" ", text).strip())
    for pattern, replacement in _WHOLES:
        text = pattern.sub(replacement, text).strip() if pattern.fullmatch(text) else text
    if "," in text and text.count(" degrees") > 1:  # of a list: understood, as one side may leave them out
        text = text.replace(" degrees", "")
    repeating = _REPEATING.fullmatch(text)
    return _as_fraction(*repeating.groups(default="")) if repeating is not None else text


def _as_fraction(sign: str, whole: str, once: str, again: str, digit: str) -> str:
    """`1.2\\overline{34}` as the fraction that it is."""
    period = again or digit
    bottom = (10 ** len(period) - 1) * 10 ** len(once)
    top = int((whole + once or "0") + period) - int(whole + once or "0")
    return rf"{sign}\frac{{{top}}}{{{bottom}}}"


def squeezed(text: str) -> str:
    """For comparing two normalised texts letter by letter: no case where all is words (`Yes`, `(A)`), no spaces but between numbers (`1 2`)."""
    text = _BETWEEN_OTHERS.sub("", text)
    return text.casefold().strip("()") if text.strip("()").isalpha() else text


def _ascii(text: str) -> str:
    out: list[str] = []
    power = False
    for character in text:
        if character in SUPERSCRIPTS:
            out.append(SUPERSCRIPTS[character] if power else "^{" + SUPERSCRIPTS[character])
            power = True
            continue
        if power:
            out.append("}")
            power = False
        if character.isascii():
            out.append(character)
        elif character in SYMBOLS:
            out.append(SYMBOLS[character])
        elif (digit := unicodedata.decimal(character, None)) is not None:
            out.append(str(digit))
        else:
            out.append(_compatible(character))
    if power:
        out.append("}")
    return "".join(out)


def _compatible(character: str) -> str:
    """`½` as a fraction, full-width letters as letters; everything else as it is."""
    plain = unicodedata.normalize("NFKC", character)
    top, slash, bottom = plain.partition("⁄")
    if slash and top.isdecimal() and bottom.isdecimal():
        return rf"\frac{{{top}}}{{{bottom}}}"
    return plain


def _unwrap(text: str) -> str:
    changed = True
    while changed:
        changed = False
        for opening, closing in _WRAPPERS:
            inside = text[len(opening) : -len(closing)]
            if (
                text.startswith(opening)
                and text.endswith(closing)
                and len(text) > len(opening) + len(closing)
                and (opening != r"\boxed{" or inside.count("{") == inside.count("}"))
            ):
                text, changed = inside.strip(), True
    return text


def _is_one_number(text: str) -> bool:
    """`1,234,567` is a number; `1,234,5` and `(1,234)` are not: a list keeps its commas."""
    found = _THOUSANDS.match(text.lstrip("+-"))
    return found is not None and "," not in text.lstrip("+-")[found.end() :]
