"""The client in a pool pod: downloads the newest announced version from the relays into `weights/`.

`python -m shoal.broadcast.fetch`. In: the agent's socket (relays, token, newest version), relays over HTTP. Out: `weights/v000007/`, checked as a
whole, and metrics for the agent's heartbeat. Versions between two announcements are skipped, unless the newest is a delta against them; a version
that does not add up is given up and the next one awaited; without relays everybody stays on the version that is here. With nothing announced that
is not here, the next version is fetched while the publisher is still making it; it becomes visible when it is announced. Of the pods that share a
folder one fetches. The others wait, and take over when it ends.
"""

import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram

from shoal import telemetry
from shoal.broadcast.chain import against, find_way
from shoal.broadcast.documents import Documents
from shoal.broadcast.download import Downloader
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.sources import Sources
from shoal.broadcast.transfer import IN_FLIGHT, Transfer, TransferOutcome
from shoal.broadcast.weights_folder import FolderTarget, WeightsFolder
from shoal.contracts.run import AgentState, PublicRun, home, load_node_config
from shoal.contracts.signed import Signer
from shoal.contracts.trust import TrustedKeys
from shoal.contracts.weights import DeltaBase, VersionOpen
from shoal.storage import delta
from shoal.storage.checkpoint_files import WrongWeights, version_digest
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.rate_limit import RateLimit, caps_of
from shoal.transport.restarts import end_when_restarted

FETCH_PORT = 9104
TURN_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
STATE_SECONDS = 2.0
"""How old the agent's answer may be: tokens live 30 s and are renewed every 10 s, so one of this age is still good."""
AGENT_DEADLINE_SECONDS = 5.0
GIVE_WAY_SECONDS = 5.0
"""A transfer in which nothing new came for this long gives way to a newer version; one that moves is finished, or a slow node would never get one."""
LOOK_SECONDS = 1.0
"""Between looks for a version that is not announced: a thousand nodes at four relays make 250 small requests a second at each."""
LIVENESS_SECONDS = 180.0
MOST_ASYNC_LEVEL = 4  # `RunConfig.async_level`'s bound, used until the agent knows the run's own

MOST_DECODERS = 16
"""A quarter of the connections that a relay gives a node (`Limits.connections`); each holds a shard four times."""

FETCHED = Counter("shoal_fetch_versions_total", "Versions that became visible in weights/.")
GIVEN_UP = Counter(
    "shoal_fetch_given_up_total", "Versions discarded because the assembled checkpoint had another digest."
)
NEWEST = Gauge("shoal_fetch_newest_version", "Newest version in weights/, -1 when there is none.")
SECONDS = Histogram(
    "shoal_fetch_seconds",
    "Time from the start of a download to its visible version; exemplars name the version.",
    buckets=(1, 3, 10, 30, 100, 300, 600, 900, 1800, 3600),  # the paper's 62 GB took 14 minutes
)


class Agent:
    """The state that the pod's agent gives, remembered for `STATE_SECONDS`. Safe to use from several threads."""

    def __init__(self, client: SignedClient, trust: TrustedKeys | None = None) -> None:
        """`trust`: keys that follow those of the agent."""
        self._client = client
        self._trust = trust
        self._lock = threading.Lock()
        self._state: AgentState | None = None
        self._asked_at = 0.0

    def state(self, within_seconds: float = STATE_SECONDS) -> AgentState:
        """Ask, unless an answer of this age is at hand. Raises `Unavailable` or `Refused` when there is no agent."""
        with self._lock:
            if self._state is None or time.monotonic() - self._asked_at > within_seconds:
                self._state = None
                state = self._client.call("GET", "/v1/state", None, AgentState, deadline_seconds=AGENT_DEADLINE_SECONDS)
                assert state is not None
                if self._trust is not None and state.notice is not None:
                    self._trust.take(state.notice)
                self._state, self._asked_at = state, time.monotonic()
                telemetry.every_line(node=state.node)
            return self._state

    def try_state(self) -> AgentState | None:
        """The state, or None while the agent is away: a transfer continues with what it knows."""
        try:
            return self.state()
        except (Unavailable, Refused):
            return None

    def token(self) -> str | None:
        state = self.try_state()
        return state.relay_token if state is not None else None

    def report(self, numbers: dict[str, float]) -> None:
        """Send metrics with the next heartbeat; losing some is harmless."""
        try:
            self._client.request(
                "POST", "/v1/metrics", json.dumps(numbers).encode(), deadline_seconds=AGENT_DEADLINE_SECONDS
            )
        except (Unavailable, Refused) as error:
            telemetry.get_logger().warning("the agent did not accept the metrics", reason=str(error)[:200])


