"""A pool of programs for a process that is in a sandbox itself: its parent runs them, in the pool of its own. Made by `pool.shared_pool`."""

import json
from collections.abc import Iterator, Sequence

from shoal.rewards.parent import CALL_BYTES, ParentLine, ParentRefused
from shoal.rewards.sandbox.documents import outcome_of, request_of
from shoal.rewards.sandbox.program import Outcome, Program, SandboxFailed

AT_ONCE = 4
"""Programs in one call back. The parent runs as many at once as it has slots for."""


class AskedPool:
    """Programs over the line to the parent. `run` and `run_all` as of any pool."""

    slots = AT_ONCE

    def __init__(self, line: ParentLine) -> None:
        self._line = line

    def run(self, program: Program) -> Outcome:
        """The outcome. SandboxFailed also when the parent refuses the program."""
        return self.run_all([program])[0]

    def run_all(self, programs: Sequence[Program]) -> list[Outcome]:
        """Outcomes in the order of the programs."""
        try:
            return [
                outcome_of(document.encode())
                for some in _parts([request_of(program).decode() for program in programs])
                for document in self._line.ask({"run": some})
            ]
        except ParentRefused as error:
            raise SandboxFailed(str(error)) from None

    def close(self) -> None:
        """Nothing is open."""


def _parts(documents: list[str]) -> Iterator[list[str]]:
    """At most `AT_ONCE`, and one where several might be too long for a call back."""
    few = AT_ONCE if sum(len(json.dumps(each)) for each in documents) < CALL_BYTES // 2 else 1
    for first in range(0, len(documents), few):
        yield documents[first : first + few]
