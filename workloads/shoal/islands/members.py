"""Who takes part in a round: islands meet at torchft's lighthouse, each with a signed notice.

In: this island's notice. Out: an `Encounter`: a `Meeting` with the notices of all who came, the same on each of them, or why there is none, after a
bounded wait. Where a member has other terms nobody makes a round (`differences`), nor where something else than its notice is there under a
member's name: it may be alive, and whoever went on without it would begin a lineage of its own. While it trains, an island tells the lighthouse
that it is alive; one that is later than the last round's usual time and the wait allow falls silent by itself. So two islands, too, go on
without the slow one (the lighthouse waits for all that report to it unless most are there). Called by `island`, on the leader.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import ValidationError

from shoal import telemetry
from shoal.contracts.islands import IslandNotice
from shoal.contracts.signed import BadSignature, Signed, sign, signed_object
from shoal.crypto.keys import PrivateKey
from shoal.islands.differences import FRESH_SECONDS, Differing

if TYPE_CHECKING:
    from torchft.coordination import LighthouseClient

BEAT_SECONDS = 1.0
"""Between two signs of life; the lighthouse takes a few seconds without one for the end (`lighthouse.SILENCE_SECONDS`)."""
CONNECT_SECONDS = 5.0
UNHEARD_SECONDS, LISTEN_SECONDS = 15.0, 3.0
"""A lighthouse that nobody has heard for this long is not waited for: who asks listens for some beats more, and trains on."""
LONGEST_PAUSE_SECONDS = 3600.0
"""Between two updates of an island whose round has no usual time: before the first one, and while rounds are held up. Then it falls silent."""
RENEWALS = 4
"""Times that a joiner's question is asked again within one wait."""
POLL_SECONDS = 0.05
MAX_TOLD = 64
"""Names in the log of one wait: strangers can bring as many as they like."""
LARGEST_NOTICE = 32768
"""Characters of a signed notice: about 600, and as many for each link of a certificate of four islands."""


@dataclass(frozen=True)
class Meeting:
    """Those who came, by name ascending, and what the meeting is called."""

    name: str
    notices: list[IslandNotice]


@dataclass(frozen=True)
class Encounter:
    """The outcome of a meeting. `company`: whether somebody else may be alive; `held`: for whom no round is made, and what differs there by
    field; `came`: who was met, with the same terms or others (empty where no lighthouse could say); `problem`: why there is no meeting, in words."""

    meeting: Meeting | None
    company: bool
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    came: list[str] = field(default_factory=list)
    problem: str = ""


