"""One island's side of DiLoCo: every `inner_steps` updates it exchanges what it learnt with the others, and all make the same outer step.

In: a trainer's parameters, changed by its own optimizer between two rounds. Out: the parameters of the shared state, the same bits on every
island that stood in the round. A round is one meeting: whoever lacks the shared state copies it from a holder and contributes nothing; then
everybody's signed vector goes to everybody, is judged, and the outer step is made when all agree on what they make it from. Whatever fails on the
way changes nothing: the round is tried again with whoever is left, and after a bounded wait training goes on without it. All ranks of an island
call this alike.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from shoal import telemetry
from shoal.contracts.canonical import sign
from shoal.contracts.identity import PrivateKey
from shoal.contracts.islands import IslandContribution, IslandNotice
from shoal.islands.contributions import (
    HEADER_BYTES,
    Claim,
    Received,
    inner_products,
    mean_of,
    padded,
    payload_of,
    receive,
    sha256,
    unpadded,
)
from shoal.islands.encoding import ExchangeType
from shoal.islands.group import Group, Unreachable
from shoal.islands.head import Head, head_of
from shoal.islands.members import Meeting, Members
from shoal.islands.outer import OuterSettings, outer_step
from shoal.islands.robust import Judged, judge
from shoal.islands.shared import META_BYTES, Meta, Parameters, SharedState
from shoal.islands.store import MeetingStore

Value = TypeVar("Value")
ATTEMPTS = 3
"""Meetings tried in one round: each that fails has lost an island on the way, and the next is without it."""


class Ranks(Protocol):
    """How the ranks of one island agree; `shoal.training.parallel.Ranks` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def leader(self) -> bool: ...

    @property
    def group(self) -> dist.ProcessGroup | None: ...

    def broadcast(self, value: Value, what: str) -> Value: ...

    def all(self, flag: bool, what: str) -> bool: ...


@dataclass(frozen=True)
class Place:
    """Where an island stands: its name, its key and everybody's, the lighthouse's URL, and the addresses of its own store."""

    run: str
    island: str
    key: PrivateKey = field(repr=False)
    known: Mapping[str, str]
    lighthouse: str
    bind: str
    advertised: str | None = None


@dataclass(frozen=True)
class IslandSettings:
    """`wait_seconds`: how long a round waits for an island that is late (the lighthouse has the same); `join_seconds`: how long one that
    starts waits for a round of the others; `transfer_seconds`: longest exchange of one vector.
    """

    inner_steps: int = 500
    exchange: ExchangeType = "float16"
    outer: OuterSettings = field(default_factory=OuterSettings)
    wait_seconds: float = 60.0
    join_seconds: float = 3600.0
    connect_seconds: float = 20.0
    transfer_seconds: float = 600.0


@dataclass(frozen=True)
class Exchanged:
    """A round that was made. `contributors` are those whose vectors counted; `left_out` says of the others, and of those that counted less, why."""

    round: int
    islands: list[str]
    contributors: list[str]
    left_out: dict[str, str]
    joined: bool
    position: int
    seconds: float
    sent_bytes: int


