"""What a CEL rule of our kinds is: an expression with a message and its examples. Lists of them are in `rules` and `mode_rules`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One rule of one model.

    Attributes:
        model: class name of the model whose value is `self`.
        expression: the CEL expression; true means allowed.
        message: what is allowed, for the author of the manifest.
        field: path below the model that the message is about, in camelCase; empty for the model itself.
        good: a value of the model (after defaulting, only what the rule reads) that passes.
        bad: one that does not.
        old: value of `oldSelf` in the examples; only rules of updates have one.
    """

    model: str
    expression: str
    message: str
    field: str
    good: dict[str, Any]
    bad: dict[str, Any]
    old: dict[str, Any] | None = None

    @property
    def of_updates(self) -> bool:
        return "oldSelf" in self.expression


def immutable(field: str, old: Any, new: Any, model: str = "TrainingRunSpec") -> Rule:
    """A rule of updates: `field` of `model` stays as it is. `old` and `new` are values for the examples."""
    word, other = ("run", "start a new run") if model == "TrainingRunSpec" else ("object", "make another one")
    return Rule(
        model=model,
        expression=f"self.{field} == oldSelf.{field}",
        message=f"cannot change once the {word} exists; {other} instead",
        field=field,
        good={field: old},
        bad={field: new},
        old={field: old},
    )