class Members:
    """This island's place among the others. `known` are the public keys of all islands by name, `excluded` those of them whom it
    does not meet; `lighthouse` is a URL."""

    def __init__(
        self,
        lighthouse: str,
        run: str,
        island: str,
        key: PrivateKey,
        known: Mapping[str, str],
        wait_seconds: float,
        excluded: Collection[str] = (),
    ) -> None:
        if known.get(island) != key.public:
            raise ValueError(f"island {island!r} does not hold the key that the others expect")
        self._lighthouse = lighthouse
        self._run, self._island, self._key, self._known = run, island, key, dict(known)
        self._wait_seconds = wait_seconds
        self._excluded = frozenset(excluded)
        self._others = known.keys() - self._excluded - {island}
        self.heard = False
        """Whether the lighthouse took the last sign of life."""
        self._lost_at = float("inf")
        """Since when it does not; without meaning while it is heard."""
        self._differing = Differing(known.keys() - self._excluded)
        self._usual_seconds: float | None = None
        self._due = float("inf")
        self._by_updates = False
        """Whether every update puts off when it falls silent."""
        self._unmet = ""
        self._told: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to tell the lighthouse that this island is alive."""
        self._lost_at = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="island-beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def expect_within(self, seconds: float | None) -> None:
        """A round begins, and usually takes this long; None when nobody knows yet. Then, and where rounds are held up, this island is late only
        when it makes no update for long."""
        self._usual_seconds = seconds
        self._by_updates = seconds is None or bool(self.holds)
        self._due = time.monotonic() + (seconds or 0.0) + self._wait_seconds
        self.updated()

    def updated(self) -> None:
        """An update was made."""
        if self._by_updates:
            self._due = time.monotonic() + LONGEST_PAUSE_SECONDS

    @property
    def holds(self) -> list[str]:
        """For whom this island makes no round, as of now: members that it met with other terms."""
        return list(self._differing.remembered())

    @property
    def late(self) -> bool:
        """Whether the others go on without this island by now."""
        return time.monotonic() > self._due

    def meet(self, notice: IslandNotice, deadline: float, beat: Callable[[], None]) -> Encounter:
        """Come to a round and wait for the others, until `deadline` (monotonic) at most. Errors of the lighthouse are waited out, its absence
        for `UNHEARD_SECONDS` in all."""
        self._due = float("inf")  # it is here: heard for as long as it waits
        self._told.clear()
        asks: list[_Asked] = []
        problem = "this island was not among those that met"
        # The lighthouse counts the wait for stragglers from whoever asked first. One that has asked for longer asks again beside its first
        # question, or a joiner that has waited for minutes would cut short the wait for everybody else. Those that are due let the wait pass
        # between two questions: with renewals within it the wait for one that is heard, and does not come, would never end.
        again = self._wait_seconds / RENEWALS
        every = self._wait_seconds + again if notice.live else again
        began = ask_at = time.monotonic()
        while (now := time.monotonic()) < deadline:
            if not self.heard and now - self._lost_at > UNHEARD_SECONDS and now - began > LISTEN_SECONDS:
                problem = f"the lighthouse at {self._lighthouse} does not answer"
                break
            if now >= ask_at:
                patience = min(deadline - now, every + 2 * again)
                asks.append(_Asked(self._lighthouse, self._island, sign(notice, self._key), patience))
                ask_at = now + every
            for asked in [one for one in asks if one.done.is_set()]:
                asks.remove(asked)
                if asked.error is None and (met := self._met(asked, notice)) is not None:
                    return met
                problem = asked.error or self._unmet or problem
                ask_at = min(ask_at, now + BEAT_SECONDS) if not asks else ask_at
            beat()
            self._stopped.wait(POLL_SECONDS)
        telemetry.get_logger().warning("islands did not meet", reason=problem)
        # Whoever waited in vain waited for somebody who is alive, unless there was no lighthouse to say so.
        came = [self._island] if self.heard else []
        return Encounter(None, self.heard, self._differing.remembered(), came, problem)

    def _met(self, asked: "_Asked", mine: IslandNotice) -> Encounter | None:
        """The usable part of the lighthouse's answer; None when it is to be asked for again: this island's own notice is not in it, or something
        else than a notice is there under a member's name."""
        found: dict[str, IslandNotice] = {}
        unread: dict[str, str] = {}
        other_software: list[str] = []
        for island, data in asked.participants:
            try:
                found[island] = self._read(island, data)
            except (ValidationError, BadSignature, ValueError) as error:
                if self._of_other_software(island, data):
                    other_software.append(island)
                else:
                    self._note_unread(island, str(error)[:200], unread)
        self._unmet = "; ".join(f"the entry of {island} is not a notice: {why}" for island, why in unread.items())
        if found.get(self._island) != mine or unread:
            return None
        held = self._differing.who_holds_up(found, mine, self._usual_seconds)
        for island in other_software:
            held[island] = self._differing.note(
                island, {"software version": "another value there than here"}, self._usual_seconds
            )
        came = sorted([*found, *other_software])
        if held:
            telemetry.get_logger().warning("no round is possible while settings differ", came=came, differs=held)
            return Encounter(None, True, held, came, "settings differ")
        notices = [found[island] for island in sorted(found) if found[island].terms == mine.terms]
        return Encounter(Meeting(asked.name, notices), len(notices) > 1, {}, came)

    def _read(self, island: str, data: object) -> IslandNotice:
        """The notice of a participant. Raises ValueError, of which the other two are kinds."""
        text = data.get("notice") if isinstance(data, dict) else None
        if not isinstance(text, str) or len(text) > LARGEST_NOTICE:
            raise ValueError("it carries no notice")
        if island not in self._known:
            raise ValueError("no island of this run has that name")
        if island in self._excluded:
            raise ValueError("it is excluded")
        notice = Signed[IslandNotice].from_json(text).verified(self._known[island])
        if (notice.run, notice.island) != (self._run, island):
            raise ValueError(f"it is signed for island {notice.island} of run {notice.run}")
        if not _fresh(notice.at_unix):
            raise ValueError("it is too old by this clock: the clocks differ, or somebody replays it")
        return notice

    def _of_other_software(self, island: str, data: object) -> bool:
        """Whether it is a notice that the member signed just now, with other fields than this software's."""
        text = data.get("notice") if isinstance(data, dict) else None
        if not isinstance(text, str) or len(text) > LARGEST_NOTICE or island not in self._others:
            return False
        said = signed_object(IslandNotice.__name__, text, self._known[island])
        if said is None or (said.get("run"), said.get("island")) != (self._run, island):
            return False
        at = said.get("at_unix")
        return isinstance(at, float | int) and _fresh(at)

    def _note_unread(self, island: str, why: str, unread: dict[str, str]) -> None:
        """Nothing follows where no other island has the name, or an excluded one."""
        if island in self._others:
            unread[island] = why
        if island not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(island)
            telemetry.get_logger().warning("cannot read a notice", island=island[:64], reason=why)

    def _beat(self) -> None:
        client = None
        while not self._stopped.wait(BEAT_SECONDS if client is not None or self.late else 0.2):
            if self.late:
                continue
            try:
                client = client or _client(self._lighthouse)
                client.heartbeat(self._island, timedelta(seconds=CONNECT_SECONDS))
                self.heard = True
            except (RuntimeError, TimeoutError, OSError):
                self._lost_at = time.monotonic() if self.heard else self._lost_at
                self.heard, client = False, None  # it is away or starts again; `meet` says so when that matters
                self._stopped.wait(BEAT_SECONDS)


