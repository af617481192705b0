"""Changes of keys for tests: a run whose keys follow each other as the operator makes them."""

from dataclasses import dataclass, field
from typing import Any

from shoal.contracts.roster import ROLES, KeyChange, KeyHolder, Roster, first_roster, key_digest
from shoal.contracts.signed import Signed, sign
from shoal.crypto.keys import PrivateKey


@dataclass
class RunKeys:
    """The private keys of a run, and its newest roster. `fixed`: the run key after the one that holds; None: none was fixed, as in 0.2.0."""

    run: str
    run_key: PrivateKey
    roles: dict[Any, PrivateKey]
    fixed: PrivateKey | None = None
    roster: Signed[Roster] = field(init=False)
    former: dict[KeyHolder, list[PrivateKey]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = {role: self.roles[role].public for role in ROLES}
        fixed = key_digest(self.fixed.public) if self.fixed is not None else None
        self.roster = sign(Roster(run=self.run, keys=keys, next_run_key=fixed), self.run_key)

    def change(
        self,
        holder: KeyHolder,
        unix: float,
        *,
        leaked: bool = False,
        new: PrivateKey | None = None,
        after: PrivateKey | None = None,
    ) -> Signed[Roster]:
        """Replace a key; returns the new roster."""
        roster, old = self.roster.document, self.run_key if holder == "run" else self.roles[holder]
        fields: dict[str, Any] = {"run": self.run, "role": holder, "old": old.public, "unix": unix, "leaked": leaked}
        if holder == "run":
            new = new or self.fixed or PrivateKey.generate()
            self.fixed = after or PrivateKey.generate()
            self.run_key = new
            change = KeyChange(**fields, new=new.public, next_run_key=key_digest(self.fixed.public))
            signed = sign(change, old)
        else:
            new = new or PrivateKey.generate()
            self.roles[holder] = new
            signed = sign(KeyChange(**fields, new=new.public), new if leaked else old)
        self.former.setdefault(holder, []).append(old)
        made = roster.model_copy(
            update={
                "keys": {role: self.roles[role].public for role in ROLES},
                "changes": [*roster.changes, signed],
                "first_signature": first_roster(self.roster).signature,
            }
        )
        self.roster = sign(made, self.run_key)
        return self.roster
