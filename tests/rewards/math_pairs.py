"""Answers to judge: pairs from `math_pairs.tsv` (verdict, kind, gold, answer; written by hand), and answers that are none."""

from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    equal: bool
    kind: str
    gold: str
    answer: str


def _read() -> list[Pair]:
    lines = (Path(__file__).parent / "math_pairs.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    rows = [line.split("\t") for line in lines]
    return [Pair(verdict == "equal", kind, gold, answer) for verdict, kind, gold, answer in rows]


PAIRS = _read()
MALFORMED = [
    "", " ", "{", "}", "{{{{", "}}}}", r"\frac", r"\frac{", r"\frac{1", r"\frac{1}", r"\frac{1}{", r"\frac{}{}",
    r"\sqrt", r"\sqrt{", r"\sqrt{}", "^", "_", "1^", "^2", "1_", "\\", "\\\\", "$", "$$", "$$$", r"\begin{pmatrix}",
    r"\end{pmatrix}", r"\begin{pmatrix}1&", r"\left(", r"\right)", "(", ")", "[", "]", "(1,", ",2)", ",", ",,", ";",
    "=", "==", "x=", "=x", "+", "-", "*", "/", "1/", "/2", "1//2", "1++", "--", "%", r"\%", "°", "!", "?", "...",
    r"\ldots", r"\cdots", r"\text{", r"\text{}", r"\boxed{", r"\boxed{}", r"\unknown{3}", r"\undefined", "NaN",
    "nan", "inf", "None", "null", "undefined", "import os", "__import__('os')", "lambda: 0", "os.system('true')",
    "\x00", "\x00\x00", "\ud800", "\u202e", "\ufeff", "\u200b", "🐟", "🐟🐟", "漢字", "é", "\n", "\t", "\r\n", "<b>",
    "&nbsp;", "#", "@", "'", '"', "`", "~", "|", "||", r"\|", r"\mid", r"\sum_{", r"\int_0", r"\lim",
    r"\infty\infty", "1e999999", "0x", "1.2.3", "1..2", "..", "--1--", r"\frac{\frac{\frac{", "(" * 50, "{" * 500,
    "[" * 1000, r"\sqrt{" * 100, "^" * 1000, "-" * 1000, "\\" * 1000,
]  # fmt: skip
"""None of these is equal to any answer that is not the same text."""
