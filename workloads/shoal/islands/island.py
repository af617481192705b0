"""One island's side of DiLoCo: every `inner_steps` updates it exchanges what it learnt with the others, and all make the same outer step.

In: a trainer's parameters, changed by its own optimizer between two rounds. Out: the parameters of the shared state, the same bits on every
island that stood in the round. A round is one meeting: whoever lacks the shared state copies it from a holder and contributes nothing; then
everybody's signed vector goes to everybody and is judged. The outer step is made when most have signed that they came to the same state. Whatever
fails on the way changes nothing: the round is tried again with whoever is left, and after a bounded wait training continues without it. All ranks of
an island call this alike.
"""

import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from shoal import telemetry
from shoal.contracts.islands import (
    MAX_ISLANDS,
    CertificateLink,
    IslandAgreement,
    IslandContribution,
    IslandNotice,
    IslandSharedTerms,
)
from shoal.contracts.signed import sign
from shoal.islands.admission import TooFew, agreed_head
from shoal.islands.certificate import VOTE_BYTES, Certificate, count_votes, extended
from shoal.islands.contributions import HEADER_BYTES, Claim, padded, payload_of, receive, sha256, unpadded
from shoal.islands.group import RejoinableGroup, Unreachable
from shoal.islands.head import Head
from shoal.islands.judgement import counted, judge_parts, part_of, state_after
from shoal.islands.members import Encounter, Meeting, Members
from shoal.islands.setting import Exchanged, IslandPlace, IslandSettings, RankAgreement
from shoal.islands.shared import META_BYTES, Meta, Parameters, SharedState

TIMEOUT_SECONDS = 60.0


class MeetingStore:
    """Listens until the process ends. `bind` is the address to listen at, `advertised` what the others reach it by."""

    def __init__(self, bind: str, advertised: str | None = None) -> None:
        listener = socket.create_server((bind, 0), family=socket.AF_INET6 if ":" in bind else socket.AF_INET)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            bind,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=TIMEOUT_SECONDS),
            # torch would listen at every address of the machine.
            master_listen_fd=listener.detach(),
        )
        self.address = f"{advertised or bind}:{port}"


Value = TypeVar("Value")
ATTEMPTS = 3
"""Meetings tried in one round: each that fails has lost an island on the way, and the next is without it."""
AGAIN_SECONDS = 1.0
"""Before a joiner asks again who is there."""


