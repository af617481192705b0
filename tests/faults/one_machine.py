"""A run with one real machine: Redis, discovery, orchestrator, agent, fetch and worker are processes, over a folder store and a relay.

The test itself is the trainer, which publishes a version when a step is full; the validator, which draws again what a file must hold; and a second
node, which takes what the machine leaves. `books` compares what was promised with the ledger and the store, which are the truth.
"""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tiny_policy
from broadcast_peers import OddRelay

from protocol_stack import RUN, SECRET, Node, Stack, environment, ledger, node_config, post, ready, sha, verdict_on
from servers import ROOT, Loopback, Server, wait_until
from shoal.broadcast import publishing
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.completions import Sampling
from shoal.contracts.pools import EngineSettings
from shoal.contracts.problems import ProblemCode
from shoal.contracts.protocol import (
    Lease,
    LeaseRequest,
    SubmissionNotice,
    SubmissionReceipt,
    ValidationJob,
    VersionAnnouncement,
)
from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import read_rollouts
from shoal.contracts.run import AgentState, Prepared
from shoal.contracts.settings import Broadcast, Rollouts
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import StepBatch
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.contracts.weights import WeightsManifest
from shoal.contracts.work import draw
from shoal.orchestrator.work.records import SubmissionRecord
from shoal.sampling.draw import beacon
from shoal.storage import NotFound
from shoal.transport import Refused, SignedClient
from small_disks import SmallDisk

SCRIPT = Path(__file__).with_name("held_process.py")
NEEDED, GROUPS = 8, 2
SHARD_BYTES = 128 << 10
STORE_BYTES, TMP_BYTES = 64 << 20, 4 << 20
ALONE_SECONDS, BEAT_SECONDS = 2.5, 8.0
"""Between two leases of the second node: the machine shall do most of the work."""
STEP_SECONDS, OUTCOME_SECONDS = 300.0, 60.0


def process(home: Path, address: str, role: str, port: int) -> Server:
    """One of a machine's processes, which a test can hold."""
    told = environment(home, address, role)
    told["PYTHONPATH"] = ":".join([told["PYTHONPATH"], str(ROOT)])
    command = [sys.executable, str(SCRIPT), role]
    if role == "fetch":
        command = [sys.executable, "-m", "shoal.broadcast.fetch"]
    logs = home / f"{role}-log"
    logs.mkdir(parents=True, exist_ok=True)
    return Server(command, address, port, logs, told | {"OMP_NUM_THREADS": "1", "HOME": str(home)})


class HeldStack(Stack):
    """The run's services. Rows are of several versions, and leases may be handed in in parts; they live for seconds."""

    def __init__(self, folder: Path, address: str, relay: str) -> None:
        super().__init__(
            folder,
            address,
            steps=500,
            recipe=Recipe(prompts_per_step=NEEDED, group_size=2, max_sequence_length=128),
            sampling=Sampling(max_completion_tokens=64, groups_per_submission=GROUPS, temperature=0.8),
            validation=Validation(claim_seconds=5, probation_files=0),
            rollouts=Rollouts(versions="Several", hand_in_every_seconds=10),
            broadcast=Broadcast(shard_bytes=SHARD_BYTES, anchor_every=1),
        )
        self.addresses = self.addresses.model_copy(update={"relays": [relay]})
        self.config = self.config.model_copy(update={"addresses": self.addresses})
        for role in ("discovery", "orchestrator"):
            (folder / role / "config" / "run.json").write_bytes(self.config.to_json())
        self.orchestrator.command = [sys.executable, str(SCRIPT), "orchestrator"]
        self.orchestrator.environment["PYTHONPATH"] += f":{ROOT}"
        prepared = Prepared.from_json(self.store.get(keys.PREPARED))
        self.disk = SmallDisk(folder / "store", STORE_BYTES)  # over what was written: it is written again
        tasks = tiny_policy.TASKS
        told = {
            "environment_digest": tiny_policy.PUBLIC.environment_digest,
            "tasks_digest": tasks_digest(tasks),
            "task_count": len(tasks),
            "packages": [],
        }
        self.store.put(keys.task_table(tasks_digest(tasks)), write_tasks(tasks))
        self.store.put(keys.PREPARED, prepared.model_copy(update=told).to_json())

    def close(self) -> None:
        super().close()
        self.disk.unmount()


