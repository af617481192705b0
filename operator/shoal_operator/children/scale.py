"""How many replicas our own child kinds get. Pure.

A run says once how many replicas a pool begins with; from then on `kubectl scale` and autoscalers own the number. The run sets it again only when
its template's own number changes, or to stop and resume. What it must remember for that is in two annotations of the child.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal_operator.engine.cluster import Object

TEMPLATE_REPLICAS = "shoal.dev/template-replicas"
"""The template's number when it was last applied."""
RESUME_REPLICAS = "shoal.dev/resume-replicas"
"""While stopped: the number to continue with."""


@dataclass(frozen=True)
class Scale:
    """What to apply: `replicas` now, and `working`, which is the same unless the child is stopped."""

    replicas: int
    working: int
    template: int
    asked: bool = True
    """Whether the run sets the number now. If not, it is what we found: it is not written, as others may have written another since we looked."""

    @property
    def annotations(self) -> dict[str, str]:
        """What must be remembered with the child."""
        made = {TEMPLATE_REPLICAS: str(self.template)}
        return made if self.replicas == self.working else made | {RESUME_REPLICAS: str(self.working)}


def decide_scale(template: int, live: Object | None, *, work: bool) -> Scale:
    """Replicas of a child.

    Args:
        template: what the run's template says.
        live: the child as it is, or None.
        work: whether the run has work for it.
    """
    working, asked = template, True
    annotations = (live or {}).get("metadata", {}).get("annotations", {})
    if live is not None and annotations.get(TEMPLATE_REPLICAS) == str(template):
        remembered = _number(annotations, RESUME_REPLICAS)
        working = int(live["spec"].get("replicas", template)) if remembered is None else remembered
        asked = not work or remembered is not None
    return Scale(working if work else 0, working, template, asked)


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    text = annotations.get(key, "")
    return int(text) if text.isdecimal() else None
