"""A thousand nodes that come, work and go for minutes, before one orchestrator, one discovery and one Redis: is anything lost, doubled, or piled up?

Every node goes through the door (registration, invite by long poll, heartbeats) and does what an agent does with a file of rollouts: step, lease,
upload grant, upload, notice. Files hold no rollouts: two simulated validators accept them all, so that the load is the protocol's. Lives are
exponential; half of the nodes that end hold a lease. The orchestrator is killed (SIGKILL) once, early, and started again.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.protocol.usage import cpu_seconds, resident_bytes
from benchmarks.protocol.wire import Answer, Wire
from protocol_stack import GROUP_SIZE, GROUPS, RUN, Stack, ledger, sha, verdict_on
from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.protocol import (
    HEARTBEAT_SECONDS,
    ClaimRequest,
    Hardware,
    Heartbeat,
    Invite,
    Lease,
    LeaseRequest,
    Registration,
    StepInfo,
    SubmissionNotice,
    SubmissionReceipt,
    UploadGrant,
    UploadRequest,
    ValidationJob,
)
from shoal.contracts.recipe import Recipe
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import StepBatch
from shoal.crypto.keys import PrivateKey
from shoal.storage import Store

LIFE_SECONDS = 300.0
WORK_SECONDS = 150.0
"""Between two files of a node, on average."""
ARRIVE_SECONDS = 60.0  # in which the first nodes come
PAUSE_SECONDS = 1.0  # before another try when the service is away
DRAIN_SECONDS = 150.0
KILL_AT, STEADY_FROM = 0.2, 0.4
"""Shares of the time: when the orchestrator is killed, and from when on its memory is compared with that at the end."""
VALIDATORS = 2
PROMPTS_PER_STEP = 40  # twenty files a step


@dataclass
class Churn:
    nodes: int
    minutes: float
    joined: int
    ended: int
    confirmed: int
    accepted: int
    expired: int
    lost: int
    doubled: int
    steps: int
    heartbeats: int
    refusals: dict[str, int]
    orchestrator_cpu_seconds: float
    memory_bytes: int
    memory_growth_bytes: int


@dataclass
class Crowd:
    """The nodes and what became of their work."""

    stack: Stack
    until: float = 0.0  # on the loop's clock
    joined: int = 0
    ended: int = 0
    heartbeats: int = 0
    confirmed: dict[tuple[str, str], str] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)

    def left(self) -> float:
        return self.until - asyncio.get_running_loop().time()

    async def ask(self, wire: Wire, method: str, path: str, body: Contract | None = None) -> Answer | None:
        """One request, repeated while the service is away or says later; None when it was refused, or time is over."""
        while self.left() > 0:
            try:
                answer = await wire.ask(method, path, body)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                wire.close()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status < 300:
                return answer
            if answer.status not in (429, 500, 502, 503):
                self.refusals[f"{answer.status} {path.split('?')[0].split('/')[2]}"] += 1
                return None
            await asyncio.sleep(answer.retry_after or PAUSE_SECONDS)
        return None

    async def place(self, arrive: float) -> None:
        """One place in the crowd: a node, and another with a new key when it has ended."""
        await asyncio.sleep(arrive)
        while self.left() > 0:
            await Node(self, PrivateKey.generate()).live()


@dataclass
class Node:
    """One machine from its registration to its end."""

    crowd: Crowd
    key: PrivateKey

    def __post_init__(self) -> None:
        addresses = self.crowd.stack.addresses
        self.discovery = Wire(addresses.discovery, self.key)
        self.control = Wire(addresses.orchestrator, self.key)  # an agent's heartbeats and its worker's questions
        self.work_line = Wire(addresses.orchestrator, self.key)

    async def live(self) -> None:
        crowd = self.crowd
        try:
            if not await self._join():
                return
            crowd.joined += 1
            life = min(crowd.left(), 20.0 + random.expovariate(1.0 / LIFE_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(life, 0.0)):
                    await asyncio.gather(self._beat(), self._work())
        finally:
            crowd.ended += 1
            for wire in (self.discovery, self.control, self.work_line):
                wire.close()

    async def _join(self) -> bool:
        node = self.key.public
        registration = Registration(
            node=node,
            run=RUN,
            pool="pool",
            software_version="benchmark",
            hardware=Hardware(cpus=1, memory_bytes=1, disk_free_bytes=1),
        )
        if await self.crowd.ask(self.discovery, "POST", "/v1/nodes", registration) is None:
            return False
        while True:
            answer = await self.crowd.ask(self.discovery, "GET", f"/v1/nodes/{node}/invite?wait_seconds=20")
            if answer is None:
                return False
            if answer.status == 200:
                break
        invite = Signed[Invite].from_json(answer.body)
        self.discovery.close()
        beat = Heartbeat(node=node, invite=invite)
        return await self.crowd.ask(self.control, "POST", "/v1/heartbeats", beat) is not None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if await self.crowd.ask(self.control, "POST", "/v1/heartbeats", Heartbeat(node=self.key.public)) is None:
                await self._join()  # dead in its absence: an agent joins again
            self.crowd.heartbeats += 1

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(random.expovariate(1.0 / WORK_SECONDS))
            step = await self.step()
            lease = await self.lease(step.step) if step is not None else None
            if lease is not None:
                await self.hand_in(lease, GROUPS)

    async def step(self, query: str = "") -> StepInfo | None:
        """The step to work on; None while there is none."""
        answer = await self.crowd.ask(self.work_line, "GET", f"/v1/step{query}")
        return None if answer is None or answer.status == 204 else StepInfo.from_json(answer.body)

    async def lease(self, step: int, held: list[str] | None = None) -> Lease | None:
        """A lease for it; None when it was refused. `held`: leases that the node works on."""
        request = LeaseRequest(node=self.key.public, step=step, held=held)
        answer = await self.crowd.ask(self.work_line, "POST", "/v1/leases", request)
        return None if answer is None or answer.status == 204 else Lease.from_json(answer.body)

    async def hand_in(self, lease: Lease, groups: int) -> None:
        """Grant, upload and notice of a file without rollouts."""
        crowd, node, wire = self.crowd, self.key.public, self.work_line
        data = secrets.token_bytes(2000)
        digest = sha(data)
        wanted = UploadRequest(node=node, lease=lease.lease, size=len(data), sha256=digest)
        answer = await crowd.ask(wire, "POST", "/v1/uploads", wanted)
        if answer is None:
            return
        grant = UploadGrant.from_json(answer.body)
        head, form = _form(grant.fields, data)
        posted = await wire.send("POST", "/v1/staging", head, form)
        if posted.status != 204:
            crowd.refusals[f"{posted.status} staging"] += 1
            return
        notice = SubmissionNotice(node=node, lease=lease.lease, size=len(data), sha256=digest, groups=groups)
        answer = await crowd.ask(wire, "POST", "/v1/submissions", notice)
        if answer is not None:
            crowd.confirmed[(node, digest)] = SubmissionReceipt.from_json(answer.body).status


def _form(fields: dict[str, str], data: bytes) -> tuple[str, bytes]:
    """Header lines and body of an upload."""
    line = secrets.token_hex(16)
    parts = [
        f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    parts.append(f'--{line}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'.encode() + data)
    return f"Content-Type: multipart/form-data; boundary={line}\r\n", b"".join(parts) + f"\r\n--{line}--\r\n".encode()


async def _forever(task: Callable[[], Awaitable[None]]) -> None:
    """Repeat a task of the trusted side; what fails while the orchestrator is away is tried again, as its real clients do."""
    while True:
        try:
            await task()
        except Exception:
            await asyncio.sleep(PAUSE_SECONDS)


async def _validate(stack: Stack, wire: Wire, name: str) -> None:
    answer = await wire.ask("POST", "/v1/claims?wait_seconds=5", ClaimRequest(validator=name))
    if answer.status == 200:
        verdict = sign(verdict_on(ValidationJob.from_json(answer.body)), stack.role_keys["validator"])
        await wire.ask("POST", "/v1/verdicts", verdict)


async def _train(stack: Stack) -> None:
    """Announce a version for every sealed step."""
    progress = await asyncio.to_thread(stack.progress)
    newest = -1 if progress.latest_version is None else progress.latest_version
    if progress.open_step is None or newest < progress.open_step:
        await asyncio.to_thread(stack.announce, newest + 1)
    else:
        await asyncio.sleep(0.5)


async def run(folder: Path, address: str, nodes: int, minutes: float) -> Churn:
    """The whole of it on services of its own, their data below `folder`."""
    recipe = Recipe(prompts_per_step=PROMPTS_PER_STEP, group_size=GROUP_SIZE, max_sequence_length=128)
    stack = Stack(folder, address, recipe=recipe, steps=100_000)
    try:
        stack.start()
        stack.announce(0)
        return await measure(stack, nodes, minutes)
    finally:
        stack.close()


async def measure(stack: Stack, nodes: int, minutes: float) -> Churn:
    """Run the crowd; everything confirmed is looked up in the store afterwards."""
    loop = asyncio.get_running_loop()
    seconds = 60.0 * minutes
    crowd = Crowd(stack, until=loop.time() + seconds)
    trusted = [asyncio.create_task(_forever(lambda: _train(stack)))]
    for number in range(VALIDATORS):
        wire = Wire(stack.addresses.orchestrator, stack.role_keys["validator"])
        trusted.append(asyncio.create_task(_forever(partial(_validate, stack, wire, f"v{number}"))))
    places = [asyncio.create_task(crowd.place(ARRIVE_SECONDS * number / nodes)) for number in range(nodes)]
    await asyncio.sleep(KILL_AT * seconds)
    await asyncio.to_thread(stack.orchestrator.kill)
    await asyncio.to_thread(stack.orchestrator.start)
    assert stack.orchestrator.process is not None
    process = stack.orchestrator.process.pid
    await asyncio.sleep(max(0.0, crowd.left() - (1.0 - STEADY_FROM) * seconds))
    steady = resident_bytes(process)
    await asyncio.sleep(max(0.0, crowd.left()))
    await asyncio.gather(*places, return_exceptions=True)
    grown, used = resident_bytes(process), cpu_seconds(process)
    waiting = await drained(stack, crowd)
    for task in trusted:
        task.cancel()
    await asyncio.gather(*trusted, return_exceptions=True)
    told = Told.of(stack.store)
    return Churn(
        nodes=nodes,
        minutes=minutes,
        joined=crowd.joined,
        ended=crowd.ended,
        confirmed=len(crowd.confirmed),
        accepted=len(told.accepted),
        expired=sum(status == "expired" for status in crowd.confirmed.values()),
        lost=len(waiting),
        doubled=told.doubled,
        steps=told.steps,
        heartbeats=crowd.heartbeats,
        refusals=dict(crowd.refusals.most_common()),
        orchestrator_cpu_seconds=round(used, 1),
        memory_bytes=grown,
        memory_growth_bytes=grown - steady,
    )


@dataclass(frozen=True)
class Told:
    """What the ledger and the batches say of files: which were accepted, how often one counts twice, how many steps are sealed."""

    accepted: Counter[tuple[str, str]]
    doubled: int
    steps: int

    @classmethod
    def of(cls, store: Store) -> "Told":
        entries = ledger(store)
        accepted = Counter((entry.node, entry.digest) for entry in entries if entry.kind == "accepted")
        sealed = [entry.step for entry in entries if entry.kind == "batch-sealed" and entry.step is not None]
        used_in = Counter(
            (file.node, file.sha256)
            for step in sealed
            for file in StepBatch.from_json(store.get(keys.step_batch(step))).files
        )
        return cls(accepted, sum(count - 1 for found in (accepted, used_in) for count in found.values()), len(sealed))


async def drained(stack: Stack, crowd: Crowd) -> list[tuple[str, str]]:
    """Confirmed files that have no verdict when none has come for `DRAIN_SECONDS`. Validators may have a long queue."""
    end = time.monotonic() + DRAIN_SECONDS
    waiting = [name for name, status in crowd.confirmed.items() if status != "expired"]
    while waiting and time.monotonic() < end:
        left = [name for name in waiting if stack.store.size(keys.verdict(*name)) is None]
        if len(left) < len(waiting):
            waiting, end = left, time.monotonic() + DRAIN_SECONDS
        await asyncio.sleep(PAUSE_SECONDS)
    return waiting
