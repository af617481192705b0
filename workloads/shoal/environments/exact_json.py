"""Python values as JSON that gives the same values back: tuples, sets, keys that are no text, and numbers that RFC 8785 has not.

What JSON has stays as it is. Anything else is an object with one member whose name begins with `!`. In: values of a generator's metadata. Out: what
a task table can hold, and back. Pure. Called by `reasoning_gym`.
"""

import math
from typing import Any

from shoal.environments.rows import MOST_INTEGER

_MARK = "!"


def to_json(value: Any) -> Any:
    """ValueError for a value of a kind that is not held."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # numpy and enumerations have kinds of their own
    if isinstance(value, int):
        return int(value) if abs(value) <= MOST_INTEGER else {"!int": str(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"!float": repr(float(value))}
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if isinstance(value, tuple):
        return {"!tuple": [to_json(each) for each in value]}
    if isinstance(value, set | frozenset):
        return {"!set": [to_json(each) for each in sorted(value, key=repr)]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith(_MARK) for key in value):
            return {str(key): to_json(each) for key, each in value.items()}
        return {"!dict": [[to_json(key), to_json(each)] for key, each in value.items()]}
    if (item := getattr(value, "item", None)) is not None and getattr(value, "shape", None) == ():
        return to_json(item())  # a number of numpy
    raise ValueError(f"a value of type {type(value).__name__} cannot be held in a task table")


def from_json(value: Any) -> Any:
    """What `to_json` was given. ValueError for an object that it does not write."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    marks = [key for key in value if key.startswith(_MARK)]
    if not marks:
        return {key: from_json(each) for key, each in value.items()}
    held = value[marks[0]]
    match marks[0] if len(value) == 1 else "":
        case "!tuple" if isinstance(held, list):
            return tuple(from_json(each) for each in held)
        case "!set" if isinstance(held, list):
            return {from_json(each) for each in held}
        case "!dict" if isinstance(held, list):
            return {from_json(key): from_json(each) for key, each in held}
        case "!int" if isinstance(held, str):
            return int(held)
        case "!float" if isinstance(held, str):
            return float(held)
    raise ValueError(f"{marks[0]!r} does not mark a value")
