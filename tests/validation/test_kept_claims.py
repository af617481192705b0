"""A claim is kept while its file is judged, by a judgement that makes progress; one that is for nothing ends."""

import threading
from collections.abc import Callable
from typing import cast

import pytest
from court import JOB

from shoal.contracts.problems import TYPE_PREFIX, ProblemCode, ProblemDocument
from shoal.contracts.protocol import ClaimRenewal
from shoal.environments.scored_once import ProgramTime
from shoal.telemetry import Liveness
from shoal.transport.client import Refused, SignedClient, Unavailable
from shoal.validation.claims import ClaimLostError, KeptClaim

Deadline = Callable[..., object]


def refused(status: int, code: str = "", detail: str = "") -> Refused:
    kind = TYPE_PREFIX + code if code else "about:blank"
    return Refused(ProblemDocument(type=kind, title="No", status=status, detail=detail))


class Asked:
    """Stands where the orchestrator is called: takes renewals, or answers as told."""

    def __init__(self) -> None:
        self.renewals: list[ClaimRenewal] = []
        self.answer: Exception | None = None
        self.came = threading.Event()

    def call(self, method: str, path: str, body: ClaimRenewal, **_: float) -> None:
        assert (method, path) == ("POST", "/v1/claim-renewals")
        self.renewals.append(body)
        self.came.set()
        if self.answer is not None:
            raise self.answer


def kept(asked: Asked, liveness: Liveness) -> KeptClaim:
    return KeptClaim(cast(SignedClient, asked), JOB, "validator-0", 0.15, liveness)


def test_a_claim_is_renewed_until_the_judgement_ends_and_not_after(deadline: Deadline) -> None:
    asked = Asked()
    with kept(asked, Liveness(60)) as claim:
        deadline("three renewals", lambda: len(asked.renewals) >= 3, seconds=30)
        claim.progress()
    count = len(asked.renewals)
    assert asked.renewals[0] == ClaimRenewal(validator="validator-0", node=JOB.node, sha256=JOB.sha256)
    asked.came.clear()
    assert not asked.came.wait(0.5)
    assert len(asked.renewals) == count


def test_a_renewal_tells_what_programs_took_so_far(deadline: Deadline) -> None:
    asked, programs = Asked(), ProgramTime()
    programs.spent = 2.5
    with KeptClaim(cast(SignedClient, asked), JOB, "validator-0", 0.15, Liveness(60), programs):
        deadline("a renewal", lambda: bool(asked.renewals), seconds=30)
    assert asked.renewals[0].program_seconds == 2.5


def test_a_judgement_without_progress_keeps_nothing() -> None:
    asked = Asked()
    with kept(asked, Liveness(0.0)):
        assert not asked.came.wait(0.5)
    assert asked.renewals == []


def test_a_judgement_that_nobody_waits_for_ends_at_its_next_sign_of_progress(deadline: Deadline) -> None:
    asked = Asked()
    asked.answer = refused(409, ProblemCode.CLAIM_OVER, "another validator checks it, or will")
    with kept(asked, Liveness(60)) as claim:
        deadline("the refusal", lambda: claim.lost == "another validator checks it, or will", seconds=30)
        with pytest.raises(ClaimLostError, match="another validator checks it, or will"):
            claim.progress()


@pytest.mark.parametrize(
    "answer", [Unavailable("away"), refused(404), refused(409, ProblemCode.NOT_A_MEMBER), refused(503)]
)
def test_an_orchestrator_that_is_away_or_older_ends_no_judgement(answer: Exception, deadline: Deadline) -> None:
    asked = Asked()
    asked.answer = answer
    with kept(asked, Liveness(60)) as claim:
        deadline("a second try", lambda: len(asked.renewals) >= 2, seconds=30)
        claim.progress()
