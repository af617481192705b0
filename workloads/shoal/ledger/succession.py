"""Who may sign which entry of a ledger, and which document that one names, as the keys of a run follow each other (ADR 0077). Pure.

Comes in: signed entries in order. Goes out: each entry, its signature checked, and from which entry on an earlier key is not believed. An entry
`keys-changed` brings the new roster, which the run key signed; the orchestrator of that roster signs the entry itself. So who holds an earlier key
continues no ledger beyond that entry. Used by the orchestrator, who writes the ledger, and by the audit. It costs one more look-up for each entry.
"""

from shoal.contracts.base import Contract
from shoal.contracts.roster import KeyChange, Role, Roster, is_newer, verified_roster
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.trust import OVERLAP_SECONDS, role_signer
from shoal.contracts.verdicts import Verdict
from shoal.ledger.entries import KeysChanged, LedgerCheckpoint, LedgerEntry


class Succession:
    """The keys along one ledger, from its first entry."""

    def __init__(self, given: Roster, run_key: str | None) -> None:
        """`given`: a verified roster of the run, the newest that is known; `run_key`: the first run key; None: no change is believed."""
        self._given = given
        self._run_key = run_key
        self._ended: dict[str, int] = {}
        """Key of any role -> number of the entry with which its change is in the ledger."""
        self.roster: Roster | None = None  # of the last entry that changed keys
        self.current = given.first_keys()["orchestrator"]

    def again(self) -> "Succession":
        """The same from the first entry."""
        return Succession(self._given, self._run_key)

    @property
    def newest(self) -> Roster:
        """The roster in force at the end of the ledger, as far as it is known."""
        return self.roster or self._given

    def check(self, signed: Signed[LedgerEntry]) -> LedgerEntry:
        """The next entry, if its signer may write it; it is taken in. Raises `BadSignature`."""
        return self.check_canonical(signed)[0]

    def check_canonical(self, signed: Signed[LedgerEntry]) -> tuple[LedgerEntry, bytes]:
        """The same, with the entry's canonical bytes."""
        entry = signed.document
        changed = self._new_roster(entry.fact) if isinstance(entry.fact, KeysChanged) else None
        _, canonical = signed.verified_canonical(self.current if changed is None else changed.keys["orchestrator"])
        if changed is not None:
            known = self.roster.changes if self.roster is not None else []
            for each in changed.changes:
                if each not in known:
                    self._ended.setdefault(each.document.old, entry.number)
            self.roster, self.current = changed, changed.keys["orchestrator"]
        return entry, canonical

    def is_orchestrator(self, key: str) -> bool:
        """Whether a key is or was the orchestrator's."""
        return key in {*self._given.keys_of("orchestrator"), *self.newest.keys_of("orchestrator")}

    def behind(self) -> str:
        """What the ledger lacks of the roster that was given, in words; empty when nothing."""
        held = self.roster
        try:
            if not self._given.changes or (held is not None and not is_newer(self._given, held)):
                return ""
        except BadSignature as error:
            return str(error)
        have = 0 if held is None else len(held.changes)
        return f"the roster has {len(self._given.changes)} changes of keys, the ledger {have}: its orchestrator has not recorded the newest"

    def believed(self, role: Role, entry: LedgerEntry) -> "KeysAt":
        """Who may have signed the document of a role that an entry names. To be asked when all entries were taken in."""
        return KeysAt(self.newest, self._ended, role, entry)

    def _new_roster(self, fact: KeysChanged) -> Roster:
        if self._run_key is None:
            raise BadSignature("Roster of another generation: the run's key is needed to believe it")
        changed = verified_roster(fact.keys, self._run_key)
        if changed.run != self._given.run or changed.first_keys() != self._given.first_keys():
            raise BadSignature("Roster begins with other keys than the run's")
        if self.roster is not None and not is_newer(changed, self.roster):
            raise BadSignature("Roster is not newer than that of an earlier entry")
        return changed


class KeysAt:
    """The keys of one role as signers of what one entry names: an earlier key is believed up to the entry that ended it, or some minutes longer if it
    did not leak."""

    def __init__(self, roster: Roster, ended: dict[str, int], role: Role, entry: LedgerEntry) -> None:
        self._roster = roster
        self._ended = ended
        self._role = role
        self._entry = entry

    def refusal(self, signer: str, document: Contract) -> str:
        """See `contracts.signed.Signers`."""
        problem, signer = role_signer(document, signer)
        if problem:
            return problem
        if isinstance(document, Verdict) and document.card is None and self._roster.next_run_key is not None:
            return "every validator of this run has a key of its own, and this verdict has no card of one"
        if signer == self._roster.keys[self._role]:
            return ""
        change = self._roster.former(self._role).get(signer)
        if change is None:
            return f"required: {self._roster.keys[self._role][:12]}..., the {self._role}'s key"
        return (
            "" if self._still_believed(change) else f"entry {self._ended[signer]} replaced this key of the {self._role}"
        )

    def _still_believed(self, change: KeyChange) -> bool:
        end = self._ended.get(change.old)
        if end is None or self._entry.number < end:
            return True
        return not change.leaked and self._entry.unix <= change.unix + OVERLAP_SECONDS


def checkpoint_signer_problem(signed: Signed[LedgerCheckpoint], roster: Roster) -> str | None:
    """Why a checkpoint that stands alone is not believed by the key that signed it, or None. Beside a whole ledger its root says more."""
    change = roster.former("orchestrator").get(signed.signer)
    if change is None:
        return None
    if change.leaked:
        return "its key leaked: take a proof under a newer checkpoint"
    if signed.document.unix > change.unix + OVERLAP_SECONDS:
        return "its key was replaced before: take a proof under a newer checkpoint"
    return None
