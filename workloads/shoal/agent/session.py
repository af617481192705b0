"""The agent's membership: registers at discovery, takes the invite, heartbeats, and starts again whenever the run has forgotten it.

Comes in: `NodeConfig`, the node's key. Goes out: `AgentState` for the pod, and `orchestrator()`, the client for requests of the pod. One thread runs
`run`; it survives restarts of discovery, orchestrator and Redis. Only a slash (Evicted, Banned) is final.
"""

import random
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from shoal.agent import capability, uplink
from shoal.agent.registration import own_registration
from shoal.agent.run_end import why_over
from shoal.contracts import keys
from shoal.contracts.node_states import EXCLUDED, MEMBERS
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    HEARTBEAT_SECONDS,
    Assignment,
    Heartbeat,
    HeartbeatReply,
    Invite,
    NodeLogs,
    NodeState,
    Registered,
)
from shoal.contracts.run import AgentState, AgentStatus, NodeConfig, PublicRun, home
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.trust import KeysNotice
from shoal.crypto.challenge import TooSlow
from shoal.crypto.keys import PrivateKey
from shoal.files import open_plain, replace_file
from shoal.retries import Backoff
from shoal.telemetry import Liveness, get_logger
from shoal.transport import LaterReleaseError, Refused, SignedClient, Unavailable
from shoal.transport.keys_watch import ask_for_keys
from shoal.transport.neighbourhood import Neighbourhood
from shoal.transport.rate_limit import NO_CAPS, Caps

INVITE_POLL_SECONDS = 5  # a stop waits for the poll to end
DISCOVERY_SECONDS = 30.0  # one round of asking discovery; after it the loop starts over and says so
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
"""Pauses between failed attempts to join double up to this: a run that comes back finds its nodes within seconds, and is not flooded."""
CHALLENGE_PAUSE_SECONDS = 120.0  # what is too slow now is seldom fast enough soon, and each try costs the run a check
SETTLING_SECONDS = 1.0  # between heartbeats until the node has all that it needs to begin
MAX_METRICS = 64  # the contract's bound of a heartbeat
EXCLUDED_BY: dict[str, NodeState] = {ProblemCode.EVICTED: "Evicted", ProblemCode.BANNED: "Banned"}
JOIN_AGAIN: tuple[str, ...] = (
    ProblemCode.NOT_ADMITTED,
    ProblemCode.NOT_A_MEMBER,
    ProblemCode.POOL_FORGOTTEN,
    ProblemCode.INVITE_NOT_VALID,
)
KEYS_SECONDS = 20.0  # a leaked key is to be refused within a minute
KEYS_DEADLINE_SECONDS = 3.0
KEPT_KEYS = "keys.json"
MOST_KEYS_BYTES = 4 << 20
"""A hundred changes of keys are 50 kB."""
LIVENESS_SECONDS = 180.0  # far longer than any single wait of the loop


class MustJoinError(Exception):
    """The run does not know this node (any more): register again."""


class ChallengeFailedError(Exception):
    """The pool asks for more than this machine showed; it may have been busy, so the loop tries again after a while."""


class ExcludedError(Exception):
    """The node was evicted or banned; there is no way back."""

    def __init__(self, state: NodeState, detail: str) -> None:
        super().__init__(detail)
        self.state: NodeState = state


