"""A run small enough to follow by hand, its keys, and clients that speak as its parts: shared by the protocol's tests."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import httpx
from redis import Redis

from ledger_samples import flat
from samples import PROOF_PROFILE
from servers import PLAIN, ROOT, Server, redis, wait_until
from shoal.contracts import keys
from shoal.contracts.completions import Sampling
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.packages import PinnedPackage
from shoal.contracts.pools import PoolTerms
from shoal.contracts.protocol import (
    ClaimRenewal,
    ClaimRequest,
    Hardware,
    Heartbeat,
    HeartbeatReply,
    Invite,
    Lease,
    LeaseRequest,
    Registered,
    Registration,
    RunProgress,
    StepInfo,
    SubmissionNotice,
    SubmissionReceipt,
    UploadGrant,
    UploadRequest,
    ValidationJob,
    VersionAnnouncement,
)
from shoal.contracts.recipe import Recipe
from shoal.contracts.roster import ROLES, Role, Roster
from shoal.contracts.run import Addresses, NodeConfig, Prepared, RunConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Outcome, RejectReason, RowReward, Verdict
from shoal.contracts.weights import CheckpointFile, VersionOpen, WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.entries import LedgerEntry
from shoal.storage.store import Store, open_folder
from shoal.transport import Refused, SignedClient

RUN = "tiny"
GROUPS, GROUP_SIZE, NEEDED = 2, 2, 4
"""Two groups of two rows a file, four groups with signal a step: two good files fill a step."""
ADMIN_TOKEN = "the token of an admin, of 32 or more"
SECRET = b"a run secret of more than 16 bytes"
TASKS = [
    Task(problem_id=f"p{n}", task_type="arithmetic", prompt=f"{n}+1=", verification_info={"answer": str(n + 1)})
    for n in range(50)
]


WHEEL = b"a wheel, which nobody on the way looks into"
PACKAGE = PinnedPackage(
    package="echo-words", version="1.0", sha256=hashlib.sha256(WHEEL).hexdigest(), size_bytes=len(WHEEL)
)


def config(
    addresses: Addresses, role_keys: dict[Role, PrivateKey], run_key: PrivateKey, **changes: object
) -> RunConfig:
    roster = Roster(run=RUN, keys={role: key.public for role, key in role_keys.items()})
    fields: dict[str, object] = {
        "run": RUN,
        "steps": 3,
        "async_level": 1,
        "model_id": "tiny-model",
        "model": ModelSource(generated=GeneratedModel()),
        "tasks": TaskSource(environment="arithmetic", count=len(TASKS)),
        "recipe": Recipe(prompts_per_step=NEEDED, group_size=GROUP_SIZE, max_sequence_length=128),
        "sampling": Sampling(max_completion_tokens=64, groups_per_submission=GROUPS),
        "length_reward": None,
        "validation": Validation(claim_seconds=1),
        "storage": StorageSpec(),
        "addresses": addresses,
        "roster": sign(roster, run_key),
        "run_key": run_key.public,
        "pools": [PoolTerms(name="pool", open=True)],
    }
    return RunConfig.model_validate({**fields, **changes})


def new_role_keys() -> dict[Role, PrivateKey]:
    return {role: PrivateKey.generate() for role in ROLES}


def prepare(store: Store) -> None:
    """What the prepare Job leaves."""
    digest = tasks_digest(TASKS)
    store.put(keys.task_table(digest), write_tasks(TASKS))
    store.put(keys.package(PACKAGE.sha256), WHEEL)
    prepared = Prepared(
        run=RUN,
        model_id="tiny-model",
        environment="arithmetic",
        environment_digest="e" * 64,
        tasks_digest=digest,
        task_count=len(TASKS),
        proof_profile=PROOF_PROFILE,
        packages=[PACKAGE],
    )
    store.put(keys.PREPARED, prepared.to_json())


def publish(store: Store, trainer: PrivateKey, version: int, weights: str | None = None) -> VersionAnnouncement:
    """Seal a version in the store, as the publisher does before it announces."""
    digest = weights or hashlib.sha256(f"weights {version}".encode()).hexdigest()
    manifest = WeightsManifest(
        run=RUN, version=version, model="tiny-model", sha256=digest, open_digest="0" * 64, shards=["1" * 64]
    )
    file = CheckpointFile(name="model.safetensors", size=1)
    opened = VersionOpen(run=RUN, version=version, files=[file], shard_size=1024, shard_count=1)
    store.put(keys.version_open(version), sign(opened, trainer).to_json())
    store.put(keys.version_weights(version), sign(manifest, trainer).to_json())
    return VersionAnnouncement(run=RUN, version=version, weights_digest=digest, total_size=1)


def verdict_on(
    job: ValidationJob,
    outcome: Outcome = "accept",
    reason: RejectReason | None = None,
    *,
    version: int | None = None,
    rewards: list[float | None] | None = None,
    evidence: str = "",
) -> Verdict:
    """A validator's finding; by default it accepts, and every group carries signal (rewards 1, 0, 1, 0)."""
    rows = (GROUPS if job.part is None else len(job.part.groups)) * GROUP_SIZE
    given = rewards if rewards is not None else [float(n % 2 == 0) for n in range(rows)]
    accepted = outcome == "accept"
    return Verdict(
        run=job.run,
        node=job.node,
        lease=job.lease,
        step=job.step,
        submission=job.submission,
        sha256=job.sha256,
        policy_version=job.min_version if version is None else version,
        outcome=outcome,
        reason=reason,
        evidence=evidence,
        rewards=[RowReward(task_reward=r, length_penalty=None if r is None else 0.0, reward=r) for r in given]
        if accepted
        else [],
        rows=rows if accepted else 0,
        completion_tokens=100 if accepted else 0,
        part=job.part,
    )


