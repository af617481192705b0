"""Keeping a claim while its file is judged, so that no second validator begins on a file whose check takes longer than `claim_seconds`.

In: the orchestrator, the job in hand, this process's liveness. Out: `lost`, once the orchestrator says that a verdict would be for nothing: the
file has one, another validator has the file, or its step was sealed. Called by `service`. A judgement that makes no progress keeps nothing.
"""

import threading
from types import TracebackType
from typing import Self

from shoal.contracts.problems import ProblemCode
from shoal.contracts.protocol import ClaimRenewal, ValidationJob
from shoal.environments.scored_once import ProgramTime
from shoal.telemetry import Liveness, get_logger
from shoal.transport.client import Refused, SignedClient, Unavailable

PARTS = 3
"""A claim is renewed when a third of it has passed: two renewals may be lost on the way."""
LONGEST_SECONDS = 60.0
"""Between two renewals, however long a claim is: a judgement that is for nothing ends after that."""

CALL_SECONDS = 5.0


class ClaimLostError(RuntimeError):
    """The file in hand needs no check any more."""


class KeptClaim:
    """One claim that is renewed from a thread of its own; a context."""

    def __init__(
        self,
        orchestrator: SignedClient,
        job: ValidationJob,
        validator: str,
        claim_seconds: float,
        liveness: Liveness,
        programs: ProgramTime | None = None,
    ) -> None:
        """`programs`: the CPU time of the file's programs, which renewals tell."""
        self._orchestrator = orchestrator
        self._renewal = ClaimRenewal(validator=validator, node=job.node, sha256=job.sha256)
        self._programs = programs or ProgramTime()
        self._every = min(claim_seconds / PARTS, LONGEST_SECONDS)
        self._liveness = liveness
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
        self.lost = ""
        """Why the file needs no check any more; empty while it does."""

    def progress(self) -> None:
        """To be called wherever the judgement makes progress; raises `ClaimLostError` once it is for nothing."""
        self._liveness.progress()
        if self.lost:
            raise ClaimLostError(self.lost)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(2 * CALL_SECONDS)  # a renewal under way has its deadline; none is to follow the verdict

    def _renew(self) -> None:
        patience = min(self._every, CALL_SECONDS)
        while not self._ended.wait(self._every) and self._liveness.alive():
            try:
                spent = round(self._programs.spent, 3)
                renewal = self._renewal.model_copy(update={"program_seconds": spent})
                self._orchestrator.call(
                    "POST", "/v1/claim-renewals", renewal, deadline_seconds=patience, timeout_seconds=patience
                )
            except Refused as refused:
                if refused.code == ProblemCode.CLAIM_OVER:
                    self.lost = refused.detail
                    return
                get_logger().warning("claim not renewed", reason=str(refused))
            except Unavailable as error:
                get_logger().warning("claim not renewed", reason=str(error))
