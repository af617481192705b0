r"""The final answer in a completion's text: what stands in the last `\boxed{}`, else after the last "answer is" or "Answer:".

What comes before a closing `</think>` is thought, not answer. Time is linear in the text, whatever the text is. Pure; called by `environments.math`.
"""

import re

from shoal.rewards.boxes import BOX, boxed

END_OF_THOUGHT = "</think>"
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