def ledger(store: Store) -> list[SimpleNamespace]:
    """Every entry, in order."""
    return [flat(Signed[LedgerEntry].from_json(store.get(info.key)).document) for info in store.list(keys.LEDGER)]


@dataclass
class Node:
    """A worker's machine, by hand: what the agent does, one request at a time."""

    stack: "Stack"
    key: PrivateKey = field(default_factory=PrivateKey.generate)

    def __post_init__(self) -> None:
        self.discovery = SignedClient(self.stack.addresses.discovery, self.key)
        self.orchestrator = SignedClient(self.stack.addresses.orchestrator, self.key)

    @property
    def id(self) -> str:
        return self.key.public

    def register(self) -> None:
        registration = Registration(
            node=self.id,
            run=RUN,
            pool="pool",
            software_version="test",
            hardware=Hardware(cpus=1, memory_bytes=1, disk_free_bytes=1),
        )
        self.discovery.call("POST", "/v1/nodes", registration, Registered)

    def invite(self) -> Signed[Invite]:
        invite = self.discovery.call("GET", f"/v1/nodes/{self.id}/invite?wait_seconds=20", reply=Signed[Invite])
        assert invite is not None, "no invite within 20 s"
        return invite

    def beat(self, invite: Signed[Invite] | None = None) -> HeartbeatReply:
        reply = self.orchestrator.call("POST", "/v1/heartbeats", Heartbeat(node=self.id, invite=invite), HeartbeatReply)
        assert reply is not None
        return reply

    def join(self) -> "Node":
        self.register()
        assert self.beat(self.invite()).state == "Healthy"
        return self

    def step(self) -> StepInfo | None:
        return self.orchestrator.call("GET", "/v1/step", reply=StepInfo)

    def lease(self, step: int) -> Lease:
        lease = self.orchestrator.call("POST", "/v1/leases", LeaseRequest(node=self.id, step=step), Lease)
        assert lease is not None
        return lease

    def grant(self, lease: Lease, data: bytes) -> UploadGrant:
        request = UploadRequest(node=self.id, lease=lease.lease, size=len(data), sha256=sha(data))
        grant = self.orchestrator.call("POST", "/v1/uploads", request, UploadGrant)
        assert grant is not None
        return grant

    def confirm(self, lease: Lease, data: bytes) -> SubmissionReceipt:
        notice = SubmissionNotice(node=self.id, lease=lease.lease, size=len(data), sha256=sha(data), groups=GROUPS)
        receipt = self.orchestrator.call("POST", "/v1/submissions", notice, SubmissionReceipt)
        assert receipt is not None
        return receipt

    def hand_in(self, step: int) -> tuple[Lease, bytes]:
        """A whole submission: lease, grant, upload, notice."""
        lease = self.lease(step)
        data = f"rollouts of {self.id} for {step}/{lease.submission}".encode()
        assert post(self.grant(lease, data), data).status_code == 204
        assert self.confirm(lease, data).status == "queued"
        return lease, data


