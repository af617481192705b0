"""The roster: which trusted role of a run holds which key.

The run key signs one roster. Every process knows the run's public key from its configuration, and believes a role's key only through the roster.
"""

from typing import Literal, get_args

from shoal.contracts.base import Contract, NodeId

Role = Literal["orchestrator", "discovery", "trainer", "relay", "validator"]


ROLES: tuple[Role, ...] = get_args(Role)


class Roster(Contract):
    """The public key of every trusted role of a run; signed by the run key (see `canonical.Signed`)."""

    run: str
    keys: dict[Role, NodeId]

    def role_of(self, key: str) -> Role | None:
        """The role that holds `key`, or None for a stranger's."""
        return next((role for role, held in self.keys.items() if held == key), None)
