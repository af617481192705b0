"""Which of the states that islands announce is the shared one. Those that have another copy it before they take part.

In: notices of the islands that met. Out: the head, the same for all who saw the same notices. A state that nobody vouches for is never the head
(`certificate`), whatever its island says. Pure; called by `island`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.contracts.islands import MAX_COUNT, CertificateLink, IslandNotice
from shoal.islands.certificate import BadCertificate, check

WITNESSES = 2
"""Signatures that one island alone cannot have."""


class NoHead(ValueError):
    """No announced state is vouched for."""


@dataclass(frozen=True)
class Head:
    """The shared state of a round: `holders` have it, `joiners` copy it. Both by name, ascending. `before` are the islands of which at least half
    must stand in the next round, `refused` those whom most holders would not meet again so soon, and `ahead` those that have trained where the
    head is the base: they do not copy it, so that nothing trained ever gives way to the untrained model."""

    round: int
    digest: str
    holders: list[str]
    joiners: list[str]
    certificate: list[CertificateLink] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)

    @property
    def members(self) -> list[str]:
        """Who stands in the round, ascending."""
        return sorted([*self.holders, *self.joiners])

    def source_of(self, joiner: str) -> str:
        """Who sends the state to a joiner: the holders take turns."""
        return self.holders[self.joiners.index(joiner) % len(self.holders)]


def head_of(notices: Sequence[IslandNotice], run: str, known: Mapping[str, str], base: str) -> Head:
    """The head among islands with distinct names. `known` are all islands' keys by name, `base` the digest of the state of round 0. Raises NoHead.

    Only what a certificate vouches for is a candidate, and the base where nobody has more. Whatever is older than a round that two signed, and that
    somebody's state descends from, is passed over. So no number of islands takes all back to an old state or to one begun again. Of the rest,
    islands that have stood in a round since they started (`live`) are asked. The others are asked only where there is none: so any number of
    restarted ones does not outvote a survivor. A state that more than half of those asked have is the head, else the newest (ties: more
    signatures, then the smaller digest).
    """
    candidates = [notice for notice in notices if vouched(notice, run, known, base)]
    if not candidates:
        raise NoHead("no island that took part has a state that most islands of its round signed")
    witnessed = max(1, *(_witnessed(one) for one in candidates))
    recent = [one for one in candidates if one.round >= witnessed] or candidates
    asked = [one for one in recent if one.live] or recent
    states = Counter((one.round, one.digest) for one in asked)
    chosen = [state for state, count in states.items() if 2 * count > len(asked)]
    newest = max(asked, key=lambda one: (one.round, _signatures(one), [-ord(letter) for letter in one.digest]))
    state = chosen[0] if chosen else (newest.round, newest.digest)
    having = sorted((one for one in candidates if (one.round, one.digest) == state), key=lambda one: one.island)
    holders = [one.island for one in having]
    refused = sorted(
        name
        for name in {one.island for one in notices} - set(holders)
        if 2 * sum(name in one.refuses for one in having) > len(having)
    )
    ahead = sorted(one.island for one in notices if one.round > state[0] == 0)
    joiners = sorted({one.island for one in notices} - set(holders) - set(refused) - set(ahead))
    certificate = having[0].certificate
    before = certificate[-1].agreement.members if certificate else sorted(known)
    return Head(*state, holders, joiners, certificate, before, refused, ahead)


def vouched(notice: IslandNotice, run: str, known: Mapping[str, str], base: str) -> bool:
    """Whether others believe the state of a notice: it is the base, or its certificate holds under the keys of `known`."""
    if notice.round == 0:
        return notice.digest == base
    if notice.round >= MAX_COUNT:
        return False  # no round could follow it
    try:
        check(notice.certificate, run, notice.round, notice.digest, known)
    except BadCertificate:
        return False
    return True


def _witnessed(notice: IslandNotice) -> int:
    """The newest round that two islands signed, of those that the state descends from; 0 where there is none."""
    links = notice.certificate
    return max((one.agreement.round for one in links if len(one.signatures) >= WITNESSES), default=0)


def _signatures(notice: IslandNotice) -> int:
    return len(notice.certificate[-1].signatures) if notice.certificate else 0