def post(grant: UploadGrant, data: bytes) -> httpx.Response:
    return httpx.post(grant.url, data=grant.fields, files={"file": ("rollouts.parquet", data)}, **PLAIN)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Stack:
    """Redis, discovery and orchestrator as processes on one loopback address, over a folder store."""

    def __init__(self, folder: Path, address: str, public_discovery: str | None = None, **changes: object) -> None:
        self.folder, self.address = folder, address
        self.redis = redis(address, folder)
        self.addresses = Addresses(
            discovery=f"http://{address}:8081",
            orchestrator=f"http://{address}:8080",
            origin=f"http://{address}:8090",
            relays=[f"http://{address}:8091"],
            redis=self.redis.url,
            public_discovery=public_discovery,
        )
        self.role_keys, self.run_key = new_role_keys(), PrivateKey.generate()
        self.config = config(self.addresses, self.role_keys, self.run_key, **changes)
        (folder / "store").mkdir()
        self.store = open_folder(folder / "store", f"shoal/{RUN}", deadline_seconds=5)
        prepare(self.store)
        self.discovery = self._service("discovery", 8081)
        self.orchestrator = self._service("orchestrator", 8080)
        self.trainer = SignedClient(self.addresses.orchestrator, self.role_keys["trainer"])
        self.validator = SignedClient(self.addresses.orchestrator, self.role_keys["validator"])

    def _service(self, role: Role, port: int) -> Server:
        home = self.folder / role
        for name in ("config", "secrets", "tmp", "run"):
            (home / name).mkdir(parents=True)
        (home / "config" / "run.json").write_bytes(self.config.to_json())
        (home / "secrets" / "role.pem").write_bytes(self.role_keys[role].to_pem())
        (home / "secrets" / "run_secret").write_bytes(SECRET)
        (home / "secrets" / "admin_token").write_text(f"{ADMIN_TOKEN}\n")
        (home / "store").symlink_to(self.folder / "store")
        command = [sys.executable, "-m", f"shoal.{role}"]
        return Server(command, self.address, port, home, environment(home, self.address, role))

    def start(self) -> None:
        for server in (self.redis, self.discovery, self.orchestrator):
            server.start()
        wait_until("the orchestrator to be ready", lambda: ready(self.addresses.orchestrator))

    def close(self) -> None:
        for server in (self.orchestrator, self.discovery, self.redis):
            server.stop()

    def client(self) -> Redis:
        return Redis.from_url(self.redis.url, decode_responses=True)

    def announce(self, version: int) -> None:
        announcement = publish(self.store, self.role_keys["trainer"], version)
        self.trainer.call("POST", "/v1/versions", announcement)

    def claim(self, validator: str = "validator-0", wait: int = 10) -> ValidationJob | None:
        path = f"/v1/claims?wait_seconds={wait}"
        return self.validator.call("POST", path, ClaimRequest(validator=validator), ValidationJob)

    def judge(self, verdict: Verdict) -> None:
        self.validator.call("POST", "/v1/verdicts", sign(verdict, self.role_keys["validator"]))

    def progress(self) -> RunProgress:
        progress = SignedClient(self.addresses.orchestrator).call("GET", "/v1/run", reply=RunProgress)
        assert progress is not None
        return progress


def environment(home: Path, address: str, role: str) -> dict[str, str]:
    """The environment of a container of ours (docs/architecture.md), and where the sources are."""
    return {
        "SHOAL_HOME": str(home),
        "SHOAL_BIND": address,
        "SHOAL_POD": f"{RUN}-{role}",
        "SHOAL_ROLE": role,
        "PYTHONPATH": str(ROOT / "workloads"),
    }


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", **PLAIN, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def refused(action: Callable[[], object]) -> Refused:
    """The refusal that `action` meets; fails when it is not refused."""
    try:
        action()
    except Refused as answer:
        return answer
    raise AssertionError("was not refused")


def node_config(stack: Stack) -> NodeConfig:
    return NodeConfig(
        run=RUN,
        pool="pool",
        discovery=stack.addresses.discovery,
        roster=stack.config.roster,
        run_key=stack.config.run_key,
    )


def fill_step(stack: Stack, node: Node, step: int) -> None:
    """Two accepted files of a node, which are what a step needs."""
    for _ in range(2):
        node.hand_in(step)
        job = stack.claim()
        assert job is not None
        renewal = ClaimRenewal(validator="validator-0", node=job.node, sha256=job.sha256)
        stack.validator.call("POST", "/v1/claim-renewals", renewal)
        stack.judge(verdict_on(job))
