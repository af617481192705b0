"""A run in virtual time: workers with the product's decoding loop and lease desk, and an orchestrator by the product's rules of room.

In: a `Setting`. Out: what the engines did, from the workers' own metrics. Simulated are the engines (`clock_engine`), the store's lines, the
validators and the trainer, each by a time; which step is open, whether it has room and how many leases a node may hold is decided by
`orchestrator.work`. Whether a group carries signal is drawn, and the orchestrator knows of the share only what it has judged.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import REGISTRY

from benchmarks.workers.clock_engine import LIMIT, LIMIT_TOKENS, MEAN_TOKENS, STRIDE, ClockEngine
from shoal.contracts.completions import Sampling
from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.run import PublicRun
from shoal.contracts.tasks import Task
from shoal.contracts.weights import WeightsManifest
from shoal.contracts.work import TrainingStep, lease_seconds
from shoal.inference import metrics
from shoal.inference.batch import PlannedLease, Row, RunningLease
from shoal.inference.completions import Request
from shoal.inference.generation import Generation
from shoal.inference.lease_desk import LeaseDesk
from shoal.inference.rollouts import PlannedRow
from shoal.inference.weights import VersionOnDisk
from shoal.orchestrator.work import allocation, step_counter
from shoal.orchestrator.work.load import RATE_STEPS
from shoal.planner.rates import FILE_BYTES_A_TOKEN, TRAINING_SHARE

ASYNC_LEVEL, STEPS = 2, 1_000
GROUP = 16
SCORE_SECONDS, CHECK_SECONDS = 5.0, 60.0
UPLINK_BYTES_A_SECOND = 100e6 / 8
SWAP_SECONDS = 15.0
"""65 GB from a local disk by four ranks; far above what a tiny model takes (inference.json)."""
PREFILL_SECONDS = 2 * 32.8e9 / (4 * 989e12 * TRAINING_SHARE)
"""A token of a prefix that is computed again: 2 operations a parameter, on four H100."""
BROADCAST_SECONDS = 14 * 60.0
"""Paper, section 4.2: a version's way to the workers."""
IDLE_SECONDS = 0.5
SEEDS_APART = 10**9
"""Between the rows' seeds of one setting and of the same with the next seed."""
TASK = Task(problem_id="clock", task_type="math", prompt="", verification_info={}, metadata={})
PUBLIC = PublicRun(
    run="clock",
    steps=STEPS,
    async_level=ASYNC_LEVEL,
    model_id="clock",
    environment="arithmetic",
    environment_digest="0" * 64,
    tasks_digest="0" * 64,
    task_count=100_000,
    group_size=GROUP,
    max_sequence_length=LIMIT_TOKENS + 1,
    sampling=Sampling(max_completion_tokens=LIMIT_TOKENS, groups_per_submission=4),
    length_reward=None,
)


@dataclass(frozen=True)
class Setting:
    """`leases` that a worker has at a time (1: what it did before), `groups` of a step that must carry signal, `train` seconds of a step. Of
    several `means` rows are of several kinds, which workers tell apart by the target length."""

    leases: int
    slots: int
    rows: int
    workers: int = 8
    groups: int = 256
    train: float = 600.0
    means: tuple[float, ...] = (MEAN_TOKENS,)
    swaps: bool = True
    several: bool = False
    """Rows go on under newer weights."""
    seed: int = 0
    """Of the rows' lengths, and of which groups carry signal."""
    signal: float = 0.5
    """Share of groups that carry signal."""


