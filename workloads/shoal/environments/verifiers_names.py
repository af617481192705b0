"""How a package of verifiers is named in a manifest: `verifiers:PACKAGE[{SETTINGS}]`.

In: the text behind `verifiers:`. Out: its parts. PACKAGE is what `vf-eval` takes: the module that exports one `Taskset`, with `-` or `_`. SETTINGS is
a JSON object with fields of the task set's configuration. Pure; needs no verifiers. Called by `base`, `verifiers_package` and `cli.preflight`.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT = "verifiers"
FORM = 'allowed: PACKAGE[{SETTINGS}], as in verifiers:word-sums{"terms":3}'
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


class BadPackageName(ValueError):
    """The text names no package of verifiers; the message says what is allowed."""


@dataclass(frozen=True)
class NamedPackage:
    """A package, and settings of its task set."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module that verifiers imports for it."""
        return self.name.replace("-", "_").lower()


def parse_package(text: str) -> NamedPackage:
    """BadPackageName when the text does not name one."""
    name = _NAME.match(text)
    if name is None:
        raise BadPackageName(f"verifiers: a package's name is missing, at {text[:40]!r}; {FORM}")
    rest = text[name.end() :]
    if not rest:
        return NamedPackage(name[0])
    try:
        settings = json.loads(rest)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise BadPackageName(f"verifiers: {rest[:40]!r} behind {name[0]} is not a JSON object; {FORM}")
    if "id" in settings:
        raise BadPackageName(f"verifiers: {name[0]} must not set id: the package's name is its id")
    return NamedPackage(name[0], settings)
