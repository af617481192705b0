"""The first answers of the newest accepted file, for the overview of every open page: chosen and read once for all of them.

A run of the paper's size has a million verdicts and files of tens of megabytes, so pages that ask every ten seconds cost neither.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from shoal.contracts import keys
from shoal.report.facts import StoreFacts
from shoal.ui.documents import newest_answered, verdict_document
from shoal.ui.rollouts import NotShown, RolloutFiles, sample_documents
from shoal.ui.watch import Seen

PAUSE_SECONDS = 60.0
"""Between two choices: a file is read whole for three answers of it."""


class NewestAnswers:
    """May be asked from any thread. While one reads a file the others get the answers before it: none waits."""

    def __init__(self, files: RolloutFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._facts: StoreFacts | None = None
        self._next = 0.0
        self._document: dict[str, Any] = {"verdict": None, "samples": [], "problem": ""}

    def document(self, seen: Seen) -> dict[str, Any]:
        """`verdict` (None: no file is accepted yet), `samples`, and in words why there are none. Raises `storage.StoreUnavailable`."""
        if self._lock.acquire(blocking=False):
            try:
                if seen.facts is not self._facts and self._clock() >= self._next:
                    self._choose(seen)
            finally:
                self._lock.release()
        return self._document

    def _choose(self, seen: Seen) -> None:
        verdict = newest_answered(seen)
        if verdict is not None:
            unix = seen.facts.verdict_unix.get(keys.verdict(verdict.node, verdict.sha256))
            samples, problem = list[dict[str, Any]](), ""
            try:
                parsed = self._files.open(verdict, keep=False)
                samples = sample_documents(parsed, verdict, self._files.text(), seen.vine)
            except NotShown as error:
                problem = str(error)
            told = verdict_document(verdict, unix, seen.vine)
            self._document = {"verdict": told, "samples": samples, "problem": problem}
            self._next = self._clock() + PAUSE_SECONDS
        self._facts = seen.facts