@dataclass
class Orchestrator:
    """Steps, leases and verdicts, each at its time. All workers ask it in the order of their clocks, but for a step of an engine."""

    setting: Setting
    open: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    """Lease -> step, worker, expiry."""
    files: list[tuple[float, int, int]] = field(default_factory=list)
    """When each waiting file is judged, of which step it is, and its number."""
    judged: Counter[int] = field(default_factory=Counter)
    """Groups in accepted files of each step."""
    carrying: Counter[int] = field(default_factory=Counter)
    """Those of them that carry signal."""
    versions: list[float] = field(default_factory=lambda: [0.0])
    """When each version is at the workers; version s + 1 is made of step s."""
    announced: list[float] = field(default_factory=lambda: [0.0])
    sealed: set[int] = field(default_factory=set)
    handed_in: int = 0
    expired: int = 0
    count: int = 0

    @property
    def file_groups(self) -> int:
        return self.setting.rows // GROUP

    def settle(self, now: float) -> None:
        for at, step, number in sorted(each for each in self.files if each[0] <= now):
            self.files.remove((at, step, number))
            if step in self.sealed:
                self.expired += 1
                continue
            self.judged[step] += self.file_groups
            self.carrying[step] += self._carrying(number)
            while self.carrying[first := len(self.sealed)] >= self.setting.groups:
                self.sealed.add(first)
                trained = max(at, self.announced[-1]) + self.setting.train
                self.announced.append(trained)
                self.versions.append(trained + BROADCAST_SECONDS)
        for name in [name for name, (_, _, ends) in self.open.items() if ends < now]:
            del self.open[name]

    def _carrying(self, number: int) -> int:
        """Groups of this file that carry signal."""
        draws = random.Random(f"signal {self.setting.seed} {number}")
        return sum(draws.random() < self.setting.signal for _ in range(self.file_groups))

    @property
    def rate(self) -> float:
        """As `orchestrator.work.load.signal_rate` finds it."""
        newest = sorted(self.judged)[-RATE_STEPS:]
        return allocation.signal_rate(
            sum(self.judged[step] for step in newest), sum(self.carrying[step] for step in newest)
        )

    def latest(self, now: float) -> int:
        return sum(at <= now for at in self.announced) - 1

    def load(self, step: int) -> allocation.StepLoad:
        pending = sum(each[0] == step for each in self.open.values()) + sum(each[1] == step for each in self.files)
        groups = self.file_groups
        return allocation.StepLoad(step, self.setting.groups, self.carrying[step], pending * groups, self.judged[step])

    def step(self, now: float) -> StepInfo | None:
        self.settle(now)
        if not self.setting.swaps:
            return self._told(allocation.StepLoad(0, self.setting.groups, 0, 0), 0, 0)
        latest = self.latest(now)
        loads = [self.load(step) for step in step_counter.openable_steps(self.sealed, latest, ASYNC_LEVEL, STEPS)]
        if not loads:
            return None
        rate = self.rate
        step = allocation.step_to_serve(
            loads, lambda load: allocation.is_short(load, rate), lambda load: allocation.has_room(load, rate)
        )
        load = next((load for load in loads if load.step == step), loads[0])
        return self._told(load, latest, min(load.step for load in loads))

    def _told(self, load: allocation.StepLoad, latest: int, first: int) -> StepInfo:
        return StepInfo(
            run="clock",
            step=load.step,
            beacon="0" * 64,
            commitment="0" * 64,
            min_version=max(0, load.step - ASYNC_LEVEL),
            max_version=load.step,
            latest_version=latest,
            needed_groups=load.needed_groups,
            accepted_groups=load.accepted_groups,
            pending_groups=load.pending_groups,
            first_unsealed_step=first,
            leases=self.setting.leases,
        )

    def lease(self, step: int, worker: int, now: float) -> Lease | None:
        self.settle(now)
        if self.setting.swaps and (step in self.sealed or not allocation.has_room(self.load(step), self.rate)):
            return None
        number, self.count = self.count, self.count + 1
        lease = Lease(
            lease=f"{number:032x}",
            node=f"{worker:064x}",
            step=step,
            submission=number,
            expires_unix=now + lease_seconds(LIMIT_TOKENS),
        )
        self.open[lease.lease] = step, worker, lease.expires_unix
        return lease

    def submit(self, lease: Lease, now: float) -> None:
        self.settle(now)
        self.handed_in += 1
        if self.open.pop(lease.lease, None) is None or lease.step in self.sealed:
            self.expired += 1
        elif self.setting.swaps:
            self.files.append((now + CHECK_SECONDS, lease.step, lease.submission))


class NoTools:
    """No row of these pauses."""

    def ask(self, row: Row) -> None:
        raise AssertionError("no row has tools")

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        return []