class Island:
    """One island. `parameters` are what training changes, by name, and hold the base model's values now; `beat` is called while
    something is waited for, and may raise to end the wait. `beside` is a digest of what else islands have alike: weights that stay as they are."""

    def __init__(
        self,
        place: IslandPlace,
        settings: IslandSettings,
        ranks: RankAgreement,
        parameters: Mapping[str, Tensor],
        beat: Callable[[], None] = lambda: None,
        beside: str = "",
    ) -> None:
        self._place, self._settings, self._ranks, self._beat = place, settings, ranks, beat
        self._parameters = Parameters(parameters)
        if not 1 <= len(place.known) <= MAX_ISLANDS:
            raise ValueError(f"there are {len(place.known)} islands; 1 to {MAX_ISLANDS} can exchange")
        weights = self._parameters.read()
        self.shared = SharedState(Meta(), weights, torch.zeros_like(weights))
        self.certificate: Certificate = []
        self._base = self._digest = self._over_ranks(self.shared.digest())
        self._terms = IslandSharedTerms(
            inner_steps=settings.inner_steps,
            exchange=settings.exchange,
            base=self._over_ranks([self._base, beside]),
            layout=self._over_ranks(self._parameters.layout()),
            islands=hashlib.sha256(
                json.dumps([sorted(place.known.items()), sorted(place.excluded)]).encode()
            ).hexdigest(),
        )
        self.last = Encounter(None, company=True)
        """The outcome of the last meeting; `company` is false where this island came alone, or heard no lighthouse."""
        self._live = False
        self._restored = False
        """What it had learnt before it was started again is part of no round yet."""
        self._unshared = 0
        """Updates since the last round, of this process."""
        self._was_held = False
        """Exchanges have been held up since the last round."""
        self._refuses: list[str] = []
        self._updates = 0
        self._began = time.monotonic()
        self._group = RejoinableGroup(settings.connect_seconds, settings.transfer_seconds, beat)
        self._members: Members | None = None
        if ranks.leader:
            self._store = MeetingStore(place.bind, place.advertised)
            wait = settings.wait_seconds
            self._members = Members(
                place.lighthouse, place.run, place.island, place.key, place.known, wait, place.excluded
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

    def restore(self, shared: SharedState, certificate: Certificate) -> None:
        """Take up a saved state and what vouches for it. The parameters are left as they are: they may have learnt since."""
        for name, vector in (("weights", shared.weights), ("momentum", shared.momentum)):
            if vector.shape != self.shared.weights.shape:
                raise ValueError(f"{name} of {len(vector)} values; this rank has {self._parameters.count}")
        self.shared, self.certificate = shared, certificate
        self._restored = True
        self._digest = self._over_ranks(shared.digest())

    def join(self, position: int = 0) -> Exchanged | None:
        """Before the first update: meet the others and copy what they share; what a restored island learnt since that state is part of the round,
        where it has the same one as others that come from training. None when no round was made within `join_seconds`, or a
        member has other terms."""
        deadline = time.monotonic() + self._settings.join_seconds
        while True:
            made = self._exchange(position, deadline, learnt=False)
            left = time.monotonic() + AGAIN_SECONDS < deadline and not self.last.held
            left = self._ranks.broadcast(left, "whether there is time to join")
            if made is not None or not left:
                return made
            until = time.monotonic() + AGAIN_SECONDS
            while time.monotonic() < until:
                self._beat()
                time.sleep(0.05)

    def due(self, updates: int = 1) -> bool:
        """Count updates of the inner optimizer; whether it is time to exchange."""
        self._updates += updates
        self._unshared += updates
        if self._members is not None:
            self._members.updated()
        return self._updates >= self._settings.inner_steps

    def exchange(self, position: int, seconds: float | None = None) -> Exchanged | None:
        """Make a round now, with those that are met within `seconds`, or the settings' wait. None when it was not made: what was learnt stays,
        and is part of the next one."""
        self._updates = 0
        seconds = self._settings.meeting_seconds if seconds is None else seconds
        return self._exchange(position, time.monotonic() + seconds, learnt=True)

    def _exchange(self, position: int, deadline: float, *, learnt: bool) -> Exchanged | None:
        started = time.monotonic()
        now = self._parameters.read()
        gradient = self.shared.weights - now if learnt or self._restored else None
        for attempt in range(ATTEMPTS):
            self.last = self._ranks.broadcast(self._meet(deadline, learnt), "which islands met")
            if (meeting := self.last.meeting) is None:
                break
            before = self._group.sent_bytes
            try:
                brings = learnt or self._brings(meeting, gradient)
                made = self._round(meeting, gradient if brings else None, position, started)
            except Unreachable as error:
                self._group.leave()
                telemetry.get_logger().warning("islands' round failed", attempt=attempt, reason=str(error))
                self.last = replace(self.last, problem=str(error))
                if isinstance(error, TooFew):
                    break
                continue
            sent = self._group.sent_bytes - before
            self._take_over(made)
            return replace(made.said, seconds=time.monotonic() - started, sent_bytes=sent)
        self._was_held |= bool(self.last.held)
        self._expect()
        return None

    def _brings(self, meeting: Meeting, gradient: Float[Tensor, " values"] | None) -> bool:
        """Whether what this island had learnt before it was started again is contributed: where others come from training with the same state, the
        round that they make would throw it away. Where nobody does, it is part of the next round."""
        others = (notice for notice in meeting.notices if notice.island != self._place.island)
        if gradient is None or not any(other.trains and other.digest == self._digest for other in others):
            return False
        return not self._ranks.all(not bool(gradient.any()), "whether nothing was learnt")

    def _meet(self, deadline: float, learnt: bool) -> Encounter:
        """On the leader; the others get its answer."""
        if self._members is None:
            return self.last
        notice = IslandNotice(
            run=self._place.run,
            island=self._place.island,
            round=self.shared.meta.round,
            digest=self._digest,
            live=self._live,
            trains=learnt,
            terms=self._terms,
            store=self._store.address,
            certificate=list(self.certificate),
            refuses=self._refuses,
            holds=self._members.holds,
            at_unix=time.time(),
        )
        return self._members.meet(notice, deadline, self._beat)

    def _round(
        self, meeting: Meeting, gradient: Float[Tensor, " values"] | None, position: int, started: float
    ) -> "_AgreedState":
        """One meeting from the first byte to the votes of most. Raises Unreachable, on all ranks alike; nothing is changed then."""
        place, settings, group, world = self._place, self._settings, self._group, self._ranks
        head = agreed_head(meeting.notices, place, self._base)
        names, joins = head.members, place.island in head.joiners

        def connect() -> SharedState:
            if len(names) == 1:
                group.alone()
            else:
                index = names.index(place.island)
                store = next(notice.store for notice in meeting.notices if notice.island == names[0])
                group.join(store, meeting.name, world.rank, place.island, index, len(names))
            return self._copy_state(head)

        # Should this fail, the holders go on without those that were to copy: they contribute nothing yet, so nothing is lost.
        self._refuses = [] if joins else [*head.refused, *head.joiners]
        shared = self._together(connect)
        if joins:
            self._check_copy(shared, head)
        payload, finite = payload_of(None if joins else gradient, self._parameters.count, settings.exchange)
        header = IslandContribution(
            run=place.run,
            island=place.island,
            meeting=meeting.name,
            round=head.round,
            rank=world.rank,
            contributes=world.all(finite, "whether there is something to contribute"),
            sha256=sha256(payload),
            inner_seconds=self._inner_seconds(started),
            position=position,
        )
        # One voice: ranks begin their rounds some milliseconds apart.
        said = world.broadcast((header.inner_seconds, header.position), "what the island says of itself")
        header = header.model_copy(update={"inner_seconds": said[0], "position": said[1]})
        signed = padded(sign(header, place.key).to_json(), HEADER_BYTES)
        copies = settings.copy_seconds if head.joiners else 0.0
        headers = self._together(lambda: group.gather(signed, "headers of a round", copies + settings.connect_seconds))
        payloads = self._together(lambda: group.gather(payload, "vectors of a round"))
        claim = Claim(place.run, meeting.name, head.round, world.rank)
        received = receive(names, headers, payloads, claim, place.known)
        parts = self._gather(part_of(received, self._parameters.count, settings.exchange))
        judged = judge_parts(parts, received, shared.meta.reference)
        trained = {notice.island for notice in meeting.notices if notice.trains}
        state = state_after(shared, received, judged, settings.exchange, settings.outer, trained)
        digest = self._over_ranks(state.digest())
        link, against = self._vote(meeting.name, names, state.meta.round, digest)
        certificate: Certificate | None = head.certificate
        if state.meta.round > head.round:
            certificate = extended(head.certificate, link, place.known.keys())
        if certificate is None:
            raise TooFew(
                f"{sorted(link.signatures)} signed; at least half of {head.before} must sign before others accept it"
            )
        contributors = [one.island for one in counted(received, judged)]
        exchanged = Exchanged(
            round=state.meta.round,
            islands=names,
            contributors=contributors,
            left_out=judged.problems | against | dict.fromkeys(head.refused, "did not copy the state in time before"),
            joined=joins,
            position=state.meta.position,
            seconds=0.0,
            sent_bytes=0,
            replaced=joins or (state is not shared and place.island not in contributors),
        )
        return _AgreedState(state, digest, certificate, exchanged)

    def _inner_seconds(self, started: float) -> float:
        """How long this island trained for a round that it began to make at `started`. Time for which rounds were held up is not a part of it."""
        took = min(1e7, max(0.0, started - self._began))
        usual = self.shared.meta.inner_seconds
        return min(took, usual) if self._was_held and usual is not None else took

    def _vote(self, meeting: str, names: list[str], number: int, digest: str) -> tuple[CertificateLink, dict[str, str]]:
        """Sign what this island came to, and count who came to the same: the leader's count holds. Raises Unreachable without most."""
        mine = IslandAgreement(run=self._place.run, meeting=meeting, round=number, digest=digest, members=names)
        signed = padded(sign(mine, self._place.key).to_json(), VOTE_BYTES)
        votes = self._together(lambda: self._group.gather(signed, "votes on a round"))
        link, against = self._ranks.broadcast(count_votes(mine, votes, self._place.known), "the votes on a round")
        if link is None:
            raise Unreachable(f"most islands reached another state than this one: {against}")
        return link, against

    def _together(self, action: Callable[[], Value]) -> Value:
        """The result of `action` on this rank, after it succeeded on all ranks of this island. Raises Unreachable on all when it was on one."""
        problem: Unreachable | None = None
        try:
            value = action()
        except Unreachable as error:
            problem = error
        if not self._ranks.all(problem is None, "whether all ranks reached the other islands"):
            raise problem or Unreachable(
                "another rank of this island did not reach the other islands; its log says why"
            )
        return value

    def _copy_state(self, head: Head) -> SharedState:
        """Send the shared state to joiners whose source this island is, or receive it, within `copy_seconds` together; the state that this rank
        continues from."""
        mine, names = self._place.island, head.members
        end = time.monotonic() + self._settings.copy_seconds
        for joiner in head.joiners:
            if head.source_of(joiner) == mine:
                meta = padded(self.shared.meta.to_bytes(), META_BYTES)
                vectors = [meta, self.shared.weights, self.shared.momentum]
                left = max(0.0, end - time.monotonic())
                self._group.send(vectors, names.index(joiner), f"shared state to {joiner}", left)
        if mine not in head.joiners:
            return self.shared
        described = torch.zeros(META_BYTES, dtype=torch.uint8)
        weights, momentum = (torch.empty_like(self.shared.weights) for _ in range(2))
        source = head.source_of(mine)
        left = max(0.0, end - time.monotonic())
        self._group.receive([described, weights, momentum], names.index(source), f"shared state of {source}", left)
        try:
            return SharedState(Meta.from_bytes(unpadded(described)), weights, momentum)
        except ValueError as error:
            raise Unreachable(f"island {source}: {error}") from error

    def _check_copy(self, copied: SharedState, head: Head) -> None:
        """The copy is the one that the holders announced, whoever sent it."""
        if self._over_ranks(copied.digest()) != head.digest or copied.meta.round != head.round:
            self._group.leave()
            raise Unreachable(
                f"island {head.source_of(self._place.island)} sent a state that differs from its announcement"
            )

    def _take_over(self, made: "_AgreedState") -> None:
        """A round in which nothing counted leaves the parameters as they are: they may hold what was learnt since the shared state."""
        changed = made.said.joined or made.state is not self.shared
        self.shared, self.certificate, self._digest = made.state, made.certificate, made.digest
        # A round takes parameters that are not finite back, whatever came of it. Ranks do so alike.
        if changed or not self._ranks.all(self._parameters.finite(), "whether the parameters are finite"):
            self._parameters.write(made.state.weights)
        if made.said.replaced and (self._unshared or self._restored):
            telemetry.get_logger().warning(
                "discarding what this island learnt since its last round",
                updates_since_it_started=self._unshared,
                round=made.said.round,
                reason=made.said.left_out.get(self._place.island, "its state differed from that of the others"),
            )
        if changed:
            self._restored, self._unshared = False, 0
        self._live, self._was_held = True, False
        self._began = time.monotonic()
        self._expect()
        said = made.said
        log = telemetry.get_logger()
        log.info(
            "islands exchanged",
            round=said.round,
            islands=said.islands,
            contributors=said.contributors,
            state=self._digest,
        )
        if said.left_out:
            log.warning("some contributions did not count fully", round=said.round, reasons=said.left_out)

    def _expect(self) -> None:
        """Training continues, whether or not a round was made."""
        self._refuses = []
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
class _AgreedState:
    state: SharedState
    digest: str
    certificate: Certificate
    said: Exchanged
