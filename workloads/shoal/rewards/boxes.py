r"""The text in the last `\boxed{}` of another. Time is linear in the text, whatever the text is. Pure; called by `math.extract` and by data sets."""

BOX = "\\boxed"


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
