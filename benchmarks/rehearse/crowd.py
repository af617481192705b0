"""Who takes part in a rehearsal: workers, validators, the trainer with its publisher. Each speaks the real protocol, and works by the clock.

In: a `Shape`, the services. Out: `busy`, by the names of the plan's parts; what the clients say they handed in (`Crowd.confirmed`). Generation is
`ClockEngine` at the speed of the shape's GPUs, with rows of several leases in one batch, as workers have them. A check, a pass of training and the
writing of a version take the seconds of `shoal.planner.rates` on their GPU. Versions, files and states pass lines of the plan's rates.
"""

import asyncio
import math
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import NormalDist
from types import SimpleNamespace

from benchmarks.protocol.churn import Crowd, Node
from benchmarks.protocol.wire import Wire
from benchmarks.rehearse.clocks import Busy, Line, RunClock
from benchmarks.rehearse.services import Services
from benchmarks.workers.clock_engine import ClockEngine
from shoal.contracts import keys
from shoal.contracts.protocol import ClaimRequest, Lease, ValidationJob
from shoal.contracts.signed import sign
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.crypto.keys import PrivateKey
from shoal.inference.lease_desk import MOST_LEASES, WANTING_SECONDS
from shoal.planner import step_parts
from shoal.planner.facts import MBIT, WIDTH, PoolFacts, RunFacts, Surroundings
from shoal.planner.lengths import CompletionLengths
from shoal.planner.memory import state_every
from shoal.planner.rates import (
    DECODE_SHARE,
    SWAP_SECONDS,
    TRAINING_SHARE,
)
from shoal.validation.sequential import first_rows

PIECES = 20
"""In which a version passes a line."""
STRIDES = 100
"""Of the longest completion: an engine's step stands for a hundredth of it."""
LOOK_SECONDS = 0.1
"""Real seconds between looks at the store."""
MOST_HASTE = 3.0
"""Nodes ask for work at most this many times as often as they are told to. 300 that asked 80 times as often would fill the orchestrator's core."""


@dataclass(frozen=True)
class Shape:
    """A run as the planner sees it, how its validators are set, and on which steps the rehearsal ends."""

    run: RunFacts
    around: Surroundings
    validation: Validation
    steps: int

    @property
    def fetched_bytes(self) -> float:
        """Of each version, that a holder of the version before fetches, and that a relay gets first."""
        return float(step_parts.delta_bytes(self.run, self.around))

    def in_full_bytes(self, version: int) -> float:
        """That relays and store get of a version beside its delta: all of it where it is an anchor."""
        every = self.run.anchor_every
        return float(self.around.version) if every > 1 and version % every == 0 else 0.0

    def check_seconds(self, rows: int) -> float:
        """Of a validator, for a file of which this many rows are looked at."""
        return step_parts.file_check_seconds(self.run, self.around, rows)


@dataclass
class World:
    """What all share: the clock, lines, and where each part's work is added up."""

    shape: Shape
    services: Services
    clock: RunClock
    crowd: Crowd
    busy: defaultdict[str, Busy] = field(default_factory=lambda: defaultdict(Busy))
    sealed: dict[int, float] = field(default_factory=dict)
    """Step -> when its batch was seen."""
    passed_on: dict[int, list[float]] = field(default_factory=dict)
    """Announced version -> when the origin has sent each piece of it to all relays."""
    joining: int = 0
    """Nodes that have not joined yet."""
    over: bool = False

    def __post_init__(self) -> None:
        around, run = self.shape.around, self.shape.run
        self.store = Line(self.clock, around.store_mbit * MBIT)
        self.relays = [Line(self.clock, around.relay_mbit * MBIT) for _ in range(run.relays)]
        self.origin = Line(self.clock, around.relay_mbit * MBIT)
        self.has_version = asyncio.Condition()
        self.all_joined = asyncio.Event()

    async def announce(self, version: int) -> None:
        """Let nodes fetch a version, which the origin sends to all relays from now on."""
        async with self.has_version:
            piece = len(self.relays) * self.shape.fetched_bytes / PIECES
            self.passed_on[version] = [self.origin.reserve(piece) for _ in range(PIECES)]
            self.has_version.notify_all()

    async def version(self, number: int) -> list[float]:
        """Wait until a version is announced; when each piece of it is at the relays."""
        async with self.has_version:
            await self.has_version.wait_for(lambda: number in self.passed_on)
        return self.passed_on[number]