class _Asked:
    """One question to the lighthouse, in a thread of its own: it blocks in native code, where no signal is heard."""

    def __init__(self, lighthouse: str, island: str, signed: Signed[IslandNotice], timeout_seconds: float) -> None:
        self.done = threading.Event()
        self.name = ""
        self.participants: list[tuple[str, object]] = []
        self.error: str | None = None
        arguments = (lighthouse, island, signed, max(1.0, timeout_seconds))
        threading.Thread(target=self._ask, args=arguments, name="island-meet", daemon=True).start()

    def _ask(self, lighthouse: str, island: str, signed: Signed[IslandNotice], timeout_seconds: float) -> None:
        notice = signed.document
        try:
            quorum = _client(lighthouse).quorum(
                replica_id=island,
                timeout=timedelta(seconds=timeout_seconds),
                address=island,
                store_address=notice.store,
                step=notice.round,
                world_size=1,
                shrink_only=False,
                data={"notice": signed.to_json().decode()},
            )
            made = quorum.created
            self.name = f"{quorum.quorum_id}-{made.seconds}-{made.nanos}"
            self.participants = [(member.replica_id, member.data) for member in quorum.participants]
        except (RuntimeError, TimeoutError, OSError) as error:
            self.error = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        finally:
            self.done.set()


def _fresh(at_unix: float) -> bool:
    return abs(time.time() - at_unix) <= FRESH_SECONDS


def _client(lighthouse: str) -> "LighthouseClient":
    # Not there on every machine (`library`), and a trainer without islands starts without it.
    from torchft.coordination import LighthouseClient

    return LighthouseClient(addr=lighthouse, connect_timeout=timedelta(seconds=CONNECT_SECONDS))
