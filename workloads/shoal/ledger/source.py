"""A ledger to be read: where it is, and whose key to believe. `report.ledger_sources` opens one from what a person typed."""

from dataclasses import dataclass

from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed
from shoal.storage import Store


@dataclass(frozen=True)
class Trust:
    """The run's public key, the roster that it must have signed, and what the key was taken from, in words."""

    run_key: str
    roster: Signed[Roster]
    origin: str
    given: bool


@dataclass(frozen=True)
class LedgerSource:
    """A ledger to be read. `slash_votes`: validators that had to agree on a reject as the reader asks for, whatever the ledger says;
    `configured_votes`: the same as a configuration of the run has it, where there is one.
    """

    store: Store
    trust: Trust
    slash_votes: int | None = None
    configured_votes: int | None = None
