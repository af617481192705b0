"""A running service with the demo's settings, and contenders who join it, ask for work and hand in files as nodes do.

Redis, discovery, orchestrator and two validators are the real processes over a folder store; the real prepare brings the demo's base model,
versions are published by the publisher's code, completions come from a real vLLM. What differs between contenders is in `cheats`.
"""

import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.trust.demo_run import VersionPublisher, Workshop
from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.in_process import paper_config
from benchmarks.trust.right_model import RightModel
from transformers import AutoTokenizer

from protocol_stack import RUN, SECRET, Node, Stack, environment, ledger, post, sha
from servers import ROOT, Server, wait_until
from shoal import environments
from shoal.contracts import keys
from shoal.contracts.model_source import ModelSource
from shoal.contracts.pools import PoolTerms, membership_proof, pool_ticket
from shoal.contracts.protocol import (
    Hardware,
    Lease,
    Registered,
    Registration,
    StepInfo,
    SubmissionNotice,
    SubmissionReceipt,
)
from shoal.contracts.rollouts import Rollout, write_rollouts
from shoal.contracts.run import PublicRun, RunConfig
from shoal.contracts.signed import Signed
from shoal.contracts.task_table import read_tasks
from shoal.contracts.verdicts import Verdict
from shoal.environments.tokens import eos_token_ids
from shoal.inference.completions import Completion, Request
from shoal.inference.rollouts import PlannedRow
from shoal.storage.store import NotFound
from shoal.transport import Refused
from warm_model import warm_model

PREPARE_SECONDS = 400.0
VERDICT_SECONDS = 300.0
BEAT_SECONDS = 8.0
"""A node that misses three beats of 10 s is dead."""
WAVE = 10
"""Leases held at once at first; all are handed in before the first expires, a minute later, or are asked for again, fewer at once."""
JOINING = 6
CPU_POOL, TRUSTED_POOL = "pool", "trusted-pool"
"""Tokens of the first are drawn again; for those of the second, whose members have a ticket, there are the checks of distributions alone."""
POOLS = [
    PoolTerms(name=CPU_POOL, open=True),
    PoolTerms(name=TRUSTED_POOL, sampler="none"),
]


def demo_fields() -> dict[str, object]:
    """The demo's `RunConfig`, with its model brought, but for who and where: those are the test's own."""
    demo = paper_config()
    own = {"run", "addresses", "roster", "run_key", "pools"}
    fields = {name: getattr(demo, name) for name in RunConfig.model_fields if name not in own}
    return fields | {"model": ModelSource(path=str(warm_model()))}


@dataclass
class Contender(Node):
    """A node whose file may be anything. `pool` says by which rule its tokens are drawn, by the run's configuration."""

    pool: str = CPU_POOL

    def register(self) -> None:
        registration = Registration(
            node=self.id,
            run=RUN,
            pool=self.pool,
            software_version="test",
            hardware=Hardware(cpus=1, memory_bytes=1, disk_free_bytes=1, gpus=0),
            proof=membership_proof(pool_ticket(SECRET, self.pool), self.id) if self.pool == TRUSTED_POOL else None,
        )
        self.discovery.call("POST", "/v1/nodes", registration, Registered)

    def bring(self, lease: Lease, data: bytes, groups: int) -> Refused | None:
        """Upload and confirm; what the orchestrator refused, if it did."""
        try:
            posted = post(self.grant(lease, data), data)
            assert posted.status_code == 204, posted.text
            notice = SubmissionNotice(node=self.id, lease=lease.lease, size=len(data), sha256=sha(data), groups=groups)
            self.orchestrator.call("POST", "/v1/submissions", notice, SubmissionReceipt)
        except Refused as answer:
            return answer
        return None


