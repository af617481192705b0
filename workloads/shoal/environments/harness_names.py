"""How a task of lm-evaluation-harness is named in a manifest or on the command line: `TASK[,METRIC[,FILTER]][@REVISION]`.

In: the text behind `lm-eval:`. Out: its parts. Metric and filter are written as the harness's results have them (`exact_match,strict-match`).
Pure; needs no harness, because workers and validators read such names too. Called by `harness`, `harness_import`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import MayPass

FORM = "allowed: TASK[,METRIC[,FILTER]][@REVISION], with REVISION the 40 hex digits of a commit of the data set"
_PART = re.compile(r"[^\s,@]{1,200}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
MOST_NEAR = 5


def is_commit(text: str) -> bool:
    """Whether a text is a whole commit, which no branch or tag stands for."""
    return _COMMIT.fullmatch(text) is not None


class BadHarnessTask(MayPass):
    """The task cannot be named, loaded or scored so; the message says why and what is allowed."""


@dataclass(frozen=True)
class HarnessTask:
    """A task or group of the harness, or the path of a YAML file; its metric and filter (None: its first) and its data set's commit."""

    task: str
    metric: str | None = None
    filter: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> HarnessTask:
        """BadHarnessTask when the text is not such a name."""
        name, at, revision = text.partition("@")
        if at and not is_commit(revision):
            raise BadHarnessTask(f"lm-eval:{text}: {revision!r:.60} is not a revision; {FORM}")
        parts = name.split(",")
        if len(parts) > 3 or not all(_PART.fullmatch(part) for part in parts):
            raise BadHarnessTask(f"lm-eval:{text}: it does not name a task; {FORM}")
        return cls(*parts, revision=revision or None)  # type: ignore[misc]  # at most three

    @property
    def is_file(self) -> bool:
        """Whether the task is a YAML file of the admin's."""
        return self.task.endswith((".yaml", ".yml"))


def near(name: str, known: Iterable[str]) -> str:
    """`; near are a, b`, or how many there are when none is similar."""
    names = list(known)
    found = difflib.get_close_matches(name, names, MOST_NEAR, 0.6)
    return f"; near are {', '.join(found)}" if found else f"; none of {len(names)} is similar"
