"""Why an island believes a state: the signatures of those who stood in the round that made it.

In: agreements of rounds and their signatures. Out: whether they vouch for a state, and the shortest chain that does. A link is believed when more
than half of its members signed it; among them are at least half of the members of the link before; the first link is held against all islands of the
run. So islands may die one after the other down to the last, whose rounds are believed. No island alone, where three or more were there, can
make up a state. Pure; called by `head` and `island`.
"""

from collections.abc import Collection, Mapping, Sequence

from jaxtyping import UInt8
from pydantic import ValidationError
from torch import Tensor

from shoal.contracts.islands import MAX_LINKS, CertificateLink, IslandAgreement
from shoal.contracts.signed import BadSignature, Signed
from shoal.islands.contributions import unpadded

VOTE_BYTES = 4096
"""A signed agreement of sixteen islands with the longest names takes about 1,900 bytes."""
Certificate = Sequence[CertificateLink]


class BadCertificate(ValueError):
    """A certificate that vouches for nothing; the message says why."""


def enough(there: Collection[str], before: Collection[str]) -> bool:
    """Whether at least half of the previous members are there."""
    return 2 * len(set(there) & set(before)) >= len(set(before))


def most(some: Collection[str], members: Collection[str]) -> bool:
    return 2 * len(some) > len(members)


def check(certificate: Certificate, run: str, number: int, digest: str, known: Mapping[str, str]) -> None:
    """Raise BadCertificate unless it vouches for the state `digest` of round `number`."""
    if not certificate:
        raise BadCertificate("no island signed the state")
    before: Collection[str] = known.keys()
    newest = 0
    for link in certificate:
        agreement = link.agreement
        if agreement.run != run or agreement.round <= newest:
            raise BadCertificate(f"a link is of run {agreement.run}, round {agreement.round} after {newest}")
        _check_signatures(link, known)
        if not most(link.signatures, agreement.members):
            raise BadCertificate(f"{len(link.signatures)} of {len(agreement.members)} signed round {agreement.round}")
        if not enough(link.signatures, before):
            raise BadCertificate(f"too few of the {len(before)} previous members signed round {agreement.round}")
        before, newest = agreement.members, agreement.round
    if (newest, certificate[-1].agreement.digest) != (number, digest):
        raise BadCertificate("it signs another state")


def _check_signatures(link: CertificateLink, known: Mapping[str, str]) -> None:
    agreement = link.agreement
    if agreement.members != sorted(set(agreement.members)) or not known.keys() >= set(agreement.members):
        raise BadCertificate("its members are not islands of this run, without repeats and in ascending order")
    for island, signature in link.signatures.items():
        if island not in agreement.members:
            raise BadCertificate(f"{island} signed but did not take part")
        try:
            Signed[IslandAgreement](document=agreement, signer=known[island], signature=signature).verified(
                known[island]
            )
        except BadSignature as error:
            raise BadCertificate(f"{island}: {error}") from error


def extended(certificate: Certificate, link: CertificateLink, known: Collection[str]) -> list[CertificateLink] | None:
    """The shortest chain that ends with `link`; None when too few of the previous members signed it, or it has become too long."""
    for length in range(min(len(certificate), MAX_LINKS - 1) + 1):
        before = certificate[length - 1].agreement.members if length else known
        if enough(link.signatures, before):
            return [*certificate[:length], link]
    return None


def count_votes(
    mine: IslandAgreement, votes: Sequence[UInt8[Tensor, " bytes"]], known: Mapping[str, str]
) -> tuple[CertificateLink | None, dict[str, str]]:
    """The link that the votes make, None when not most members voted for `mine`; and why others' votes are not for it, by island."""
    signatures: dict[str, str] = {}
    against: dict[str, str] = {}
    for island, vote in zip(mine.members, votes, strict=True):
        try:
            signed = Signed[IslandAgreement].from_json(unpadded(vote))
            document = signed.verified(known[island])
        except (ValidationError, BadSignature, ValueError) as error:
            against[island] = f"no vote: {type(error).__name__}"
            continue
        if document == mine:
            signatures[island] = signed.signature
        else:
            against[island] = "reached another state"
    if not most(signatures, mine.members):
        return None, against
    return CertificateLink(agreement=mine, signatures=signatures), against