class Session:
    """Membership of one node in one run."""

    def __init__(
        self,
        config: NodeConfig,
        key: PrivateKey,
        tls: ssl.SSLContext | None = None,
        logs: Callable[[], dict[str, str]] = dict,
        neighbourhood: Neighbourhood | None = None,
        caps: Caps = NO_CAPS,
    ) -> None:
        """`tls`: what certificates of discovery and orchestrator are held to; None: well-known authorities. `logs` gives what an admin asks for.

        `neighbourhood` judges the URLs that the run names; None: any may be called. `caps` bound what goes to them and comes from them.
        """
        self.config = config
        self.key = key
        self.tls = tls
        self.neighbourhood = neighbourhood
        self._caps = caps
        self.liveness = Liveness(LIVENESS_SECONDS)
        self._trust = config.trust
        self._keys_due = 0.0
        self._knows_past = False
        self._recall_keys()
        self._discovery = SignedClient(config.discovery, key, tls=tls, caps=caps)
        self._logs = logs
        self._logs_sent = ""
        self._outdated = ""
        self._waits_for = "discovery to answer"
        self._reply: HeartbeatReply | None = None
        self._replied_unix: float | None = None
        self._lock = threading.Lock()
        self._orchestrator: SignedClient | None = None
        self._orchestrator_url = ""
        self._metrics: dict[str, float] = {}
        self._soon = threading.Event()
        self._state = AgentState(node=key.public, state="Discovered", **self._keys_told())

    # For the pod

    def state(self) -> AgentState:
        with self._lock:
            return self._state

    def status(self) -> AgentStatus:
        """Status for the owner of this machine; processes are the agent's to add."""
        with self._lock:
            state, reply = self._state, self._reply
            return AgentStatus(
                run=self.config.run,
                pool=self.config.pool,
                node=self.key.public,
                discovery=self.config.discovery,
                orchestrator=self._orchestrator_url,
                state=state.state,
                waits_for=self._waits_for[:1000],
                assignment=reply.assignment if reply is not None else None,
                held_version=held_version(),
                latest_version=state.latest_version,
                files_accepted=reply.files_accepted if reply is not None else 0,
                files_rejected=reply.files_rejected if reply is not None else 0,
                last_heartbeat_unix=self._replied_unix,
                written_unix=time.time(),
            )

    def assignment(self) -> Assignment | None:
        """This node's assignment: the orchestrator's last word, which stands while it is away. None once the node is excluded."""
        with self._lock:
            if self._state.state in EXCLUDED or self._reply is None:
                return None
            return self._reply.assignment

    def run_is_over(self) -> str:
        """Why nothing more is to be done for this run, in words; empty while there may be."""
        with self._lock:
            return why_over(self._reply, self._state, self._replied_unix, time.time())

    def orchestrator(self) -> SignedClient:
        """The client for requests of this pod; raises `Refusal` when excluded and while not a member."""
        with self._lock:
            state, client = self._state.state, self._orchestrator
        if state in EXCLUDED:
            raise Refusal(
                ProblemCode(state.lower()),
                f"this node is {state.lower()} from run {self.config.run!r} and does not come back",
            )
        if client is None or state not in MEMBERS:
            raise Refusal(ProblemCode.NOT_YET_A_MEMBER, f"node is {state}; the agent is joining", retry_after_seconds=1)
        return client

    def note_metrics(self, metrics: dict[str, float]) -> None:
        """Keep numbers of worker and fetch for the next heartbeat; raises `Refusal` when they are too many."""
        with self._lock:
            merged = {**self._metrics, **metrics}
            if len(merged) > MAX_METRICS:
                raise Refusal(
                    ProblemCode.TOO_MANY_METRICS,
                    f"a heartbeat carries at most {MAX_METRICS} numbers, these would be {len(merged)}",
                )
            self._metrics = merged

    def note_latest_version(self, latest: int) -> None:
        """A version that the orchestrator named outside a heartbeat: passed on at once, so that nobody waits for the next one."""
        with self._lock:
            if self._state.latest_version is None or latest > self._state.latest_version:
                self._state = self._state.model_copy(update={"latest_version": latest})

    def check_soon(self) -> None:
        """Heartbeat at once: what the orchestrator thinks of this node may have changed."""
        self._soon.set()

    def note_refusal(self, refused: Refused) -> None:
        """Heartbeat at once if a request of this pod was refused for the standing of this node."""
        if refused.code in EXCLUDED_BY or refused.code in JOIN_AGAIN:
            self.check_soon()

    # The loop

    def run(self, stop: threading.Event) -> None:
        """Join and stay joined until `stop` is set."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while not stop.is_set():
            wait = FIRST_PAUSE_SECONDS
            try:
                invite = self._join(stop)
                backoff.reset()
                self._stay(stop, invite)
                return
            except MustJoinError as error:
                get_logger().info("joining again", reason=str(error))
                self._wait_for(f"a new invite: {error}")
            except ExcludedError as error:
                self._exclude(error)
                while not stop.wait(1.0):
                    self.liveness.progress()
                return
            except ChallengeFailedError as error:
                get_logger().warning("not admitted", reason=str(error), next_try_seconds=CHALLENGE_PAUSE_SECONDS)
                self._wait_for(f"the next try in {CHALLENGE_PAUSE_SECONDS:.0f} s: {error}")
                wait = CHALLENGE_PAUSE_SECONDS
            except Exception as error:  # whatever a peer did, the node keeps trying, slower each time
                get_logger().warning("cannot join yet", error=f"{type(error).__name__}: {str(error)[:300]}")
                self._wait_for(f"another try to join: {str(error)[:300]}")
                wait = backoff.next()
            self.liveness.progress()
            stop.wait(wait * random.uniform(0.8, 1.2))

    def _join(self, stop: threading.Event) -> Signed[Invite]:
        """Register and wait for a good invite."""
        self._set_state("Discovered")
        self._ask_for_keys(self._discovery)
        self._register()
        get_logger().info("registered, waiting for an invite")
        self._wait_for("an invite (registered at discovery)")
        while not stop.is_set():
            self.liveness.progress()
            try:
                signed = self._discovery.call(
                    "GET",
                    f"/v1/nodes/{self.key.public}/invite?wait_seconds={INVITE_POLL_SECONDS}",
                    reply=Signed[Invite],
                    deadline_seconds=DISCOVERY_SECONDS,
                    timeout_seconds=INVITE_POLL_SECONDS + 10.0,
                )
            except Refused as refused:
                if refused.code in (ProblemCode.NOT_REGISTERED, ProblemCode.UPLINK_OUTDATED):
                    raise MustJoinError(f"discovery: {refused.detail[:300]}") from refused
                raise
            if signed is not None:
                if self.neighbourhood is not None:
                    self.neighbourhood.discovery_is_at(self._discovery.peer)
                return self._checked(signed)
        raise MustJoinError("asked to stop")

    def _register(self) -> None:
        """Tell discovery of this machine; where its pool requires an uplink, and none is known, discovery measures it first."""
        registration = own_registration(self.config, self.key)
        for measured in (False, True):
            try:
                self._discovery.call("POST", "/v1/nodes", registration, Registered, deadline_seconds=DISCOVERY_SECONDS)
            except Refused as refused:
                if refused.code != ProblemCode.UPLINK_NOT_MEASURED:
                    raise
                if measured:
                    raise ChallengeFailedError(refused.detail) from refused
                self._wait_for("discovery to measure this machine's uplink")
                self.liveness.progress()
                try:
                    uplink.show(self._discovery, self.key.public, self.config.pool)
                except uplink.TooSlowError as error:
                    raise ChallengeFailedError(f"{refused.detail}; {error}") from error
                self.liveness.progress()
            else:
                return

    def _checked(self, signed: Signed[Invite]) -> Signed[Invite]:
        """The invite, if it is from this run's orchestrator and for this node; what discovery says is not trusted further."""
        try:
            invite = signed.verified(self._trust.of("orchestrator"))
        except BadSignature as error:
            raise MustJoinError(f"discovery sent an invite that the orchestrator did not sign: {error}") from error
        # Whether it has expired is the orchestrator's to say, by its own clock: ours may be minutes off.
        if (invite.run, invite.node) != (self.config.run, self.key.public):
            raise MustJoinError("discovery sent an invite for another run or node")
        if self.neighbourhood is not None:
            self.neighbourhood.check(invite.orchestrator_url)
        if invite.orchestrator_url != self._orchestrator_url:
            client = SignedClient(invite.orchestrator_url, self.key, tls=self.tls, caps=self._caps)
            with self._lock:
                self._orchestrator, self._orchestrator_url = client, invite.orchestrator_url
        self._set_state("Invited")
        self._wait_for("the orchestrator to admit this node")
        return signed

    def _stay(self, stop: threading.Event, invite: Signed[Invite] | None) -> None:
        """Heartbeat until asked to stop; raises when the run refuses this node as it is."""
        interval = HEARTBEAT_SECONDS
        while not stop.is_set():
            self.liveness.progress()
            try:
                reply = self._beat(invite)
                interval = reply.heartbeat_seconds
                if reply.state not in MEMBERS:
                    raise MustJoinError(f"this node is {reply.state} at the orchestrator")
                invite = None
                if not self._outdated:
                    self._wait_for("" if self.state().public else "the run to be prepared (its base model and tasks)")
                self._learn_run()
                settled = self.state().public is not None or self._outdated != ""
                self._wait_for(self._outdated or ("" if settled else "the run's description"))
                self._send_logs(reply)
                self._learn_keys()
            except Unavailable as error:
                get_logger().warning("the orchestrator does not answer; retrying the heartbeat", error=str(error)[:300])
                self._wait_for(f"the orchestrator to answer: {str(error)[:300]}")
                settled = False
                self._learn_keys()  # discovery answers while an orchestrator with a new key reads its ledger
            self._soon.wait(interval if settled else SETTLING_SECONDS)
            if self._soon.is_set():
                stop.wait(SETTLING_SECONDS)  # a worker that asks again and again makes no storm of heartbeats
                self._soon.clear()

    def _beat(self, invite: Signed[Invite] | None) -> HeartbeatReply:
        assert self._orchestrator is not None  # set with the invite
        with self._lock:
            metrics = dict(self._metrics)
        beat = Heartbeat(node=self.key.public, invite=invite, policy_version=held_version(), metrics=metrics)
        try:
            reply = self._orchestrator.call(
                "POST", "/v1/heartbeats", beat, HeartbeatReply, deadline_seconds=10.0, timeout_seconds=5.0
            )
        except Refused as refused:
            if refused.code == ProblemCode.CHALLENGE_NOT_PASSED and invite is not None:
                self._show_capability()
                return self._beat(invite)
            if refused.code in EXCLUDED_BY:
                raise ExcludedError(EXCLUDED_BY[refused.code], refused.detail) from refused
            if refused.code in JOIN_AGAIN:
                raise MustJoinError(str(refused)) from refused
            raise
        if reply is None:
            raise Unavailable("the orchestrator answered a heartbeat with an empty body")
        relays = reply.relays if self.neighbourhood is None else self.neighbourhood.reachable(reply.relays)
        with self._lock:
            self._reply, self._replied_unix = reply, time.time()
            known = [v for v in (self._state.latest_version, reply.latest_version) if v is not None]
            if reply.state != self._state.state:
                get_logger().info("node state", state=reply.state)
            self._state = self._state.model_copy(
                update={
                    "state": reply.state,
                    "relays": relays,
                    "relay_token": reply.relay_token,
                    "latest_version": max(known, default=None),
                }
            )
        return reply

    def _send_logs(self, reply: HeartbeatReply) -> None:
        """Answer an admin's question for logs, once; one that cannot be answered now is asked again with the next heartbeat."""
        assert self._orchestrator is not None  # set with the invite
        if reply.logs_wanted in (None, self._logs_sent):
            return
        logs = NodeLogs(node=self.key.public, request=reply.logs_wanted, parts=self._logs())
        try:
            self._orchestrator.call("POST", "/v1/logs", logs, deadline_seconds=10.0)
        except Refused as refused:  # asked for no more
            get_logger().info("logs are no longer needed", reason=str(refused)[:300])
        self._logs_sent = reply.logs_wanted

    def _show_capability(self) -> None:
        """Answer the pool's challenge; one that is refused means a new registration, later."""
        assert self._orchestrator is not None  # set with the invite
        self.liveness.progress()
        self._wait_for("this machine to compute the pool's challenge")
        try:
            shown = capability.show(self._orchestrator, self.key.public, self.liveness.progress)
        except (Refused, TooSlow) as refused:
            raise ChallengeFailedError(f"this machine did not pass the pool's challenge: {refused}") from refused
        self.liveness.progress()
        get_logger().info("challenge passed", seconds=round(shown.seconds, 2), gflops=round(shown.gflops, 1))

    def _learn_run(self) -> None:
        """Ask once what the run is; while its tasks are not ready, or this release does not know a term of it, the next heartbeat asks again."""
        if self.state().public is not None or self._orchestrator is None:
            return
        try:
            public = self._orchestrator.call("GET", "/v1/public", reply=PublicRun, deadline_seconds=5.0)
        except Refused as refused:
            raise MustJoinError(str(refused)) from refused
        except LaterReleaseError as error:  # no work is better than files that would be rejected
            if not self._outdated:
                get_logger().error("this machine's software is older than the run", reason=str(error)[:500])
            self._outdated = f"an upgrade of this machine: {str(error)[:500]}"
            return
        self._outdated = ""
        with self._lock:
            self._state = self._state.model_copy(update={"public": public})

    def _learn_keys(self) -> None:
        """Ask orchestrator and discovery, now and then, whether keys of the run were changed: the one cannot hide from us what the other says.

        Raises `MustJoinError` when the orchestrator's key leaked: who invited us may have been a thief.
        """
        assert self._orchestrator is not None  # set with the invite
        if time.monotonic() < self._keys_due:
            return
        self._keys_due = time.monotonic() + KEYS_SECONDS * random.uniform(0.8, 1.2)
        before = self._trust.roster.changes_of("orchestrator")
        for client in (self._orchestrator, self._discovery):
            self._ask_for_keys(client)
        if any(change.leaked for change in self._trust.roster.changes_of("orchestrator")[len(before) :]):
            raise MustJoinError("the orchestrator's key leaked and was changed")

    def _ask_for_keys(self, client: SignedClient) -> None:
        """Of one server, which may be away, older than such changes, or lying."""
        try:
            newer = ask_for_keys(
                client, self._trust, all_of_it=not self._knows_past, deadline_seconds=KEYS_DEADLINE_SECONDS
            )
        except (Refused, Unavailable, BadSignature) as error:
            get_logger().debug("cannot learn of changed keys", problem=f"{type(error).__name__}: {str(error)[:300]}")
            return
        if newer or client is self._orchestrator:  # discovery says nothing about the past
            self._knows_past = client is self._orchestrator
        with self._lock:
            self._state = self._state.model_copy(update=self._keys_told())
        if newer:
            self._keep_keys()

    def _keys_told(self) -> dict[str, Any]:
        """What `AgentState` says of the run's keys."""
        notice = self._trust.notice
        told = notice if notice.roster.document.changes else None
        return {"trainer_key": notice.roster.document.keys["trainer"], "notice": told}

    def _keep_keys(self) -> None:
        """For the next start: an old answer of somebody else must not count then."""
        path = home() / "run" / KEPT_KEYS
        try:
            replace_file(path, KeysNotice(roster=self._trust.notice.roster).to_json())
        except OSError as error:
            get_logger().warning("cannot keep the run's keys", path=str(path), problem=str(error))

    def _recall_keys(self) -> None:
        path = home() / "run" / KEPT_KEYS
        try:
            with open_plain(path) as file:
                self._trust.take(KeysNotice.from_json(file.read(MOST_KEYS_BYTES)))
        except FileNotFoundError:
            pass  # nothing was changed yet
        except (OSError, ValueError) as error:  # of another run, whose folder this was, or no file of ours
            get_logger().warning("the kept keys are not this run's", path=str(path), problem=str(error)[:300])

    def _exclude(self, error: ExcludedError) -> None:
        get_logger().error("this node is excluded from the run", state=error.state, detail=str(error))
        self._set_state(error.state)
        self._wait_for(f"nothing: {error}")

    def _wait_for(self, what: str) -> None:
        """Note what must happen next, in words; empty while all is well."""
        with self._lock:
            self._waits_for = what

    def _set_state(self, state: NodeState) -> None:
        with self._lock:
            self._state = self._state.model_copy(update={"state": state, "relay_token": None})


def held_version() -> int | None:
    """The newest version in this pod's `weights/`."""
    folder = home() / "weights"
    if not folder.is_dir():
        return None
    return max((v for path in folder.iterdir() if (v := keys.parse_version(path.name)) is not None), default=None)
