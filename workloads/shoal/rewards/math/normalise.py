r"""One spelling for what LaTeX and Unicode spell in many ways, before anything is parsed.

`\dfrac` and `\frac`, `\left(` and `(`, `½`, full-width and Arabic digits, a minus sign that is none of ASCII's, thousands separators, dollar signs,
text in boxes. Nothing here changes what an answer means; linear in the text. Pure; called by `compare` and `units`.
"""

# ruff: noqa: RUF001 - look-alikes are what this is about

import re
import unicodedata

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "∩": r"\cap ", "∅": r"\emptyset ", "°": r"^\circ ", "′": "'", "∈": r"\in ", "±": r"\pm ", "θ": r"\theta ",
}  # fmt: skip
SUPERSCRIPTS = {character: str(digit) for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-"}

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
    (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", r" degrees "),
    (r"\\%", "%"),
    (r"\\\$", "$"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),
    (r"\\(?:text|mathrm|textbf|mathbf|mbox|rm|textrm|operatorname)\s*\{([^{}]*)\}", r" \1 "),
    (r"\s+(?:or|and)\s+", ", "),
)
_SPELLINGS = tuple((re.compile(pattern), replacement) for pattern, replacement in SPELLINGS)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}"))
_SPACES = re.compile(r"\s+")


def normalise(text: str) -> str:
    """The text in one spelling. Any string is allowed."""
    text = _ascii(text)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _unwrap(text.strip().removesuffix(".").strip())
    text = text.lstrip("$").strip() if text.startswith("$") else text
    if _is_one_number(text):
        text = text.replace("{,}", "").replace(",", "")
    return _SPACES.sub(" ", text).strip()


def squeezed(text: str) -> str:
    """For comparing two normalised texts letter by letter: no spaces, and no case where all is words (`Yes`, `(A)`)."""
    text = text.replace(" ", "")
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