class Island:
    """One island. `parameters` are what training changes, by name; `beat` is called while something is waited for, and may raise to end the wait."""

    def __init__(
        self,
        place: Place,
        settings: IslandSettings,
        ranks: Ranks,
        parameters: Mapping[str, Tensor],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._place, self._settings, self._ranks, self._beat = place, settings, ranks, beat
        self._parameters = Parameters(parameters)
        weights = self._parameters.read()
        self.shared = SharedState(Meta(), weights, torch.zeros_like(weights))
        self._layout = self._over_ranks([self._parameters.layout(), settings.exchange])
        self._live = False
        self._updates = 0
        self._began = time.monotonic()
        self._group = Group(settings.connect_seconds, settings.transfer_seconds, beat)
        self._members: Members | None = None
        if ranks.leader:
            self._store = MeetingStore(place.bind, place.advertised)
            self._members = Members(
                place.lighthouse, place.run, place.island, place.key, place.known, settings.wait_seconds
            )
            self._members.start()

    def close(self) -> None:
        """Fall silent and drop all connections."""
        if self._members is not None:
            self._members.stop()
        self._group.leave()

    @property
    def position(self) -> int:
        """How far the islands are, in the trainer's own count."""
        return self.shared.meta.position

    def weights(self) -> Float[Tensor, " values"]:
        """The parameters as they are now, on the host: this rank's parts."""
        return self._parameters.read()

    def restore(self, meta: Meta, momentum: Float[Tensor, " values"]) -> None:
        """Take up a saved state whose weights are in the parameters already."""
        if momentum.shape != self.shared.momentum.shape:
            raise ValueError(f"a momentum of {len(momentum)} values; this rank has {self._parameters.count}")
        self.shared = SharedState(meta, self._parameters.read(), momentum.clone())

    def join(self, position: int = 0) -> Exchanged | None:
        """Before the first update: meet the others and copy what they share. None when nobody was met within `join_seconds`."""
        return self._exchange(position, time.monotonic() + self._settings.join_seconds, learnt=False)

    def after_update(self, position: int) -> Exchanged | None:
        """Count an update of the inner optimizer, and exchange when it is time."""
        self._updates += 1
        return self.exchange(position) if self._updates >= self._settings.inner_steps else None

    def exchange(self, position: int) -> Exchanged | None:
        """Make a round now. None when it did not come about: what was learnt stays, and is part of the next one."""
        self._updates = 0
        wait = 2 * self._settings.wait_seconds + self._settings.connect_seconds
        return self._exchange(position, time.monotonic() + wait, learnt=True)

    def _exchange(self, position: int, deadline: float, *, learnt: bool) -> Exchanged | None:
        started = time.monotonic()
        now = self._parameters.read()
        gradient = self.shared.weights - now if learnt else None
        for attempt in range(ATTEMPTS):
            meeting = self._ranks.broadcast(self._meet(deadline), "which islands met")
            if meeting is None:
                break
            before = self._group.sent_bytes
            try:
                made = self._round(meeting, gradient, position, started)
            except Unreachable as error:
                self._group.leave()
                telemetry.get_logger().warning("islands' round failed", attempt=attempt, reason=str(error))
                continue
            sent = self._group.sent_bytes - before
            self._take_over(made)
            return replace(made.said, seconds=time.monotonic() - started, sent_bytes=sent)
        self._begin_round()
        return None

    def _meet(self, deadline: float) -> Meeting | None:
        """On the leader; the others get its answer."""
        digest = self._over_ranks(self.shared.digest())
        if self._members is None:
            return None
        notice = IslandNotice(
            run=self._place.run,
            island=self._place.island,
            round=self.shared.meta.round,
            digest=digest,
            live=self._live,
            layout=self._layout,
            store=self._store.address,
        )
        return self._members.meet(notice, deadline, self._beat)

    def _round(
        self, meeting: Meeting, gradient: Float[Tensor, " values"] | None, position: int, started: float
    ) -> "_Made":
        """One meeting from the first byte to the agreement of all. Raises Unreachable, on all ranks alike; nothing is changed then."""
        place, head, group = self._place, head_of(meeting.notices), self._group
        names = meeting.islands
        joins = place.island in head.joiners

        def connect() -> SharedState:
            if len(names) == 1:
                group.alone()
            else:
                index = names.index(place.island)
                group.join(meeting.notices[0].store, meeting.name, self._ranks.rank, place.island, index, len(names))
            return self._copy_state(head, names)

        shared = self._together(connect)
        if joins:
            self._check_copy(shared, head)
        payload, finite = payload_of(None if joins else gradient, self._parameters.count, self._settings.exchange)
        header = IslandContribution(
            run=place.run,
            island=place.island,
            meeting=meeting.name,
            round=head.round,
            rank=self._ranks.rank,
            contributes=self._ranks.all(finite, "whether there is something to contribute"),
            sha256=sha256(payload),
            inner_seconds=min(1e7, max(0.0, started - self._began)),
            position=position,
        )
        signed = padded(sign(header, place.key).to_json(), HEADER_BYTES)
        headers = self._together(lambda: group.gather(signed, "headers of a round"))
        payloads = self._together(lambda: group.gather(payload, "vectors of a round"))
        claim = Claim(place.run, meeting.name, head.round, self._ranks.rank)
        received = receive(names, headers, payloads, claim, place.known)
        agreed = self._judge(received, shared)
        self._together(lambda: self._agree(agreed.digest))
        return self._outcome(shared, received, agreed, joins=joins)

    def _together(self, action: Callable[[], Value]) -> Value:
        """What `action` gives on this rank, once it is done on all ranks of this island. Raises Unreachable on all when it was on one."""
        problem: Unreachable | None = None
        try:
            value = action()
        except Unreachable as error:
            problem = error
        if not self._ranks.all(problem is None, "whether all ranks reached the other islands"):
            raise problem or Unreachable("another rank of this island did not reach the others; its log says why")
        return value

    def _agree(self, digest: str) -> None:
        mine = padded(bytes.fromhex(digest), 32)
        if not all(torch.equal(answer, mine) for answer in self._group.gather(mine, "agreement on a round")):
            raise Unreachable("the islands do not agree on what they received")

    def _copy_state(self, head: Head, names: list[str]) -> SharedState:
        """Send the shared state to joiners whose source this island is, or receive it; the state that this rank goes on from."""
        mine = self._place.island
        for joiner in head.joiners:
            if head.source_of(joiner) == mine:
                meta = padded(self.shared.meta.to_bytes(), META_BYTES)
                self._group.send([meta, self.shared.weights, self.shared.momentum], names.index(joiner), "shared state")
        if mine not in head.joiners:
            return self.shared
        described = torch.zeros(META_BYTES, dtype=torch.uint8)
        weights, momentum = (torch.empty_like(self.shared.weights) for _ in range(2))
        source = head.source_of(mine)
        self._group.receive([described, weights, momentum], names.index(source), "shared state")
        try:
            return SharedState(Meta.from_bytes(unpadded(described)), weights, momentum)
        except ValueError as error:
            raise Unreachable(f"island {source}: {error}") from error

    def _check_copy(self, copied: SharedState, head: Head) -> None:
        """The copy is the one that the holders announced, whoever sent it."""
        if self._over_ranks(copied.digest()) != head.digest or copied.meta.round != head.round:
            self._group.leave()
            raise Unreachable(f"island {head.source_of(self._place.island)} sent another state than was announced")

    def _judge(self, received: list[Received], shared: SharedState) -> "_Agreed":
        """What each contribution counts, over all ranks of this island."""
        gram, bad = inner_products(received, self._parameters.count, self._settings.exchange)
        mine = {one.island: one.problem for one in received if one.problem is not None} | bad
        seen = [[one.island, sha256(one.payload), one.counts] for one in received]
        parts = self._gather((gram, mine, seen))
        problems = {island: why for _, found, _ in reversed(parts) for island, why in found.items()}
        total = torch.stack([part for part, _, _ in parts]).sum(dim=0)
        chosen = [i for i, one in enumerate(received) if one.counts and one.island not in problems]
        judged = judge([[float(total[i, j]) for j in chosen] for i in chosen], shared.meta.reference)
        coefficients = {received[i].island: value for i, value in zip(chosen, judged.coefficients, strict=True)}
        for island, one in zip((received[i].island for i in chosen), judged.each, strict=True):
            if one.weight < 1 or one.factor < 1:
                problems.setdefault(
                    island,
                    f"norm {one.norm:.3g}, agreement {one.agreement:.3f}: counts {one.weight:.2f}, shortened to {one.factor:.3f}",
                )
        text = json.dumps([shared.meta.round, [part[2] for part in parts], coefficients], sort_keys=True)
        return _Agreed(hashlib.sha256(text.encode()).hexdigest(), judged, coefficients, problems)

    def _outcome(self, shared: SharedState, received: list[Received], agreed: "_Agreed", *, joins: bool) -> "_Made":
        """The state after the round, as new vectors: until all ranks have theirs, nothing has happened."""
        counted = [one for one in received if agreed.coefficients.get(one.island, 0.0) > 0 and one.header is not None]
        meta, weights, momentum = shared.meta, shared.weights, shared.momentum
        if counted:
            mean = mean_of(received, agreed.coefficients, self._parameters.count, self._settings.exchange)
            weights, momentum = weights.clone(), momentum.clone()
            outer_step(weights, momentum, mean, self._settings.outer)
            headers = [one.header for one in counted if one.header is not None]
            meta = Meta(
                round=meta.round + 1,
                reference=agreed.judged.reference,
                inner_seconds=float(median_low([header.inner_seconds for header in headers])),
                position=median_low([header.position for header in headers]),
            )
        said = Exchanged(
            round=meta.round,
            islands=[one.island for one in received],
            contributors=[one.island for one in counted],
            left_out=agreed.problems,
            joined=joins,
            position=meta.position,
            seconds=0.0,
            sent_bytes=0,
        )
        return _Made(SharedState(meta, weights, momentum), said)

    def _take_over(self, made: "_Made") -> None:
        self.shared = made.state
        self._parameters.write(made.state.weights)
        self._live = True
        self._begin_round()
        said = made.said
        log = telemetry.get_logger()
        log.info("islands exchanged", round=said.round, islands=said.islands, contributors=said.contributors)
        if said.left_out:
            log.warning("contributions did not count in full", round=said.round, reasons=said.left_out)

    def _begin_round(self) -> None:
        self._began = time.monotonic()
        if self._members is not None:
            self._members.expect_within(self.shared.meta.inner_seconds)

    def _gather(self, value: Value) -> list[Value]:
        """Everybody's value, by rank; only ranks of this island, whose pickles are its own."""
        if self._ranks.world == 1:
            return [value]
        found: list[Value] = [value] * self._ranks.world
        dist.all_gather_object(found, value, group=self._ranks.group)
        return found

    def _over_ranks(self, value: object) -> str:
        """SHA-256 over every rank's value."""
        return hashlib.sha256(json.dumps(self._gather(value), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Agreed:
    """What the islands must agree on: `digest` is of the bytes and what each counts."""

    digest: str
    judged: Judged
    coefficients: dict[str, float]
    problems: dict[str, str]


@dataclass(frozen=True)
class _Made:
    state: SharedState
    said: Exchanged
