"""The roster: which trusted role of a run holds which key, and which keys it and the run itself held before (ADR 0077).

The run key signs the roster. Every process knows a public key of the run from its configuration, and believes a role's key only through the roster.
The identity of a run is its first run key, whatever key signs by now: a roster carries the whole succession, so that it is checked with nothing else.
A list of a hundred changes is about 50 kB, and one check of it takes 20 ms.
"""

import hashlib
from typing import Literal, get_args

from pydantic import Field

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex, SignatureHex, unset
from shoal.contracts.signed import BadSignature, Signed

Role = Literal["orchestrator", "discovery", "trainer", "relay", "validator"]
ROLES: tuple[Role, ...] = get_args(Role)
KeyHolder = Literal["run", "orchestrator", "discovery", "trainer", "relay", "validator"]
HOLDERS: tuple[KeyHolder, ...] = get_args(KeyHolder)

MOST_CHANGES = 100
"""Changes of all keys of a run together: an entry of the ledger holds them all, and has at most 64 KiB."""


class KeyChange(Contract):
    """One key took the place of another. The old key signs it, and where the key of a role leaked, the new one."""

    run: RunName
    role: KeyHolder
    old: NodeId
    new: NodeId
    unix: float = Field(ge=0.0, description="when the new key began to hold")
    leaked: bool = Field(default=False, description="the old key is believed no more, about nothing that comes later")
    next_run_key: Sha256Hex | None = Field(
        default=None, exclude_if=unset, description="of a run key's change: digest of the key after the new one"
    )


class Roster(Contract):
    """The public key of every trusted role of a run; signed by the run key (see `canonical.Signed`)."""

    run: str
    keys: dict[Role, NodeId]
    changes: list[Signed[KeyChange]] = Field(
        default_factory=list, max_length=MOST_CHANGES, exclude_if=unset, description="oldest first; absent: none"
    )
    next_run_key: Sha256Hex | None = Field(
        default=None,
        exclude_if=unset,
        description="digest of the run key after the first; whoever has only the first cannot replace it. Absent in runs of 0.2.0",
    )

    first_signature: SignatureHex | None = Field(
        default=None, exclude_if=unset, description="of the first roster, so that it can be made again; absent in it"
    )

    @property
    def generation(self) -> int:
        """1 for the first roster of a run; every change of a key adds one."""
        return 1 + len(self.changes)

    @property
    def own_validator_keys(self) -> bool:
        """Whether every validator signs with a key of its own. Those of a run of 0.2.0 share one until its first change."""
        return self.next_run_key is not None or bool(self.changes)

    def role_of(self, key: str) -> Role | None:
        """The role that holds `key`, or None for a stranger's."""
        return next((role for role, held in self.keys.items() if held == key), None)

    def changes_of(self, holder: KeyHolder) -> list[KeyChange]:
        """The changes of one key, oldest first."""
        return [each.document for each in self.changes if each.document.role == holder]

    def keys_of(self, role: Role) -> list[str]:
        """Every key that a role ever held, oldest first."""
        return [*(change.old for change in self.changes_of(role)), self.keys[role]]

    def former(self, role: Role) -> dict[str, KeyChange]:
        """How each earlier key of a role ended."""
        return {change.old: change for change in self.changes_of(role)}

    def run_keys(self, signer: str) -> list[str]:
        """Every run key, oldest first; `signer` signed this roster."""
        changes = self.changes_of("run")
        return [*(change.old for change in changes), changes[-1].new if changes else signer]

    def first_keys(self) -> dict[Role, str]:
        """The key with which each role began."""
        return {role: self.keys_of(role)[0] for role in self.keys}


def first_roster(signed: Signed[Roster]) -> Signed[Roster]:
    """The roster with which a run began: what it is compared by where a change of keys is no reason to begin again."""
    roster = signed.document
    if roster.first_signature is None:
        return signed
    first = Roster(run=roster.run, keys=roster.first_keys(), next_run_key=roster.next_run_key)
    return Signed[Roster](document=first, signer=roster.run_keys(signed.signer)[0], signature=roster.first_signature)