class Relay:
    """What trainer and relay do for fetch: a version is cut, served, and lost as the test says."""

    def __init__(self, folder: Path, loopback: Loopback) -> None:
        self.www = folder / "www"
        self.www.mkdir()
        self._outbox = folder / "outbox"
        self.served = OddRelay(self.www, loopback)

    def publish(self, stack: Stack, version: int) -> None:
        """Serve a version, seal it in the store and announce it."""
        tree, folder = Tree(self.www), self._outbox / keys.version_name(version)
        tiny_policy.make_policy(folder, version)
        trainer = stack.role_keys["trainer"]
        manifest: WeightsManifest = publishing.cut_into(tree, folder, stack.config, version, trainer, lambda: None)
        sealing = sign(manifest, trainer).to_json()
        publishing.seal(tree, version, manifest, sealing)
        tree.write_index()
        stack.store.put(keys.version_open(version), (tree.read(version, "open.json") or b""))
        stack.store.put(keys.version_weights(version), sealing)
        told = VersionAnnouncement(run=RUN, version=version, weights_digest=manifest.sha256, total_size=1 << 20)
        stack.trainer.call("POST", "/v1/versions", told)
        for old in sorted(self._outbox.iterdir())[:-2]:
            shutil.rmtree(old)

    def lose(self) -> None:
        """Every connection breaks behind some bytes of a shard, and all else is not found."""
        self.served.cut_after = SHARD_BYTES // 2
        self.served.twist = lambda path, body: body if path.endswith(".bin") else None

    def find(self) -> None:
        self.served.cut_after = None
        self.served.twist = lambda _, body: body


class Machine:
    """A pool's pod: agent, fetch and worker. What ends by itself is started again, as a kubelet does."""

    def __init__(self, stack: HeldStack, folder: Path, address: str) -> None:
        self.home = folder
        for name in ("config", "key", "run", "weights", "hold", "at"):
            (folder / name).mkdir(parents=True)
        self.disk = SmallDisk(folder / "tmp", TMP_BYTES)
        self.is_kept = True
        """What ends is started again."""
        config = node_config(stack).model_copy(update={"engine": EngineSettings()})
        (folder / "config" / "node.json").write_bytes(config.to_json())
        self.agent = process(folder, address, "agent", 9103)
        self.fetch = process(folder, address, "fetch", 9104)
        self.worker = process(folder, address, "worker", 9105)

    @property
    def processes(self) -> list[Server]:
        return [self.agent, self.fetch, self.worker]

    def start(self) -> None:
        for each in self.processes:
            each.start()

    def stop(self) -> None:
        self.release()
        for each in reversed(self.processes):
            each.stop()
        self.disk.unmount()

    def hold(self, place: str) -> None:
        (self.home / "hold" / place).touch()

    def reached(self, place: str) -> bool:
        return (self.home / "at" / place).exists()

    def release(self) -> None:
        for folder in ("hold", "at"):
            for path in (self.home / folder).iterdir():
                path.unlink(missing_ok=True)

    def start_what_ended(self) -> None:
        for each in self.processes if self.is_kept else ():
            if each.process is not None and each.process.poll() is not None:
                each.start()

    def promised(self) -> set[tuple[str, str]]:
        """Node and digest of each file for which the orchestrator gave a receipt, other than one of a step that was over."""
        path = self.home / "promised"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return {(node, digest) for node, _, digest, status in lines if status != "expired"}

    def said(self, role: str) -> str:
        return (self.home / f"{role}-log" / "log").read_text(errors="replace")


@dataclass
class Books:
    """What went wrong so far, of all cells."""

    lost: list[str]
    doubled: list[str]


