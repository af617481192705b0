"""`spec.keys` and `status.keys` of a TrainingRun: which keys were replaced, and which are to be."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel
from shoal.contracts.roster import HOLDERS, MOST_CHANGES, KeyHolder
from shoal_operator.api.base import Time


class KeyWish(SpecModel):
    """How far one key of the run was replaced."""

    generation: int = Field(
        1,
        ge=1,
        le=MOST_CHANGES,
        description="Number of the key, 1 for the first. A number above that in status.keys replaces the key; a lower one changes nothing.",
    )
    leaked: bool = Field(
        False,
        description="Whether somebody else may have the replaced key. It is then refused at once; else it counts for ten more minutes.",
    )


class KeysSpec(SpecModel):
    """Which keys to replace. A run has 100 changes of keys at most."""

    run: KeyWish | None = Field(None, description="The run key, which signs whose the other keys are.")
    orchestrator: KeyWish | None = Field(None, description="The key that signs the ledger, invites and relay tokens.")
    discovery: KeyWish | None = Field(None, description="The key of discovery.")
    trainer: KeyWish | None = Field(None, description="The key that signs versions. The trainer starts again.")
    relay: KeyWish | None = Field(None, description="The key with which relays ask the origin.")
    validator: KeyWish | None = Field(None, description="The key that vouches for each validator's own key.")

    def wishes(self) -> dict[KeyHolder, KeyWish]:
        """What is asked for, by whose key."""
        found = {holder: getattr(self, holder) for holder in HOLDERS}
        return {holder: wish for holder, wish in found.items() if wish is not None}


class KeyStatus(SpecModel):
    """One key of the run."""

    name: Annotated[str, StringConstraints(max_length=64)] = Field(..., description="Whose key it is.")
    generation: int = Field(1, ge=1, description="Number of the key; each change adds one.")
    fingerprint: Annotated[str, StringConstraints(max_length=64)] = Field(
        ..., description="First 16 hex digits of the public key."
    )
    since: Time | None = Field(
        None, description="When it took the place of the one before, RFC 3339; absent: the first."
    )
    secrets_away: list[Annotated[str, StringConstraints(max_length=253)]] | None = Field(
        None,
        max_length=2,
        description="Secrets of the run key and the next one that are not in this namespace. The run goes on; put them back before a key is changed.",
    )


FINGERPRINT_DIGITS = 16
