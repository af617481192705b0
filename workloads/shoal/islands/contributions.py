"""Contributions of a round as they travel, checked and summed: a signed header of fixed length, then the encoded vector.

In: headers and bytes as they came. Out: which of them count, the inner products of those that do, and their weighted sum. A contribution with a wrong
signature, another digest or bytes that no honest island makes is left out, with a reason; the others go on. Pure except for its log; called by
`island`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, UInt8
from pydantic import ValidationError
from torch import Tensor

from shoal.contracts.islands import ExchangeType, IslandContribution
from shoal.contracts.signed import BadSignature, Signed
from shoal.islands.encoding import BLOCK, BadPayload, decode, encode, encoded_size
from shoal.islands.outer import weighted_sum

HEADER_BYTES = 2048
"""A signed header takes about 700 bytes with the longest names."""
PART = 4096 * BLOCK
"""Values decoded at a time: a million of each island are 4 MB, whatever the model's size."""


@dataclass(frozen=True)
class Claim:
    """The values that a header must have to be accepted."""

    run: str
    meeting: str
    round: int
    rank: int


@dataclass(frozen=True)
class Received:
    """One island's contribution on one rank. `problem` says why it does not count; a joiner's has no problem and counts nothing."""

    island: str
    header: IslandContribution | None
    payload: UInt8[Tensor, " bytes"]
    problem: str | None = None

    @property
    def counts(self) -> bool:
        return self.problem is None and self.header is not None and self.header.contributes


def padded(data: bytes, size: int) -> UInt8[Tensor, " size"]:
    """Bytes with zeros behind them. Raises ValueError when they are too many."""
    if len(data) > size:
        raise ValueError(f"{len(data)} bytes; there is room for {size}")
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def unpadded(tensor: UInt8[Tensor, " size"]) -> bytes:
    return bytes(tensor.numpy()).rstrip(b"\0")


def payload_of(
    gradient: Float[Tensor, " values"] | None, count: int, kind: ExchangeType
) -> tuple[UInt8[Tensor, " bytes"], bool]:
    """The bytes of a vector, and whether they are to count: zeros where there is none, or one that is not finite."""
    if gradient is not None and bool(torch.isfinite(gradient).all()):
        return encode(gradient, kind), True
    return torch.zeros(encoded_size(count, kind), dtype=torch.uint8), False


def sha256(payload: UInt8[Tensor, " bytes"]) -> str:
    return hashlib.sha256(payload.numpy().data).hexdigest()


def receive(
    islands: Sequence[str],
    headers: Sequence[UInt8[Tensor, " header"]],
    payloads: Sequence[UInt8[Tensor, " bytes"]],
    claim: Claim,
    known: Mapping[str, str],
) -> list[Received]:
    """Check every header against what it has to say and its signer's key, and every payload against its header."""
    found = []
    for island, header, payload in zip(islands, headers, payloads, strict=True):
        try:
            document = _header(unpadded(header), island, claim, known)
        except (ValidationError, BadSignature, ValueError) as error:
            found.append(Received(island, None, payload, f"{type(error).__name__}: {str(error)[:200]}"))
            continue
        wrong = None if document.sha256 == sha256(payload) else "its bytes differ from those that it signed"
        found.append(Received(island, document, payload, wrong))
    return found


def _header(data: bytes, island: str, claim: Claim, known: Mapping[str, str]) -> IslandContribution:
    document = Signed[IslandContribution].from_json(data).verified(known[island])
    said = Claim(document.run, document.meeting, document.round, document.rank)
    if said != claim or document.island != island:
        raise ValueError(f"it was made for {said} by {document.island}, but not for this round")
    return document


def inner_products(
    received: Sequence[Received], count: int, kind: ExchangeType
) -> tuple[Float64[Tensor, "islands islands"], dict[str, str]]:
    """The Gram matrix of this rank's parts, zero for those that do not count; and what is wrong with bytes that do not decode, by island."""
    gram = torch.zeros(len(received), len(received), dtype=torch.float64)
    bad: dict[str, str] = {}
    for start in range(0, count, PART):
        rows = torch.zeros(len(received), min(PART, count - start), dtype=torch.float64)
        for row, one in zip(rows, received, strict=True):
            if not one.counts or one.island in bad:
                continue
            try:
                row.copy_(decode(one.payload, count, kind, start, start + PART))
            except BadPayload as error:
                bad[one.island] = str(error)
        gram += rows @ rows.T
    for index, one in enumerate(received):
        if one.island in bad:
            gram[index] = 0
            gram[:, index] = 0
    return gram, bad


def mean_of(
    received: Sequence[Received], coefficients: Mapping[str, float], count: int, kind: ExchangeType
) -> Float[Tensor, " values"]:
    """The weighted sum, in the order of the islands, accumulated in float32."""
    total = torch.empty(count, dtype=torch.float32)
    used = [(coefficients[one.island], one.payload) for one in received if coefficients.get(one.island, 0.0) > 0]
    for start in range(0, count, PART):
        part = total[start : start + PART]
        part.copy_(weighted_sum(((c, decode(p, count, kind, start, start + PART)) for c, p in used), len(part)))
    return total