class Fetcher:
    """Keeps `weights/` at the newest announced version."""

    def __init__(
        self,
        run: str,
        trainer_key: Signer,
        agent: Agent,
        weights: WeightsFolder,
        liveness: telemetry.Liveness,
        tls: ssl.SSLContext | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        """`tls`: what certificates of relays are held to; None: the system's authorities. `limit` bounds what is received."""
        self._run = run
        self._trainer_key = trainer_key
        self._agent = agent
        self._weights = weights
        self._liveness = liveness
        self._downloader = Downloader(agent.token, tls=tls, limit=limit)
        self._sources: Sources | None = None
        self._given_up: set[int] = set()
        self._in_full: set[int] = set()
        """Versions in full whose delta was promised and is lost or bad: a file must not end a node."""
        self._look_at = 0.0
        self._seconds = 0.0
        self._bytes = 0
        self._log = telemetry.get_logger()
        NEWEST.set(max(weights.held(), default=-1))

    def turn(self) -> bool:
        """Make one attempt at the newest announced version if it is not here; False when nothing came of it or nothing was to do.

        Raises `Unavailable` or `Refused` when the agent is away, `OSError` (`NoSpace`) when the disk is too small.
        """
        state = self._agent.state(within_seconds=0.0)
        if not self._weights.hold():
            NEWEST.set(max(self._weights.held(), default=-1))
            return False
        if state.notice is not None:
            self._weights.drop_void()
        if not state.relays or state.relay_token is None:
            return False
        if self._sources is None:
            self._sources = Sources(state.relays, random.Random(state.node))
        self._sources.follow(state.relays)
        held = max(self._weights.held(), default=-1)
        announced = -1 if state.latest_version is None else state.latest_version
        version = announced if announced > held else held + 1
        if version in self._given_up or (version > announced and not self._is_opened(version, self._sources)):
            return False
        if not self._fetch(version, self._sources, kept_versions(state.public)):
            return False
        NEWEST.set(version)
        self._agent.report(
            {
                "fetch_version": float(version),
                "fetch_bytes": float(self._bytes),
                "fetch_seconds": self._seconds,
            }
        )
        return True

    def _is_opened(self, version: int, sources: Sources) -> bool:
        """Whether a relay has the beginning of a version that nobody has announced yet. One relay is asked, now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        return Documents(WantedVersion(self._run, version, self._trainer_key), sources, self._downloader).is_opened()

    def _announced(self, version: int) -> bool:
        """Whether the orchestrator knows this version: a worker that used it before would hand in what nobody expects."""
        try:
            latest = self._agent.state(within_seconds=TURN_SECONDS).latest_version
        except (Unavailable, Refused):
            return False
        return latest is not None and latest >= version

    def not_ready(self) -> str | None:
        """None, or why the worker has nothing to serve."""
        return None if self._weights.held() else "no version has arrived yet"

    def _fetch(self, version: int, sources: Sources, kept: int) -> bool:
        """Bring `version` here, and before it the versions that it is a delta against, as far as they are not here; False when that failed.

        Room is made before the first byte, so that a volume for `kept` versions is always enough: nobody samples with the oldest one while the next
        version is made. On the way along a chain two links are here at once, which takes the room of one version more.
        """
        started = time.monotonic()

        def keep_on(idle_seconds: float) -> bool:
            self._liveness.progress()
            state = self._agent.try_state()
            if state is None:
                return True
            sources.follow(state.relays)
            newer = state.latest_version is not None and state.latest_version > version
            return idle_seconds < GIVE_WAY_SECONDS or not newer

        with telemetry.busy("fetch"):
            wanted = WantedVersion(self._run, version, self._trainer_key)
            held = self._held_digests()
            way = find_way(wanted, sources, self._downloader, held, keep_on)
            if way is None or self._given_up & {record.version for record in way}:
                return False
            first = against(way[0], held)
            self._weights.forget_others(
                {record.version for record in way}, first.version if first is not None else None
            )
            self._weights.keep_newest(kept - min(len(way), 2), () if first is None else (first.version,))
            for number, record in enumerate(way, 1):
                if not self._one(record, sources, keep_on, link=record.version != version):
                    return False
                self._weights.forget_others({later.version for later in way[number:]}, record.version)
        seconds = time.monotonic() - started
        self._log.info("fetched", version=version, chain=len(way), seconds=round(seconds, 3))
        self._seconds += seconds
        SECONDS.observe(seconds, exemplar={"version": str(version)})
        FETCHED.inc()
        return True

    def _one(self, record: VersionOpen, sources: Sources, keep_on: Callable[[float], bool], *, link: bool) -> bool:
        """Bring one version here, whose base is here; of one in full the delta beside it where its base is here."""
        version = record.version
        delta_of = against(record, self._held_digests())
        base = self._weights.bases()[delta_of.version][0] if delta_of is not None else None
        beside = delta_of is not None and record.base is None
        target = FolderTarget(self._weights, version, self._trainer_key, base, link=link, beat=self._liveness.progress)
        wanted = WantedVersion(self._run, version, self._trainer_key, beside)
        transfer = Transfer(
            wanted,
            sources,
            self._downloader,
            target,
            in_flight=IN_FLIGHT if base is None else decoders(record.largest_shard),
            keep_on=keep_on,
            may_seal=lambda: link or self._announced(version),
        )
        try:
            outcome = transfer.run()
        except WrongWeights as error:
            self._judge(record, delta_of, base, target, error)
            target.discard()
            return False
        finally:
            self._bytes += transfer.received_bytes
        way = "full" if base is None else "delta beside" if beside else "delta"
        self._log.info("fetch ended", version=version, outcome=outcome.value, link=link, way=way)
        gave_up = outcome in (TransferOutcome.STALLED, TransferOutcome.ABANDONED) and not telemetry.STOP.is_set()
        if beside and gave_up and self._announced(version):
            self._liveness.progress()
            if Documents(wanted, sources, self._downloader).is_lost(record, transfer.missing(record)):
                self._in_full.add(version)
        if outcome is TransferOutcome.CHANGED:
            target.discard()
        return outcome is TransferOutcome.SEALED

    def _held_digests(self) -> dict[int, str]:
        """Finished versions with their digests, without those of whose next one the delta beside it is lost or bad."""
        bases = self._weights.bases()
        return {number: sha256 for number, (_, sha256) in bases.items() if number + 1 not in self._in_full}

    def _judge(
        self,
        record: VersionOpen,
        delta_of: DeltaBase | None,
        base: Path | None,
        target: FolderTarget,
        error: WrongWeights,
    ) -> None:
        """Whose fault it is that the assembled checkpoint differs from the announced one: ours, if our disk kept a shard or the base badly.

        Else it is the version's, or that of the delta beside it: then the version comes in full.
        """
        rotten = False
        if delta_of is not None and base is not None:
            rotten = _rotten(record, delta_of, base, self._liveness.progress)
            if rotten:
                self._weights.remove(delta_of.version)
        again = rotten or target.resumed
        if not again and delta_of is not None and record.base is None:
            self._in_full.add(record.version)
            again = True
        elif not again:
            self._given_up.add(record.version)
            GIVEN_UP.inc()
        self._log.error(
            "the assembled checkpoint differs from the announced one",
            version=record.version,
            again=again,
            reason=str(error),
        )


def _rotten(record: VersionOpen, delta_of: DeltaBase, base: Path, beat: Callable[[], None]) -> bool:
    """Whether the folder `base` has not the bytes that the version of `delta_of` had when it was assembled."""
    try:
        return version_digest(record, base, beat) != delta_of.sha256
    except OSError:
        return True


def decoders(shard_bytes: int) -> int:
    """Shards of a delta at once: each is unpacked and hashed by the thread that received it, so as many as there are cores.

    There are fewer where shards are large: what all of them hold stays within `delta.MOST_BYTES`.
    """
    return min(delta.side_by_side(shard_bytes), max(IN_FLIGHT, min(MOST_DECODERS, len(os.sched_getaffinity(0)))))


def kept_versions(public: PublicRun | None) -> int:
    """Versions that a pod holds, the one being fetched included: those that steps accept, and the one that they were made from.

    A version is scored for longer than it feeds training, which takes one more where the run has benchmarks.
    """
    level = public.async_level if public is not None else MOST_ASYNC_LEVEL
    return level + (3 if public is not None and public.benchmarks else 2)


def trusted_authorities(folder: Path) -> ssl.SSLContext | None:
    """Those of `config/relay-ca.pem`, and no others, where the pod has that file; None: those of the system. Raises `SystemExit` for rubbish."""
    path = folder / "config" / "relay-ca.pem"
    if not path.is_file():
        return None
    try:
        return ssl.create_default_context(cafile=str(path))
    except ssl.SSLError as error:
        raise SystemExit(
            f"config/relay-ca.pem has no readable certificate ({error.reason}): put the PEM of the relays' authority there"
        ) from error


def main() -> None:
    log = telemetry.start("fetch")
    telemetry.install_signals()
    end_when_restarted(home() / "run" / "agent.sock")
    config = load_node_config()
    telemetry.every_line(run=config.run, pool=config.pool)
    trainer_key = config.trust.of("trainer")
    liveness = telemetry.Liveness(LIVENESS_SECONDS)
    weights = WeightsFolder(home() / "weights", config.run, trainer_key)
    agent = Agent(SignedClient("http://agent", unix_socket=home() / "run" / "agent.sock"), config.trust)
    limit = caps_of(home()).download
    fetcher = Fetcher(config.run, trainer_key, agent, weights, liveness, trusted_authorities(home()), limit)
    telemetry.serve_health(FETCH_PORT, liveness, fetcher.not_ready)
    log.info("fetch started", held=weights.held())

    def turn() -> float:
        liveness.progress()
        fetcher.turn()
        return TURN_SECONDS

    telemetry.until_stopped("fetch", turn, (Unavailable, Refused, OSError), TURN_SECONDS, LONGEST_PAUSE_SECONDS)
    log.info("fetch stopped")


if __name__ == "__main__":
    main()