class ClockWorker:
    """One node: the product's loop and desk, with a clock of its own."""

    def __init__(self, number: int, setting: Setting, orchestrator: Orchestrator) -> None:
        self._number = number
        self._setting = setting
        self._run = orchestrator
        self.engine = ClockEngine(setting.slots, setting.means, prefill_seconds=PREFILL_SECONDS)
        self._uploads: list[tuple[float, RunningLease]] = []
        self._line_free = 0.0
        self._desk_due = 0.0
        self.returned = 0
        self._desk = LeaseDesk(
            step=lambda wish: orchestrator.step(self.engine.now),
            lease=lambda step, held: orchestrator.lease(step, number, self.engine.now),
            newest=self._newest,
            plan=self._plan,
            failed=lambda lease, error: None,
            wake=lambda: None,
            several=setting.several,
        )
        self.generation = Generation(
            self.engine,
            self._desk,
            NoTools(),
            _version(0),
            swap=self._swap,
            finished=self._finished,
            given_up=self._given_up,
            handing_in=lambda: [lease.given.lease.lease for _, lease in self._uploads],
            clock=lambda: self.engine.now,
            several=setting.several,
        )
        self.generation.batch.segment_tokens = (
            1  # a stride is two proofs long: what is cut off is less than the clock shows
        )

    def turn(self) -> None:
        now = self.engine.now
        for at, lease in [each for each in self._uploads if each[0] <= now]:
            self._uploads.remove((at, lease))
            self._run.submit(lease.given.lease, now)
        if now >= self._desk_due or self._desk.asked.is_set():
            self._desk.asked.clear()
            self._desk_due = now + self._desk.turn()
        if not self.generation.turn():
            self.engine.now += IDLE_SECONDS

    def _newest(self, lowest: int, highest: int) -> VersionOnDisk | None:
        here = [version for version, at in enumerate(self._run.versions) if at <= self.engine.now]
        allowed = [version for version in here if lowest <= version <= highest]
        return _version(allowed[-1]) if allowed else None

    def _plan(self, step: StepInfo, lease: Lease, policy: VersionOnDisk) -> PlannedLease:
        first = self._setting.seed * SEEDS_APART + lease.submission * 1_000
        rows = [self._row(first + row, row) for row in range(self._setting.rows)]
        work = PUBLIC.codec.decode(step.step)
        assert isinstance(work, TrainingStep)
        given, ends, life = self.engine.now, lease.expires_unix, work.shape.lease_seconds
        return PlannedLease(lease, work, PUBLIC, policy, rows, None, given, ends, life)

    def _row(self, seed: int, sample: int) -> PlannedRow:
        means = self._setting.means
        return planned_row(seed, sample, int(means[seed % len(means)]) if len(means) > 1 else None)

    def _swap(self, policy: VersionOnDisk) -> None:
        self.engine.now += SWAP_SECONDS

    def _finished(self, lease: RunningLease) -> None:
        ready = self.engine.now + SCORE_SECONDS
        sent = lease.tokens * STRIDE * FILE_BYTES_A_TOKEN / UPLINK_BYTES_A_SECOND
        self._line_free = max(ready, self._line_free) + sent
        self._uploads.append((self._line_free, lease))

    def _given_up(self, lease: RunningLease, reason: str, error: Exception | None) -> None:
        self._run.open.pop(lease.given.lease.lease, None)
        self.returned += 1


def planned_row(seed: int, sample: int, target: int | None = None) -> PlannedRow:
    """A row of which only its seed tells the length."""
    return PlannedRow(TASK, 0, sample, target, Request((0,), seed, 1.0, LIMIT))


def _version(number: int) -> VersionOnDisk:
    manifest = WeightsManifest(
        run="clock", version=number, model="m", sha256="0" * 64, open_digest="0" * 64, shards=["0" * 64]
    )
    return VersionOnDisk(number, Path(), manifest)


@dataclass(frozen=True)
class Found:
    """Of all workers, after the warm-up. Shares are of slot-seconds (`idle`, `slot_occupancy`) or of time (`engine_idle_share`)."""

    tokens_a_second: float
    slot_occupancy: float
    engine_idle_share: float
    idle: dict[str, float]
    expired_share: float
    files: int
    versions: int


def simulate(setting: Setting, hours: float, warm_up_hours: float) -> Found:
    """Run for this long in virtual time."""
    orchestrator = Orchestrator(setting)
    workers = [ClockWorker(number, setting, orchestrator) for number in range(setting.workers)]
    _until(workers, warm_up_hours * 3600)
    slots, idle = _metrics()
    tokens = sum(worker.engine.tokens for worker in workers)
    files, expired = orchestrator.handed_in, orchestrator.expired + sum(worker.returned for worker in workers)
    ended = files + sum(worker.returned for worker in workers)
    versions = orchestrator.latest(warm_up_hours * 3600)
    _until(workers, hours * 3600)
    slots_then, idle_then = _metrics()
    used = {use: slots_then[use] - slots[use] for use in slots}
    seconds = (hours - warm_up_hours) * 3600
    returned = sum(worker.returned for worker in workers)
    all_ended = orchestrator.handed_in + returned - ended
    return Found(
        tokens_a_second=(sum(worker.engine.tokens for worker in workers) - tokens) / seconds,
        slot_occupancy=used["row"] / sum(used.values()),
        engine_idle_share=(idle_then - idle) / seconds / setting.workers,
        idle={use: used[use] / sum(used.values()) for use in used if use != "row"},
        expired_share=(orchestrator.expired + returned - expired) / max(1, all_ended),
        files=orchestrator.handed_in - files,
        versions=orchestrator.latest(hours * 3600) - versions,
    )


def _until(workers: list[ClockWorker], seconds: float) -> None:
    """Turn whoever's clock is behind."""
    while True:
        worker = min(workers, key=lambda each: each.engine.now)
        if worker.engine.now >= seconds:
            return
        worker.turn()


def _metrics() -> tuple[dict[str, float], float]:
    slots = {
        use: REGISTRY.get_sample_value("shoal_worker_slot_seconds_total", {"use": use}) or 0.0 for use in metrics.USES
    }
    causes = [use for use in metrics.USES if use != "row"]
    idle = (REGISTRY.get_sample_value("shoal_worker_engine_idle_seconds_total", {"cause": use}) for use in causes)
    return slots, sum(each or 0.0 for each in idle)