@dataclass
class Entry:
    """One contender at work on one lease."""

    arena: "Arena"
    node: Contender
    step: StepInfo
    lease: Lease
    planned: list[PlannedRow]
    completions: list[Completion] = field(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        """What an honest worker asks of its engine."""
        return [row.request for row in self.planned]

    def rows(self) -> list[Rollout]:
        """What an honest worker writes of its completions."""
        return self.arena.workshop.rows(self.planned, self.completions, self.lease, self.arena.version)

    def write(self, rows: Sequence[Rollout], weights_digest: str | None = None) -> bytes:
        """The file."""
        return write_rollouts(rows, self.arena.workshop.metadata(weights_digest or self.arena.digest))


@dataclass(frozen=True)
class Outcome:
    """What became of a file. `opinions` counts the findings that waited for a second validator's."""

    sha256: str
    refusal: Refused | None
    verdict: Verdict | None
    opinions: int

    @property
    def came_late(self) -> bool:
        """Whether the lease was over: nothing was judged, and the node asks for another, as an agent does."""
        return self.refusal is not None and self.refusal.code == "lease-over"


class Arena(Stack):
    """The service; `prepare`, `start`, `open_floor`, then `play`."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        """`addresses` are of the service and of each validator."""
        super().__init__(folder, addresses[0], **demo_fields(), pools=POOLS)
        self.store.delete(keys.PREPARED)  # the stack's own; the demo's is made by `prepare`
        self.validators = [self._validator(number, address) for number, address in enumerate(addresses[1:])]
        self._publisher = VersionPublisher(
            self.config,
            self.role_keys["trainer"],
            self.store,
            folder / "publisher",
            lambda announcement: self.trainer.call("POST", "/v1/versions", announcement),
        )
        self.version, self.digest = -1, ""
        self.base = folder / "base"
        self.most = WAVE
        self._alive: set[str] = set()
        self._contenders: dict[str, Contender] = {}
        self._stop = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def _validator(self, number: int, address: str) -> Server:
        home = self._home(f"validator-{number}", "validator")
        settings = environment(home, address, "validator") | {"SHOAL_POD": f"{RUN}-validator-{number}"}
        return Server([sys.executable, "-m", "shoal.validation"], address, 9106, home, settings)

    def _home(self, name: str, role: str) -> Path:
        home = self.folder / name
        for part in ("config", "secrets", "tmp", "run"):
            (home / part).mkdir(parents=True)
        (home / "config" / "run.json").write_bytes(self.config.to_json())
        (home / "secrets" / "role.pem").write_bytes(self.role_keys[role].to_pem())
        (home / "store").symlink_to(self.folder / "store")
        return home

    def prepare(self) -> None:
        """Bring the base model and make the task table, as the Job does."""
        home = self._home("prepare", "validator")
        with (home / "log").open("wb") as log:
            subprocess.run(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "shoal.environments.prepare"],
                env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **environment(home, self.address, "prepare")},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                check=True,
                timeout=PREPARE_SECONDS,
            )

    def start(self) -> None:
        self.base.mkdir()
        for info in self.store.list(keys.BASE_MODEL):
            self.store.get_to_file(info.key, self.base / info.key.removeprefix(keys.BASE_MODEL))
        super().start()
        for validator in self.validators:
            validator.start()

    def publish(self, version: int, folder: Path) -> None:
        """Make a checkpoint the newest policy version, which contenders then claim to use."""
        self.digest = self._publisher.publish(version, folder)
        self.version, self.model = version, RightModel(folder)

    def admit(self, pools: Sequence[str]) -> list[Contender]:
        """A new key for each of `pools`, admitted and kept alive by heartbeats."""
        new = [Contender(self, pool=pool) for pool in pools]
        if not self._beating.is_alive():
            self._beating.start()

        def join(node: Contender) -> None:
            node.join()
            self._contenders[node.id] = node
            self._alive.add(node.id)

        with ThreadPoolExecutor(JOINING) as pool:
            list(pool.map(join, new))
        return new

    def open_workshop(self, node: Node) -> None:
        """What any node may know of the run, asked for as a node does."""
        public = node.orchestrator.call("GET", "/v1/public", reply=PublicRun)
        assert public is not None
        tasks = read_tasks(self.store.get(keys.task_table(public.tasks_digest)))
        self.workshop = Workshop(
            public=public,
            tasks=tasks,
            environment=environments.load(public.environment),
            tokenizer=AutoTokenizer.from_pretrained(self.base),
            eos_token_ids=eos_token_ids(self.base),
        )

    def enter(self, node: Contender) -> Entry | None:
        """A lease of the step that the service shows; None when enough is under way."""
        step = node.step()
        if step is None:
            return None
        try:
            lease = node.lease(step.step)
        except Refused as answer:
            if answer.problem.status != 409:
                raise
            return None
        return Entry(self, node, step, lease, self.workshop.plan(step, lease))

    def wave(self, nodes: Sequence[Contender]) -> list[Entry]:
        """Entries of as many of these nodes, from the first, as get a lease now, `most` of them; waits until one does."""

        def some() -> list[Entry] | None:
            entries: list[Entry] = []
            for node in nodes[: self.most]:
                entry = self.enter(node)
                if entry is None:
                    break
                entries.append(entry)
            return entries or None

        return wait_until("a lease", some, seconds=60, interval=0.5)

    def settle(self, entries: Iterable[tuple[Entry, bytes]]) -> list[Outcome]:
        """Hand in each entry's file and wait for what becomes of all of them."""
        groups = self.config.sampling.groups_per_submission
        brought = [(entry, data, entry.node.bring(entry.lease, data, groups)) for entry, data in entries]
        outcomes = [self._outcome(entry.node, data, refusal) for entry, data, refusal in brought]
        if any(outcome.came_late for outcome in outcomes):
            self.most = max(1, self.most // 2)  # this machine is busy: fewer leases at once
        return outcomes

    def _outcome(self, node: Contender, data: bytes, refusal: Refused | None) -> Outcome:
        digest = sha(data)
        if refusal is not None:
            return Outcome(digest, refusal, None, 0)

        def decided() -> Verdict | None:
            try:
                signed = Signed[Verdict].from_json(self.store.get(keys.verdict(node.id, digest)))
            except NotFound:
                return None
            return signed.document

        verdict = wait_until(f"a verdict on {digest[:12]}", decided, seconds=VERDICT_SECONDS, interval=0.2)
        if verdict.outcome == "reject":
            self._alive.discard(node.id)
        opinions = len(list(self.store.list(keys.opinions(node.id, digest))))
        return Outcome(digest, None, verdict, opinions)

    def ledger_has(self, kind: str, node: str | None = None) -> bool:
        """Whether the ledger has an entry of this kind (on a node)."""
        return any(entry.kind == kind and node in (None, entry.node) for entry in ledger(self.store))

    def close(self) -> None:
        self._stop.set()
        for validator in self.validators:
            if validator.process is not None:
                validator.kill()  # they hold nothing, and would wait for their claim to be answered
        super().close()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            for name in sorted(self._alive):
                try:
                    self._contenders[name].beat()
                except (
                    Exception
                ):  # evicted meanwhile, or the service is being stopped: what a node notices is not the point here
                    continue


def generate(
    engine: EngineProcess, entries: Sequence[Entry], folders: Sequence[Path], asked: Sequence[Sequence[Request]]
) -> list[list[Completion]]:
    """Completions of `asked[i]` by the weights in `folders[i]` for each entry; entries with the same weights share batches."""
    made: list[list[Completion]] = [[] for _ in entries]
    for folder in dict.fromkeys(folders):
        places = [place for place, wanted in enumerate(folders) if wanted == folder and asked[place]]
        found = engine.generate(folder, [request for place in places for request in asked[place]]).completions
        for place in places:
            made[place], found = found[: len(asked[place])], found[len(asked[place]) :]
    return made
