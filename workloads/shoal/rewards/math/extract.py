r"""The final answer in a completion's text: what stands in the last `\boxed{}`, else after the last "answer is" or "Answer:".

What comes before a closing `</think>` is thought, not answer. Time is linear in the text, whatever the text is. Pure; called by `environments.math`.
"""

import re

END_OF_THOUGHT = "</think>"
BOX = "\\boxed"
LONGEST_ANSWER = 2000
"""Characters. The longest answers of NuminaMath-1.5 are a few hundred; a gold answer may be as long as it likes, and is then matched as text."""

_SAID = re.compile(r"answer(?: is|:)[ \t]*:?[ \t]*([^\n]{1,2000})", re.IGNORECASE)
_TAIL = 4000
"""Without a box, only the end of a text is searched for a said answer."""


def final_answer(completion: str) -> str | None:
    """The answer's text as it was written, or None when the completion gives none (or its box is not closed)."""
    text = completion.rpartition(END_OF_THOUGHT)[2]
    if BOX in text:
        return boxed(text)
    said = _SAID.findall(text[-_TAIL:])
    return said[-1].strip().strip("*").removesuffix(".").strip() or None if said else None


def boxed(text: str) -> str | None:
    """What stands in the last box, None without one, or when it is empty or not closed."""
    start = text.rfind(BOX)
    return _in_braces(text, start + len(BOX)) if start >= 0 else None


def _in_braces(text: str, start: int) -> str | None:
    while start < len(text) and text[start] == " ":
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    depth = 0
    for position in range(start, len(text)):
        character = text[position]
        escaped = text[position - 1] == "\\" and text[position - 2 : position] != "\\\\"
        if character == "{" and not escaped:
            depth += 1
        elif character == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[start + 1 : position].strip() or None
    return None
