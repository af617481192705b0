"""An orchestrator without HTTP: a `RunState` over a real Redis and a folder store, with a clock that tests move."""

from pathlib import Path

from redis import Redis

from protocol_stack import GROUPS, RUN, SECRET, config, new_role_keys, prepare, publish, sha
from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    ClaimRequest,
    Heartbeat,
    Invite,
    Lease,
    LeaseRequest,
    SubmissionNotice,
    SubmissionReceipt,
    UploadRequest,
    ValidationJob,
)
from shoal.contracts.run import Addresses
from shoal.contracts.signed import Signed, sign
from shoal.contracts.verdicts import Verdict
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator import announcements, recovery
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts import verdicts
from shoal.orchestrator.work import handout, uploads
from shoal.storage.store import Store, open_folder


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Orchestrator:
    """One run's orchestrator. `restarted()` is the same run after kill -9: nothing but store and Redis survives."""

    def __init__(self, folder: Path, redis_url: str, **changes: object) -> None:
        self.clock = Clock()
        self.redis = Redis.from_url(redis_url, decode_responses=True)
        self.redis.flushall()
        addresses = Addresses(
            discovery="http://127.0.0.1:1",
            orchestrator="http://127.0.0.1:2",
            origin="http://127.0.0.1:3",
            relays=[],
            redis=redis_url,
        )
        self.role_keys = new_role_keys()
        self.config = config(addresses, self.role_keys, PrivateKey.generate(), **changes)
        (folder / "store").mkdir()
        self.folder = folder
        self.store = self.open_store()
        prepare(self.store)
        self.state = self.restarted()

    def open_store(self) -> Store:
        return open_folder(self.folder / "store", f"shoal/{RUN}", deadline_seconds=2)

    def new_state(self, store: Store | None = None) -> RunState:
        return RunState(
            self.config, store or self.store, self.redis, self.role_keys["orchestrator"], SECRET, self.clock
        )

    def restarted(self, store: Store | None = None) -> RunState:
        self.state = self.new_state(store)
        self.state.ledger.load()
        recovery.rebuild(self.state)
        return self.state

    def lose_redis(self) -> None:
        self.redis.flushall()
        recovery.rebuild(self.state)

    def announce(self, version: int) -> None:
        announcements.announce_version(self.state, publish(self.store, self.role_keys["trainer"], version))

    def join(self) -> str:
        node = PrivateKey.generate().public
        self.beat(node, self.invite(node))
        return node

    def invite(self, node: str, nonce: str = "") -> Signed[Invite]:
        invite = Invite(
            run=RUN,
            pool="pool",
            node=node,
            orchestrator_url="http://127.0.0.1:2",
            nonce=nonce or node[:32],
            expires_unix=int(self.clock()) + 60,
        )
        return sign(invite, self.role_keys["orchestrator"])

    def beat(self, node: str, invite: Signed[Invite] | None = None) -> str:
        return membership.heartbeat(self.state, Heartbeat(node=node, invite=invite)).state

    def lease(self, node: str, step: int = 0) -> Lease:
        return handout.lease_for(self.state, LeaseRequest(node=node, step=step))

    def lease_in_time(self, node: str, step: int = 0) -> Lease:
        """The same, after the node has waited for what it dropped."""
        for _ in range(2):  # asking for more than it may hold drops a lease at that moment
            try:
                return self.lease(node, step)
            except Refusal as refusal:
                if refusal.code != ProblemCode.LEASE_DROPPED:
                    raise
                self.clock.now += refusal.retry_after_seconds or 0.0
        return self.lease(node, step)

    def upload(self, lease: Lease) -> bytes:
        """Grant and staged bytes, not yet confirmed."""
        data = f"rollouts {lease.lease}".encode()
        request = UploadRequest(node=lease.node, lease=lease.lease, size=len(data), sha256=sha(data))
        uploads.grant_upload(self.state, request)
        self.store.put(keys.staging(lease.node, lease.lease), data)
        return data

    def confirm(self, lease: Lease, data: bytes, state: RunState | None = None) -> SubmissionReceipt:
        notice = SubmissionNotice(node=lease.node, lease=lease.lease, size=len(data), sha256=sha(data), groups=GROUPS)
        return uploads.submit(state or self.state, notice)

    def hand_in(self, node: str, step: int = 0) -> str:
        """A whole submission; returns the file's digest."""
        lease = self.lease(node, step)
        return self.confirm(lease, self.upload(lease)).sha256

    def claim(self, validator: str = "validator-0") -> ValidationJob | None:
        return handout.claim(self.state, ClaimRequest(validator=validator))

    def claimed(self, validator: str = "validator-0") -> ValidationJob:
        job = self.claim(validator)
        assert job is not None, "nothing to claim"
        return job

    def judge(self, verdict: Verdict) -> None:
        verdicts.receive(self.state, sign(verdict, self.role_keys["validator"]))