class Run:
    """The whole run."""

    def __init__(self, folder: Path, loopback: Loopback) -> None:
        self.relay = Relay(folder, loopback)
        (folder / "s").mkdir()
        self.stack = HeldStack(folder / "s", loopback.address(), self.relay.served.url)
        self.machine = Machine(self.stack, folder / "m", loopback.address())
        self._second_at = self._beat_at = 0.0
        self._files = 0

    def start(self) -> None:
        self.stack.start()
        self.second = Node(self.stack).join()
        self.machine.start()
        self.second.beat()
        socket = SignedClient("http://agent", unix_socket=self.machine.home / "run" / "agent.sock")
        wait_until("the machine to be a member", lambda: is_member(socket), 60)
        self.relay.publish(self.stack, 0)

    def close(self) -> None:
        self.machine.stop()
        self.stack.close()
        self.relay.served.close()

    def answers(self) -> bool:
        return ready(self.stack.addresses.orchestrator)

    @property
    def sealed(self) -> int:
        """Steps that are full, which are the first ones."""
        return sum(info.key.endswith("/batch.json") for info in self.stack.store.list(keys.STEPS))

    def publish_what_is_due(self) -> None:
        """Train: the version of each full step."""
        latest = self.stack.progress().latest_version
        assert latest is not None
        for version in range(latest + 1, self.sealed + 1):
            self.relay.publish(self.stack, version)

    def go_on_until(self, what: str, done: Callable[[], bool]) -> None:
        """Everybody does what they do by themselves, until it is so."""

        def turn() -> bool:
            self.machine.start_what_ended()
            self.judge_all()
            self.publish_what_is_due()
            if time.monotonic() > self._beat_at + BEAT_SECONDS:
                self._beat_at = time.monotonic()
                self.second.beat()
            if time.monotonic() > self._second_at + ALONE_SECONDS:
                self._second_at = time.monotonic()
                self.second_works()
            return done()

        wait_until(what, turn, STEP_SECONDS, interval=0.25)

    def judge_all(self) -> None:
        while (job := self.stack.claim(wait=0)) is not None:
            if job.node != self.second.id:
                require_drawn(self.stack, job)
            self.stack.judge(verdict_on(job, version=job.min_version))

    def second_works(self) -> None:
        """The second node hands in the rest that the machine left, or a lease of its own."""
        try:
            if (step := self.second.step()) is None:
                return
            request = LeaseRequest(node=self.second.id, step=step.step, held=[], parts=True)
            lease = self.second.orchestrator.call("POST", "/v1/leases", request, Lease)
            assert lease is not None
            self.hand_in(lease)
        except Refused as refused:
            if refused.code == ProblemCode.POOL_FORGOTTEN:  # Redis was lost, and with it who is of which pool
                self.second.register()

    def hand_in(self, lease: Lease) -> None:
        self._files += 1
        data = f"rollouts {self._files} of the second node".encode()
        groups = GROUPS if lease.part is None else len(lease.part.groups)
        assert post(self.second.grant(lease, data), data).status_code == 204
        notice = SubmissionNotice(node=lease.node, lease=lease.lease, size=len(data), sha256=sha(data), groups=groups)
        self.second.orchestrator.call("POST", "/v1/submissions", notice, SubmissionReceipt)

    def books(self) -> Books:
        """Promised files without an outcome, for which the validator has had its time; and files, leases and drawn groups that were accepted, or are
        in a batch, more than once."""
        store, found = self.stack.store, Books([], [])
        promised, ends = self.machine.promised(), time.monotonic() + OUTCOME_SECONDS
        while True:
            self.judge_all()
            accepted = Counter(
                (entry.node, entry.digest) for entry in ledger(store) if entry.kind == "accepted" and entry.digest
            )
            lost = [file for file in promised if not self._has_outcome(file, accepted)]
            if not lost or time.monotonic() > ends:
                break
            time.sleep(0.5)
        found.doubled += [f"file {file} was accepted {times} times" for file, times in accepted.items() if times > 1]
        found.lost += [f"file {file}" for file in lost]
        leases, groups = Counter[str](), Counter[tuple[int, str, int, int]]()
        for node, digest in accepted:
            record = SubmissionRecord.from_json(store.get(keys.submission(node, digest)))
            leases[record.lease] += 1
            part = record.part
            owner, number = (record.node, record.submission) if part is None else part.drawn_for
            groups.update(
                (record.step, owner, number, each) for each in (range(GROUPS) if part is None else part.groups)
            )
        found.doubled += [f"lease {lease}" for lease, times in leases.items() if times > 1]
        found.doubled += [f"group {group}" for group, times in groups.items() if times > 1]
        for step in range(self.sealed):
            batch = StepBatch.from_json(store.get(keys.step_batch(step)))
            used = Counter((file.sha256, prompt) for file in batch.files for prompt in file.prompt_indices)
            found.doubled += [f"step {step}: {group}" for group, times in used.items() if times > 1]
            if sum(used.values()) != NEEDED or any((file.node, file.sha256) not in accepted for file in batch.files):
                found.lost.append(
                    f"step {step} has {sum(used.values())} groups, or some of files that were not accepted"
                )
        return found

    def _has_outcome(self, file: tuple[str, str], accepted: Counter[tuple[str, str]]) -> bool:
        """Accepted, or expired since its step had its groups by then."""
        if file in accepted:
            return True
        try:
            verdict = Signed[Verdict].from_json(self.stack.store.get(keys.verdict(*file))).document
        except NotFound:
            return False
        return verdict.outcome == "expired" and verdict.step < self.sealed


def require_drawn(stack: Stack, job: ValidationJob) -> None:
    """A file of the machine holds exactly the rows that are drawn for its lease, whoever began that."""
    rows, _ = read_rollouts(stack.store.get(keys.upload(job.node, job.sha256)))
    work = tiny_policy.PUBLIC.model_copy(
        update={
            "task_count": len(tiny_policy.TASKS),
            "group_size": stack.config.recipe.group_size,
            "sampling": stack.config.sampling,
            "length_reward": None,
            "async_level": stack.config.async_level,
            "steps": stack.config.steps,
        }
    ).codec.step(job.step)
    drawn = draw(
        work,
        beacon=beacon(SECRET, RUN, job.step),
        run=RUN,
        node=job.node,
        submission=job.submission,
        part=job.part,
    )
    assert [row.seed for row in rows] == [seed for group in drawn for seed in group.seeds]
    assert {(row.node, row.submission) for row in rows} == {(job.node, job.submission)}


def is_member(socket: SignedClient) -> bool:
    state = socket.call("GET", "/v1/state", reply=AgentState)
    return state is not None and state.state == "Healthy" and state.public is not None