class ClockNode(Node):
    """One worker: fetches versions, generates by the clock, hands in."""

    def __init__(self, world: World, pool: PoolFacts, number: int, *, stranger: bool) -> None:
        super().__init__(world.crowd, PrivateKey.generate())
        world.joining += 1
        self._world, self._pool, self._number = world, pool, number
        run, around = world.shape.run, world.shape.around
        self._lease_time = step_parts.lease(run, around, pool, stranger=stranger)
        each = step_parts.lengths(around, run)
        stride = max(1, each.limit // STRIDES)
        devices, device = max(1, pool.gpus), around.device(pool.gpus, pool.gpu)
        position = around.prompt_tokens + each.mean_position
        flops = 2.0 * around.model.parameters + step_parts.attention_flops(around, position)
        self.engine = ClockEngine(
            self._lease_time.slots,
            means=(uncut_mean(each),),
            prompt_tokens=around.prompt_tokens,
            weights_bytes=float(WIDTH * around.model.parameters),
            cache_bytes_a_token=float(WIDTH * around.model.layers * around.model.key_values),
            bandwidth=devices * device.bandwidth * DECODE_SHARE,
            token_seconds=flops / (devices * device.flops * TRAINING_SHARE),
            stride=stride,
            limit=max(1, each.limit // stride),
        )
        self._line = Line(world.clock, around.uplink_mbit * MBIT) if stranger else world.store
        self._down = Line(world.clock, around.downlink_mbit * MBIT) if stranger else None
        self._holds = 0
        self._leases: dict[str, tuple[Lease, int]] = {}
        """By id: the lease, and how many rows of it are not done."""
        self._waiting: deque[str] = deque()
        """Rows that have no place in the engine yet, by their lease."""
        self._running: dict[str, str] = {}
        self._more = asyncio.Event()

    async def take_part(self) -> None:
        """Join, and work until all is over."""
        world = self._world
        try:
            joined = await self._join()
        finally:
            world.joining -= 1
            if not world.joining:
                world.all_joined.set()
        if joined:
            self.crowd.joined += 1
            await asyncio.gather(self._beat(), self._fetch(), self._ask(), self._generate())

    async def _fetch(self) -> None:
        """Fetch every version after the first, as holders do; what is newer meanwhile comes after."""
        world, around, run = self._world, self._world.shape.around, self._world.shape.run
        while True:
            version = self._holds + 1
            at_relays = await world.version(version)
            begin, nbytes = world.clock.now(), world.shape.fetched_bytes
            for piece in range(PIECES):
                await world.clock.until(at_relays[piece])
                relay = world.relays[(self._number + piece) % len(world.relays)]
                there = relay.reserve(nbytes / PIECES)
                if self._down is not None:
                    there = max(there, self._down.reserve(nbytes / PIECES))
                await world.clock.until(there)
            if run.relay_connection_bytes is not None:
                await world.clock.until(begin + nbytes / (step_parts.CONNECTIONS * run.relay_connection_bytes))
            await world.clock.until(begin + around.version / run.shard_bytes / (run.relays * run.relay_requests))
            await world.clock.until(begin + step_parts.apply_seconds(around))
            await world.clock.sleep(SWAP_SECONDS)
            world.busy["broadcast"].add(begin, world.clock.now())
            self._holds = version

    async def _ask(self) -> None:
        """Take leases while rows of those that are there leave places free.

        Nodes download the first version for hours after they joined. So none asks before all have joined: the first question reveals a step's beacon,
        and who is admitted later may not serve that step.
        """
        rows = self._world.shape.run.file_rows
        await self._world.all_joined.wait()
        while True:
            pause = WANTING_SECONDS
            places = self.engine.sequences - len(self.engine.rows) - len(self._waiting)
            if places > 0 and len(self._leases) < MOST_LEASES:
                step = await self.step(f"?together={MOST_LEASES}&pace=1")
                if step is not None and step.min_version <= self._holds and (step.leases or 1) > len(self._leases):
                    lease = await self.lease(step.step, list(self._leases))
                    if lease is not None and lease.lease not in self._leases:
                        self._leases[lease.lease] = lease, rows
                        self._waiting.extend([lease.lease] * rows)
                        self._more.set()
                        continue
                paced = (step and step.again_seconds) or 0
                pause = max(pause, paced / min(self._world.clock.factor, MOST_HASTE))
            await asyncio.sleep(pause)

    async def _generate(self) -> None:
        """Decode what there is, one end of a row to the next."""
        engine, clock, busy = self.engine, self._world.clock, self._world.busy["generate"]
        prefill = self._lease_time.prefill / self._world.shape.run.file_rows
        while True:
            if not self._waiting and not engine.rows:
                self._more.clear()
                await self._more.wait()
                engine.now = max(engine.now, clock.now())
            begin = engine.now
            while self._waiting and len(engine.rows) < engine.sequences:
                lease = self._waiting.popleft()
                request = SimpleNamespace(seed=random.getrandbits(32))
                self._running[engine.start(request)] = lease  # type: ignore[arg-type]  # an engine by the clock reads the seed alone
                engine.now += prefill
            ended = engine.step()
            while not ended:
                ended = engine.step()
            busy.add(begin, engine.now)
            await clock.until(engine.now)
            for name, _ in ended:
                self._row_ended(self._running.pop(name))

    def _row_ended(self, name: str) -> None:
        lease, left = self._leases[name]
        self._leases[name] = lease, left - 1
        if left == 1:
            self._world.services.spawn(self._upload(lease))

    async def _upload(self, lease: Lease) -> None:
        world = self._world
        begin = world.clock.now()
        await self._line.carry(step_parts.file_bytes(world.shape.run, world.shape.around))
        world.busy["upload"].add(begin, world.clock.now())
        await self.hand_in(lease, world.shape.run.groups_per_file)
        del self._leases[lease.lease]


class ClockValidator:
    """Claims files, takes as long as their checks take, and accepts them."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._name = world, f"validator-{number}"
        self._wire = Wire(world.services.stack.addresses.orchestrator, world.services.stack.role_keys["validator"])

    async def take_part(self) -> None:
        world, shape = self._world, self._world.shape
        while True:
            answer = await self._wire.ask("POST", "/v1/claims?wait_seconds=5", ClaimRequest(validator=self._name))
            if answer.status != 200:
                continue
            job = ValidationJob.from_json(answer.body)
            begin = world.clock.now()
            await world.clock.sleep(shape.check_seconds(first_rows(shape.run.file_rows, job, shape.validation)))
            world.busy["verify"].add(begin, world.clock.now())
            verdict = sign(accepted(job, shape), world.services.stack.role_keys["validator"])
            answer = await self._wire.ask("POST", "/v1/verdicts", verdict)
            if answer.status >= 300:
                self._world.crowd.refusals[f"{answer.status} verdicts"] += 1


def accepted(job: ValidationJob, shape: Shape) -> Verdict:
    """A verdict that accepts a file; as many of its groups carry signal as the plan has it."""
    run = shape.run
    per_group = run.group_size * run.rows_each
    rewards: list[RowReward] = []
    for _ in range(run.groups_per_file):
        carries = random.random() < shape.around.signal_share
        rewards += [
            RowReward(task_reward=(r := float(carries and n == 0)), length_penalty=0.0, reward=r)
            for n in range(per_group)
        ]
    return Verdict(
        run=job.run, node=job.node, lease=job.lease, step=job.step, submission=job.submission, sha256=job.sha256,
        policy_version=job.min_version, outcome="accept", rewards=rewards, rows=len(rewards),
        completion_tokens=int(len(rewards) * step_parts.lengths(shape.around, run).mean),
    )  # fmt: skip


class ClockTrainer:
    """Trains a step when its batch is there, hands the version to the publisher, saves states beside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._versions: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        self._states: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        self._announced: asyncio.Queue[int] = asyncio.Queue()

    async def take_part(self) -> None:
        await asyncio.gather(self._train(), self._publish(), self._pass_on_in_full(), self._save())

    async def _train(self) -> None:
        world, shape = self._world, self._world.shape
        parameters = shape.run.trained(shape.around.model.parameters, shape.around.model)
        asked = 1 if shape.run.method == "LoRA" else shape.run.state_every
        every = state_every(asked, parameters)
        for step in range(shape.steps):
            await self._batch(step)
            world.sealed[step] = world.clock.now()
            begin = world.clock.now()
            await world.clock.sleep(step_parts.train_seconds(shape.run, shape.around))
            world.busy["train"].add(begin, world.clock.now())
            await self._versions.put(step + 1)
            if (step + 1) % every == 0:
                await self._states.put(step + 1)
        world.over = True

    async def _batch(self, step: int) -> None:
        store = self._world.services.stack.store
        while True:
            if await asyncio.to_thread(store.exists, keys.step_batch(step)):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _publish(self) -> None:
        """Write, cut and store beside each other; the real publisher cuts the real shards meanwhile."""
        world, around = self._world, self._world.shape.around
        while True:
            version = await self._versions.get()
            begin = world.clock.now()
            nbytes = world.shape.fetched_bytes + world.shape.in_full_bytes(version)
            stored = world.services.spawn(world.store.carry(nbytes, PIECES))
            written = begin + step_parts.write_seconds(world.shape.run, around)
            await world.clock.until(written - world.services.publish_seconds * world.clock.factor)
            await world.services.publish(version)
            await world.clock.until(written)
            await stored
            world.busy["publish"].add(begin, world.clock.now())
            await world.announce(version)
            await self._announced.put(version)

    async def _pass_on_in_full(self) -> None:
        """Send anchors in full to all relays behind their deltas, in pieces so small that newer versions hardly wait for them."""
        world = self._world
        while True:
            nbytes = world.shape.in_full_bytes(await self._announced.get())
            if nbytes:
                await world.origin.carry(len(world.relays) * nbytes, 10 * PIECES)

    async def _save(self) -> None:
        world, shape = self._world, self._world.shape
        state = shape.run.state(shape.around.model.parameters, shape.around.model)
        while True:
            await self._states.get()
            begin = world.clock.now()
            await world.store.carry(state, 10 * PIECES)
            world.busy["save state"].add(begin, world.clock.now())


def uncut_mean(lengths: CompletionLengths) -> float:
    """Mean of the lognormal whose draws, cut at the limit, have the planned mean; where that is none, the limit's tenfold."""
    normal, spread = NormalDist(), lengths.spread

    def cut(mean: float) -> float:
        far = (math.log(lengths.limit / mean) + spread**2 / 2) / spread
        return mean * normal.cdf(far - spread) + lengths.limit * (1 - normal.cdf(far))

    low, high = lengths.mean, 10.0 * lengths.limit
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(middle) < lengths.mean else (low, middle)
    return high


def workers(world: World) -> list[ClockNode]:
    """All workers: pods of pools, and strangers."""
    run, around = world.shape.run, world.shape.around
    places: list[tuple[PoolFacts, bool]] = []
    for pool in run.pools:
        places += [(pool, False)] * pool.replicas
        places += [(pool, True)] * (around.strangers.get(pool.name, 0) if pool.open else 0)
    return [ClockNode(world, pool, number, stranger=stranger) for number, (pool, stranger) in enumerate(places)]
