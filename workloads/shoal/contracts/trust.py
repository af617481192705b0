"""Whom a process believes by now: the newest roster that it was shown, and what earlier keys are still believed about (ADR 0077).

Comes in: the roster of the configuration, then any that somebody sends (`TrustedKeys.adopt`). Goes out: `RoleKeys`, which `Signed.verified` takes in
the place of one key. A leaked key is believed about nothing new at once. What it signed before is believed as far as the ledger holds it: versions of
the weights by their digest, verdicts by their step (`PastWork`, which the orchestrator signs). So no weights travel again after a change.
"""

import threading
import time
from collections.abc import Callable

from pydantic import Field

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset
from shoal.contracts.roster import Role, Roster, is_newer, verified_roster
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.verdicts import ValidatorCard, Verdict
from shoal.contracts.weights import ShardDescriptor, VersionNumber, VersionOpen, WeightsManifest

OVERLAP_SECONDS = 600.0
"""After a planned change the old key is believed about new work for this long: pods with it hand in what they have, and a version that is being
published is finished. A leaked key has no such time."""


class PastWork(Contract):
    """What the ledger holds that earlier keys signed, by the orchestrator. 110 bytes a version."""

    run: RunName
    versions: dict[VersionNumber, Sha256Hex] = Field(
        max_length=1_000_000, description="`WeightsManifest.sha256` of every version in the ledger"
    )
    step: int | None = Field(
        default=None, ge=0, exclude_if=unset, description="the last training step or slice with an accepted file"
    )

    def holds(self, other: "PastWork") -> bool:
        """Whether this says all that `other` says, with the same digests. A ledger only grows: what holds less is older."""
        return (
            self.run == other.run
            and other.versions.items() <= self.versions.items()
            and (other.step is None or (self.step is not None and self.step >= other.step))
        )


class KeysNotice(Contract):
    """`GET /v1/keys` at orchestrator and discovery. It proves itself: it may come from anybody."""

    roster: Signed[Roster]
    past: Signed[PastWork] | None = Field(default=None, description="None: no key was changed, or discovery answers")


class TrustedKeys:
    """The keys of one run as one process knows them. Safe to use from several threads."""

    def __init__(self, signed: Signed[Roster], run_key: str, clock: Callable[[], float] = time.time) -> None:
        """Raises `BadSignature` when the roster does not follow from `run_key`."""
        self.run_key = run_key
        self.clock = clock
        self._lock = threading.Lock()
        self._roster = verified_roster(signed, run_key)
        self._signed = signed
        self._past: Signed[PastWork] | None = None

    @property
    def roster(self) -> Roster:
        """The newest that was shown."""
        return self._roster

    @property
    def notice(self) -> KeysNotice:
        """All of it, for somebody else."""
        with self._lock:
            return KeysNotice(roster=self._signed, past=self._past)

    @property
    def past(self) -> PastWork | None:
        """What earlier keys are believed about, if anybody said so."""
        return self._past.document if self._past is not None else None

    def adopt(self, signed: Signed[Roster]) -> bool:
        """Take a roster if it is newer; an old one changes nothing. Raises `BadSignature` for one that is forged or contradicts ours."""
        with self._lock:
            if signed == self._signed:
                return False
            offered = verified_roster(signed, self._roster.run_keys(self._signed.signer)[0])
            if not is_newer(offered, self._roster):
                return False
            self._roster, self._signed = offered, signed
            return True

    def take(self, notice: KeysNotice) -> bool:
        """Take a notice: its roster if it is newer, and what the orchestrator of the newest roster says of the past.

        A past that holds less than what is known is an older one, and changes nothing. Raises as `adopt` does.
        """
        newer = self.adopt(notice.roster)
        if notice.past is not None and notice.past != self._past and notice.roster == self._signed:
            past = notice.past.verified(self.roster.keys["orchestrator"])
            if past.run != self.roster.run:
                raise BadSignature(f"PastWork is of run {past.run!r}, this is {self.roster.run!r}")
            with self._lock:
                # What another key signed counts no more: the key before may have leaked, and have claimed what is not so.
                if self._past is None or self._past.signer != notice.past.signer or past.holds(self._past.document):
                    self._past = notice.past
        return newer

    def of(self, role: Role) -> "RoleKeys":
        """The keys of a role, now and after every change."""
        return RoleKeys(self, role)

    def role_of(self, key: str) -> Role | None:
        """The role that a key may act for now, or None: a stranger's, or one that ended."""
        roster, now = self._roster, self.clock()
        if (role := roster.role_of(key)) is not None:
            return role
        for signed in reversed(roster.changes):
            change = signed.document
            if change.old == key and change.role != "run":
                live = not change.leaked and now < change.unix + OVERLAP_SECONDS
                return change.role if live else None
        return None