def key_digest(key: str) -> str:
    """SHA-256, in hex, of a public key: what a roster says of the next run key, so that nobody learns the key itself before it is used."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()


def verified_roster(signed: Signed[Roster], run_key: str) -> Roster:
    """The roster, if it follows from `run_key`, which is any run key that the run had; raises `BadSignature` saying what does not fit."""
    roster = signed.document
    keys = roster.run_keys(signed.signer)
    if run_key not in keys:
        raise BadSignature(
            f"Roster is signed by {signed.signer[:12]}..., and no change of the run key leads there from {run_key[:12]}..."
        )
    signed.verified(keys[-1])
    if roster.first_signature is not None and not roster.changes:
        raise BadSignature("Roster has first_signature and no change of a key; the first roster of a run has neither")
    _check_changes(roster, keys[0])
    return roster


def _check_changes(roster: Roster, first_run_key: str) -> None:
    """Whether every change follows from the one before, and is signed by whom it takes."""
    holds: dict[KeyHolder, str] = {"run": first_run_key}
    holds.update((role, key) for role, key in roster.first_keys().items())
    used = set(holds.values())
    expected, last_unix = roster.next_run_key, 0.0
    for number, signed in enumerate(roster.changes, 1):
        change, where = signed.document, f"Roster: change {number} ({signed.document.role})"
        if change.run != roster.run:
            raise BadSignature(f"{where} is of run {change.run!r}, the roster of {roster.run!r}")
        if holds.get(change.role) != change.old:
            raise BadSignature(f"{where} replaces {change.old[:12]}..., which is not the key before it")
        if change.new in used:
            raise BadSignature(f"{where} brings {change.new[:12]}..., which was a key of this run before")
        if change.unix < last_unix:
            raise BadSignature(f"{where} is older than the one before it")
        if change.role == "run":
            if expected is not None and key_digest(change.new) != expected:
                raise BadSignature(f"{where} brings another key than the one that was fixed before")
            expected = change.next_run_key
        elif change.next_run_key is not None:
            raise BadSignature(f"{where} fixes a run key, which only a change of the run key does")
        by_new = change.leaked and change.role != "run"
        signed.verified(change.new if by_new else change.old)
        holds[change.role], last_unix = change.new, change.unix
        used.add(change.new)
    for role, key in roster.keys.items():
        if holds[role] != key:
            raise BadSignature(f"Roster gives the {role} key {key[:12]}..., its changes lead to {holds[role][:12]}...")


def next_run_key(roster: Roster) -> str | None:
    """Digest of the key that the next change of the run key must bring; None: any."""
    changes = roster.changes_of("run")
    return changes[-1].next_run_key if changes else roster.next_run_key


def is_newer(offered: Roster, held: Roster) -> bool:
    """Whether a verified roster takes the place of one that is held. Raises `BadSignature` for one that contradicts it.

    An earlier roster is not newer, whoever sends it again. Among rosters of one run key the longer history is newer. A change of the run key outranks
    whatever else the key before it signed: whoever found that key can sign changes, and the key that was fixed before ends them.
    """
    if offered == held:
        return False
    if offered.run != held.run or offered.first_keys() != held.first_keys():
        raise BadSignature("Roster begins with other keys than the one that is held: two rosters of one run")
    if held.next_run_key is not None and offered.next_run_key != held.next_run_key:
        raise BadSignature("Roster fixes another run key than the one that is held")
    epochs = len(offered.changes_of("run")), len(held.changes_of("run"))
    if epochs[0] < epochs[1]:
        return False
    if epochs[0] == epochs[1]:
        common = min(len(offered.changes), len(held.changes))
        if offered.changes[:common] != held.changes[:common]:
            raise BadSignature("Roster has other changes than the one that is held: the run key signed two histories")
        return len(offered.changes) > len(held.changes)
    until = max((n for n, each in enumerate(held.changes, 1) if each.document.role == "run"), default=0)
    if offered.changes[:until] != held.changes[:until]:
        raise BadSignature("Roster has another succession of run keys than the one that is held")
    first = next(each.document for each in offered.changes[until:] if each.document.role == "run")
    fixed = next_run_key(held)
    if fixed is not None and key_digest(first.new) != fixed:
        raise BadSignature("Roster brings another run key than the one that was fixed before")
    return True
