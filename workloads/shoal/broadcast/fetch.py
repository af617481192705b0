"""The client in a pool pod: downloads the newest announced version from the relays into `weights/`.

`python -m shoal.broadcast.fetch`. In: the agent's socket (relays, token, newest version), relays over HTTP. Out: `weights/v000007/`, checked as a
whole, and metrics for the agent's heartbeat. Versions between two announcements are skipped; a version that does not add up is given up and the
next one awaited; without relays everybody stays on the version that is here.
"""

import json
import random
import threading
import time

from prometheus_client import Counter, Gauge

from shoal import telemetry
from shoal.broadcast.download import Downloader
from shoal.broadcast.pieces import Wanted
from shoal.broadcast.relay_target import NoSpace
from shoal.broadcast.sources import Sources
from shoal.broadcast.transfer import Outcome, Transfer
from shoal.broadcast.weights_folder import FolderTarget, WeightsFolder
from shoal.contracts.run import AgentState, home, load_node_config
from shoal.storage.checkpoint_files import WrongWeights
from shoal.transport import Refused, SignedClient, Unavailable

FETCH_PORT = 9104
TURN_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
STATE_SECONDS = 2.0
"""How old the agent's answer may be: tokens live 30 s and are renewed every 10 s, so one of this age is still good."""
AGENT_DEADLINE_SECONDS = 5.0
GIVE_WAY_SECONDS = 5.0
"""A transfer in which nothing new came for so long gives way to a newer version; one that moves is finished, or a slow node would never get one."""
LIVENESS_SECONDS = 180.0
MOST_ASYNC_LEVEL = 4  # `RunConfig.async_level`'s bound, used until the agent knows the run's own

FETCHED = Counter("shoal_fetch_versions_total", "Versions that became visible in weights/.")
GIVEN_UP = Counter("shoal_fetch_given_up_total", "Versions given up because the whole did not have its digest.")
NEWEST = Gauge("shoal_fetch_newest_version", "Newest version in weights/, -1 when there is none.")
SECONDS = Counter("shoal_fetch_seconds_total", "Seconds from the start of a download to its visible version.")


class Agent:
    """The state that the pod's agent gives, remembered for `STATE_SECONDS`. Safe to use from several threads."""

    def __init__(self, client: SignedClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._state: AgentState | None = None
        self._asked_at = 0.0

    def state(self, *, fresh: bool = False) -> AgentState:
        """Ask, unless a memory will do. Raises `Unavailable` or `Refused` when there is no agent."""
        with self._lock:
            if fresh or self._state is None or time.monotonic() - self._asked_at > STATE_SECONDS:
                self._state = None
                state = self._client.call("GET", "/v1/state", None, AgentState, deadline_seconds=AGENT_DEADLINE_SECONDS)
                assert state is not None
                self._state, self._asked_at = state, time.monotonic()
            return self._state

    def try_state(self) -> AgentState | None:
        """The state, or None while the agent is away: a transfer goes on with what it knows."""
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
            telemetry.get_logger().warning("the agent did not take our metrics", reason=str(error)[:200])


class Fetcher:
    """Keeps `weights/` at the newest announced version."""

    def __init__(
        self, run: str, trainer_key: str, agent: Agent, weights: WeightsFolder, liveness: telemetry.Liveness
    ) -> None:
        self._run = run
        self._trainer_key = trainer_key
        self._agent = agent
        self._weights = weights
        self._liveness = liveness
        self._downloader = Downloader(agent.token)
        self._sources: Sources | None = None
        self._given_up: set[int] = set()
        self._seconds = 0.0
        self._bytes = 0
        self._log = telemetry.get_logger()
        NEWEST.set(max(weights.held(), default=-1))

    def turn(self) -> bool:
        """Make one attempt at the newest announced version if it is not here; False when nothing came of it or nothing was to do.

        Raises `Unavailable` or `Refused` when the agent is away, `NoSpace` when the disk is too small.
        """
        state = self._agent.state(fresh=True)
        version = state.latest_version
        if version is None or version <= max(self._weights.held(), default=-1) or version in self._given_up:
            return False
        if not state.relays or state.relay_token is None:
            return False
        if self._sources is None:
            self._sources = Sources(state.relays, random.Random(state.node))
        self._sources.follow(state.relays)
        self._weights.forget_others(version)
        if not self._fetch(version, self._sources):
            return False
        level = state.public.async_level if state.public is not None else MOST_ASYNC_LEVEL
        self._weights.keep_newest(level + 2)
        NEWEST.set(version)
        self._agent.report(
            {
                "fetch_version": float(version),
                "fetch_bytes": float(self._bytes),
                "fetch_seconds": self._seconds,
            }
        )
        return True

    def not_ready(self) -> str | None:
        """None, or why the worker has nothing to serve."""
        return None if self._weights.held() else "no version is here yet"

    def _fetch(self, version: int, sources: Sources) -> bool:
        started = time.monotonic()
        target = FolderTarget(self._weights, version, self._trainer_key)
        wanted = Wanted(self._run, version, self._trainer_key)

        def keep_on(idle_seconds: float) -> bool:
            self._liveness.progress()
            state = self._agent.try_state()
            if state is None:
                return True
            sources.follow(state.relays)
            return idle_seconds < GIVE_WAY_SECONDS or state.latest_version in (None, version)

        try:
            with telemetry.busy("fetch"):
                transfer = Transfer(wanted, sources, self._downloader, target, keep_on=keep_on)
                try:
                    outcome = transfer.run()
                finally:
                    self._bytes += transfer.received_bytes
        except WrongWeights as error:
            # Shards that an earlier process left were not checked again: with them it may be our own disk that was wrong.
            if not target.resumed:
                self._given_up.add(version)
                GIVEN_UP.inc()
            self._log.error(
                "the whole is not what was announced", version=version, again=target.resumed, reason=str(error)
            )
            target.discard()
            return False
        seconds = time.monotonic() - started
        self._log.info("fetch ended", version=version, outcome=outcome.value, seconds=round(seconds, 3))
        if outcome is Outcome.CHANGED:
            target.discard()
        if outcome is not Outcome.SEALED:
            return False
        self._seconds += seconds
        SECONDS.inc(seconds)
        FETCHED.inc()
        return True


def main() -> None:
    log = telemetry.start("fetch")
    telemetry.install_signals()
    config = load_node_config()
    trainer_key = config.trusted_roster().keys["trainer"]
    liveness = telemetry.Liveness(LIVENESS_SECONDS)
    weights = WeightsFolder(home() / "weights", config.run, trainer_key)
    agent = Agent(SignedClient("http://agent", unix_socket=home() / "run" / "agent.sock"))
    fetcher = Fetcher(config.run, trainer_key, agent, weights, liveness)
    telemetry.serve_health(FETCH_PORT, liveness, fetcher.not_ready)
    log.info("fetch started", held=weights.held())
    pause = TURN_SECONDS
    while not telemetry.STOP.is_set():
        liveness.progress()
        try:
            fetcher.turn()
            pause = TURN_SECONDS
        except (Unavailable, Refused, NoSpace) as error:
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            log.warning(
                "cannot fetch now, trying again", pause_seconds=pause, reason=f"{type(error).__name__}: {error}"
            )
        telemetry.STOP.wait(pause * random.uniform(0.8, 1.2))
    log.info("fetch stopped")


if __name__ == "__main__":
    main()