class RoleKeys:
    """The keys of one role as signers of documents."""

    def __init__(self, keys: TrustedKeys, role: Role) -> None:
        self._keys = keys
        self._role: Role = role

    @property
    def current(self) -> str:
        """The key that the role holds."""
        return self._keys.roster.keys[self._role]

    def acting(self) -> list[str]:
        """Keys that may act for the role now, the current one first."""
        held = reversed(self._keys.roster.keys_of(self._role))
        return [key for key in held if self._keys.role_of(key) == self._role]

    def ever_held(self, key: str) -> bool:
        """Whether the role holds this key or held it before."""
        return key in self._keys.roster.keys_of(self._role)

    def is_void(self, sealed: Signed[WeightsManifest]) -> bool:
        """Whether an earlier key sealed a version that the ledger does not have: nobody may use it, and its number will be sealed again."""
        known = self._keys.past is not None and self.ever_held(sealed.signer)
        return known and bool(self.refusal(sealed.signer, sealed.document))

    def refusal(self, signer: str, document: Contract) -> str:
        """See `Signers`: what a former key signed is believed as far as the ledger holds it."""
        problem, signer = role_signer(document, signer)
        if problem:
            return problem
        roster = self._keys.roster
        if signer == roster.keys[self._role] or self._keys.role_of(signer) == self._role:
            return ""
        change = roster.former(self._role).get(signer)
        if change is None:
            return f"required: {self.current[:12]}..., the {self._role}'s key"
        ended = "leaked" if change.leaked else "was replaced"
        return "" if self._is_past(document, leaked=change.leaked) else f"this key of the {self._role} {ended}"

    def _is_past(self, document: Contract, *, leaked: bool) -> bool:
        past = self._keys.past
        match document:
            case Verdict():
                return not leaked or (past is not None and past.step is not None and document.step <= past.step)
            case WeightsManifest():
                return past is not None and past.versions.get(document.version) == document.sha256
            case VersionOpen() | ShardDescriptor():  # their bytes are held to the manifest in the end
                return past is not None and document.version in past.versions
        return False


def ever_held(signer: Signer, key: str) -> bool:
    """Whether a key is, or was at some time, one of these."""
    return key == signer if isinstance(signer, str) else isinstance(signer, RoleKeys) and signer.ever_held(key)


class HeldKeys:
    """Every key that a role ever held, for readers of an audited ledger: they take no document but those whose digests its entries have."""

    def __init__(self, roster: Roster, role: Role) -> None:
        self._role, self._keys = role, roster.keys_of(role)

    def refusal(self, signer: str, document: Contract) -> str:
        """See `Signers`."""
        problem, signer = role_signer(document, signer)
        if problem:
            return problem
        return (
            ""
            if signer in self._keys
            else f"required: a key that the {self._role} held, such as {self._keys[-1][:12]}..."
        )


def role_signer(document: Contract, signer: str) -> tuple[str, str]:
    """Which key of a role a document rests on: that of the verdict's card, else its signer. Before it, what is wrong with the card, or nothing.

    Whether that key is believed is another question.
    """
    if not isinstance(document, Verdict) or document.card is None:
        return "", signer
    card = document.card
    return _card_problem(card, document, signer), card.signer


def _card_problem(card: Signed[ValidatorCard], verdict: Verdict, signer: str) -> str:
    try:
        document = card.verified(card.signer)
    except BadSignature as error:
        return str(error)
    if document.key != signer:
        return f"its card is of key {document.key[:12]}..."
    if (document.run, document.validator) != (verdict.run, verdict.validator):
        return f"its card is of validator {document.validator!r} of run {document.run!r}"
    return ""
