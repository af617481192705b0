"""Annotations of arrays, held while tests run: conftest.py puts `checked` on every function and dataclass of the modules that have any.

Hints that name no array are left to mypy, so that tests can pass stand-ins.
"""

from collections.abc import Callable
from typing import Any, get_args, get_origin

import numpy as np
from beartype import beartype
from jaxtyping import AbstractArray

SHAPED = [
    "shoal.crypto.challenge",
    "shoal.islands",
    "shoal.models.routers",
    "shoal.proofs",
    "shoal.storage.delta",
    "shoal.toploc",
    "shoal.training",
    "shoal.validation.checks.token_sampling",
    "shoal.validation.prefill",
    "shoal.validation.truncation",
    "shoal.sampling.gumbel",
]
"""Modules whose annotations of arrays, and all others of theirs, are held in this process: a call or a dataclass that does not fit them fails."""


def names_array(hint: object) -> bool:
    """Whether an array of jaxtyping or numpy stands anywhere in a hint."""
    if isinstance(kind := get_origin(hint) or hint, type) and issubclass(kind, AbstractArray | np.ndarray):
        return True
    return any(names_array(part) for part in get_args(hint))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose call fails where an array has another shape or dtype than its annotation says."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if names_array(hint)}
    return beartype(function) if function.__annotations__ else function
