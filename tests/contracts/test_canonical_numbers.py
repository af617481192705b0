"""Numbers of signed documents: whatever a contract lets through has a canonical form, and what has none was signed by nobody."""

import pytest
from pydantic import ValidationError

from samples import INVITE, NODE_KEY, ORCHESTRATOR_KEY, RUN
from shoal.contracts.protocol import Hardware, Invite, Registration
from shoal.contracts.signed import BadSignature, Signed
from shoal.crypto.canonical import document_digest

NUMBERS = [
    (name, kind["maximum"])  # a number without a bound is a KeyError here
    for name, field in Hardware.model_json_schema()["properties"].items()
    for kind in field.get("anyOf", [field])
    if kind["type"] in ("integer", "number")
]
"""Of a registration: the largest that its contract takes, as the contract's own schema has it."""


@pytest.mark.parametrize(("name", "largest"), NUMBERS, ids=str)
def test_whatever_a_machine_may_say_of_itself_has_a_digest(name: str, largest: float) -> None:
    def of(value: float) -> Registration:
        hardware = {"cpus": 1, "memory_bytes": 1, "disk_free_bytes": 1, name: value}
        return Registration.model_validate(
            {"node": NODE_KEY.public, "run": RUN, "pool": "pool", "software_version": "x", "hardware": hardware}
        )

    assert Registration.from_json(of(largest).to_json()) == of(largest)
    assert len(document_digest(of(largest))) == 64
    with pytest.raises(ValidationError, match=name):
        of(largest + 1)


def test_a_document_without_a_canonical_form_is_signed_by_nobody() -> None:
    invite = INVITE.model_dump() | {"expires_unix": 1 << 60}
    signed = Signed[Invite].model_validate(
        {"document": invite, "signer": ORCHESTRATOR_KEY.public, "signature": "0" * 128}
    )
    with pytest.raises(BadSignature, match="Invite has no canonical form"):
        signed.verified(ORCHESTRATOR_KEY.public)
