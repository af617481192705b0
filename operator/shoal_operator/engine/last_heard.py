"""Figures that each run's orchestrator said last, as long as this process lives: what a silent one's status is compared with.

Reconcile remembers them, so that figures which somebody else wrote into a status do not stand. It costs the JSON of one run's figures, 1 to
8 kB: 8 MB at most for 1,000 runs. After a restart nothing is known, and the figures of the status stand until the orchestrator answers.
"""

import json
from collections.abc import Mapping
from typing import Any


class LastHeard:
    """Figures by namespace and name of a run. Safe for threads: one call is one step of a dict."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[str, bytes]] = {}

    def keep(self, namespace: str, name: str, uid: str, figures: Mapping[str, Any]) -> None:
        """The figures stand until the next ones of this run. `uid`: of its object."""
        self._said[namespace, name] = uid, json.dumps(dict(figures)).encode()

    def find(self, namespace: str, name: str, uid: str) -> dict[str, Any] | None:
        """The figures kept last; None for none, also when those are of an earlier run of this name."""
        of, said = self._said.get((namespace, name), ("", b""))
        found: dict[str, Any] | None = json.loads(said) if said and of == uid else None
        return found

    def forget(self, namespace: str, name: str) -> None:
        """The run is gone."""
        self._said.pop((namespace, name), None)
