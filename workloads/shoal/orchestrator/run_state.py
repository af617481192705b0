"""Everything that the orchestrator's services share: configuration, store, ledger, Redis, and what follows from them.

`RunState` answers the questions that several services ask (which steps are openable, what is pending, what was accepted) and seals full steps. It
decides nothing by itself: the pure modules do. Made once by `orchestrator`; `recovery` fills it.
"""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.protocol import TrainerProgress
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import drawn_for, is_evaluation
from shoal.crypto.keys import PrivateKey
from shoal.evaluation.versions import ScoredVersion
from shoal.ledger.entries import Accepted, BatchSealed, BeaconCommitted, BeaconRevealed
from shoal.ledger.terms import TermsKeeper
from shoal.ledger.writer import LedgerWriter
from shoal.orchestrator.evaluation.plan import EvaluationPlan
from shoal.orchestrator.nodes.registry import NodeRegistry
from shoal.orchestrator.verdicts.queue import ValidationQueue
from shoal.orchestrator.work import allocation, step_counter
from shoal.orchestrator.work.leases import LeaseBook, is_open
from shoal.orchestrator.work.schedule import GenerateSchedule, Schedule, SupervisedSchedule, TrainSchedule
from shoal.sampling.draw import beacon, beacon_commitment, draw_submission, drawn_tasks, slice_count
from shoal.storage import NotFound, Store
from shoal.telemetry import get_logger

RATE_STEPS = 4
"""Steps whose accepted groups tell the share with signal: it drifts as the policy learns, so old steps are left out."""
UNJUDGED_CHECKS = 4
"""Checks without a result after which a file is not waited for: half a minute, in which weights that were just published arrive. Else a node could
keep a step from ever being full with files that nobody can judge."""
MOST_UNJUDGED_FILES = 8
"""Such files of one node, waiting for another check, at which it gets no further lease. Some may be our fault, or a tool's."""

FOLD_SECONDS = 30.0
"""After the wait for the last version's evaluation: what there is of it is written meanwhile, or the run is complete without."""


@dataclass(frozen=True)
class FileShape:
    """What every file of a step, or of a slice of an evaluation, must hold. `targets`: lengths that are drawn from; None: none is asked for.

    `rows_each`: rows for each completion that is learnt from, itself and with algorithm `vineppo` its continuations, which follow on all of them.
    """

    groups: int
    group_size: int
    targets: Sequence[int] | None
    drawn: range
    max_completion_tokens: int
    rows_each: int = 1

    @property
    def completions(self) -> int:
        return self.groups * self.group_size

    @property
    def rows(self) -> int:
        return self.completions * self.rows_each


class RunState:
    """One run as its orchestrator knows it. Safe to use from several threads."""

    def __init__(
        self,
        config: RunConfig,
        store: Store,
        client: redis.Redis,
        key: PrivateKey,
        run_secret: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.store = store
        self.redis = client
        self.key = key
        self.run_secret = run_secret
        self.clock = clock
        self.roster = config.trusted_roster()
        self.prefix = f"shoal:{config.run}:orchestrator"
        self.ledger = LedgerWriter(store, config.run, key, clock)
        self.view = self.ledger.view
        self.terms = TermsKeeper(config, self.ledger)
        self.nodes = NodeRegistry(client, self.prefix, self.view.evicted, self.view.banned)
        self.leases = LeaseBook(client, self.prefix, store)
        self.queue = ValidationQueue(client, self.prefix)
        self.lease_lock = threading.Lock()  # room is looked at and taken by one thread at a time
        self.settle_lock = threading.RLock()  # a step is sealed and files settle one at a time
        self.trainer: TrainerProgress | None = None
        self.last_step: StepMetrics | None = None
        self.files_expired = 0
        self._prepared: Prepared | None = None
        self.evaluations: dict[tuple[int, str], ScoredVersion] = {}  # (version, benchmark), once its record is written
        self.evaluation_problems: set[tuple[int, str]] = set()  # what cannot be written, and was said once
        self.best_written: BestVersion | None = None
        self._schedule: Schedule | None = None
        self._plan: EvaluationPlan | None = None
        self._accepted: dict[tuple[str, str], step_counter.AcceptedFile] = {}

    # What prepare left

    def prepared(self) -> Prepared:
        """`prepared.json`; raises `Refusal` while prepare has not finished."""
        if self._prepared is None:
            try:
                self._prepared = Prepared.from_json(self.store.get(keys.PREPARED))
            except NotFound as error:
                raise Refusal(
                    ProblemCode.NOT_PREPARED,
                    "the run's base model and tasks are still being made",
                    retry_after_seconds=2,
                ) from error
        return self._prepared

    def proof_terms(self) -> ProofTerms | None:
        """Thresholds of proofs in force and their error rates; None while prepare has not finished."""
        try:
            return ProofTerms.in_force(self.config.validation.thresholds, self.prepared().proof_profile)
        except Refusal:
            return None

    # Steps

    @property
    def schedule(self) -> Schedule:
        """The rules of this run's mode; raises `Refusal` where they need the task table and prepare has not finished."""
        if self._schedule is None:
            config = self.config
            match config.mode:
                case "Train":
                    self._schedule = TrainSchedule(config.steps, config.async_level, config.recipe)
                case "Generate":
                    groups = config.sampling.groups_per_submission
                    steps = slice_count(self.prepared().task_count, groups)
                    self._schedule = GenerateSchedule(steps, groups, config.generate.dataset)
                case "SFT":
                    self._schedule = SupervisedSchedule(config.steps)
        return self._schedule

    @property
    def plan(self) -> EvaluationPlan:
        """What is scored in this run; raises `Refusal` where that needs the task tables and prepare has not finished."""
        if self._plan is None:
            config = self.config
            pinned = self.prepared().benchmarks if config.evaluation is not None else []
            self._plan = EvaluationPlan(
                config.evaluation, tuple(pinned), config.steps, config.async_level, config.kept_versions
            )
        return self._plan

    def open_step(self) -> int | None:
        return self.schedule.open_step(self.view.sealed, self.view.latest_version)

    def openable_steps(self) -> list[int]:
        return self.schedule.openable_steps(self.view.sealed, self.view.latest_version)

    @property
    def complete(self) -> bool:
        """Whether the run has made what it is for, and everybody knows."""
        return self.trained and self.last_is_scored

    @property
    def trained(self) -> bool:
        """Whether the run has made what it is for; its last version may still have to be scored."""
        return self.schedule.complete(self.view.latest_version, self.view.datasets)

    @property
    def last_is_scored(self) -> bool:
        """Whether nothing is waited for any more of the evaluation of the last version."""
        if self.config.evaluation is None or self.final_wait_is_over(FOLD_SECONDS):
            return True
        return all((self.config.steps, each.name) in self.evaluations for each in self.plan.benchmarks)

    def final_wait_is_over(self, more_seconds: float = 0.0) -> bool:
        """Whether the last version is there for as long as the run waits for its evaluation, and `more_seconds`."""
        settings, announced = self.config.evaluation, self.view.version_unix.get(self.config.steps)
        if settings is None or announced is None:
            return False
        return self.trained and self.clock() >= announced + settings.final_wait_seconds + more_seconds

    def closed(self, step: int) -> bool:
        """Whether no further file of a step, or of a slice of an evaluation, counts."""
        if not is_evaluation(step):
            return step in self.view.sealed
        if step in self.view.evaluated or not self.knows(step):
            return True
        work, latest = self.plan.located(step), self.view.latest_version
        return (work.version, work.benchmark.name) in self.evaluations or (
            latest is not None and self.plan.is_over(work.version, latest)
        )

    def knows(self, step: int) -> bool:
        """Whether a number stands for anything in this run: one of an evaluation does by the benchmarks that prepare pinned."""
        try:
            return not is_evaluation(step) or self.plan.located(step) is not None
        except ValueError:
            return False

    def version_window(self, step: int) -> tuple[int, int]:
        """Oldest and newest policy version that may feed a step; of a slice the one version that it is about."""
        if is_evaluation(step):
            version = self.plan.located(step).version
            return version, version
        return self.schedule.version_window(step)

    def shape(self, step: int) -> FileShape:
        """What a file of a step, or of a slice, must hold."""
        if is_evaluation(step):
            work = self.plan.located(step)
            terms = work.benchmark
            targets = [terms.target_length] if terms.target_length is not None else None
            groups = terms.sampling.groups_per_submission
            return FileShape(groups, terms.samples, targets, work.drawn, terms.sampling.max_completion_tokens)
        config, lengths = self.config, self.config.length_reward
        groups = config.sampling.groups_per_submission
        return FileShape(
            groups,
            config.recipe.group_size,
            lengths.targets if lengths is not None else None,
            drawn_tasks(config.mode, step, self.prepared().task_count, groups),
            config.sampling.max_completion_tokens,
            config.recipe.rows_each,
        )

    def drawn_prompts(self, step: int, node: str, submission: int) -> list[int]:
        """Rows of the task table that a file's groups are on, in their order, drawn again from the beacon."""
        shape = self.shape(step)
        node, submission = drawn_for(step, node, submission)
        drawn = draw_submission(
            beacon=self.beacon(step),
            run=self.config.run,
            step=step,
            node=node,
            submission=submission,
            task_count=len(shape.drawn),
            first_task=shape.drawn.start,
            groups=shape.groups,
            group_size=shape.group_size,
            targets=shape.targets,
        )
        return [group.prompt_index for group in drawn]

    def beacon_step(self, step: int) -> int:
        """Under which number the ledger has the beacon of a step: its own; all slices of a version's evaluation share one."""
        return self.plan.beacon_step(self.plan.located(step).version) if is_evaluation(step) else step

    def beacon(self, step: int) -> bytes:
        return beacon(self.run_secret, self.config.run, self.beacon_step(step))

    def commit_beacons(self, through: int) -> None:
        """Put the commitments of all steps up to `through` into the ledger."""
        for step in range(min(through + 1, self.schedule.steps)):
            self._commit_beacon(step)

    def commit_evaluation_beacon(self, version: int | None) -> None:
        """Put the commitment for the evaluation of a version into the ledger; nothing for None or in a run without benchmarks."""
        if version is not None and self.plan.is_due(version):
            self._commit_beacon(self.plan.beacon_step(version))

    def _commit_beacon(self, step: int) -> None:
        if step not in self.view.committed:
            self.ledger.append(BeaconCommitted(step=step, commitment=beacon_commitment(self.beacon(step))))

    def reveal(self, step: int) -> None:
        """Record that the beacon of `step` becomes known, after its commitment and those of the steps that may follow soon."""
        place = self.beacon_step(step)
        if place in self.view.revealed:
            return
        if is_evaluation(step):
            version = self.plan.located(step).version
            self.commit_evaluation_beacon(version)
            self.commit_evaluation_beacon(self.plan.next_due(version))
        else:
            self.commit_beacons(step + self.schedule.beacons_ahead)
        self.ledger.append(BeaconRevealed(step=place, commitment=beacon_commitment(self.beacon(step))))

    def loads(self, steps: list[int]) -> list[allocation.StepLoad]:
        """The load of each of `steps`, from one look at leases and queue."""
        pending = self.pending_groups()
        return [
            allocation.StepLoad(
                step=step,
                needed_groups=self.schedule.needed_groups,
                accepted_groups=self.accepted_groups(step),
                pending_groups=pending[step],
                judged_groups=sum(file.groups for file in list(self.view.accepted.get(step, ()))),
            )
            for step in steps
        ]

    def pending_groups(self) -> Counter[int]:
        """Groups by step, or number of a slice, that are leased or wait for a verdict."""
        pending: Counter[int] = Counter()
        now = self.clock()
        for record in self.leases.all():
            if is_open(record, now):
                pending[record.lease.step] += record.groups
        for job in self.queue.all():
            if job.inconclusive < UNJUDGED_CHECKS and not job.given_up_by:
                pending[job.record.step] += job.record.groups
        return pending

    def unjudged_files(self, node: str) -> int:
        """Files of this node that were checked again and again without a result and still wait."""
        return sum(
            job.record.node == node and (job.inconclusive >= UNJUDGED_CHECKS or bool(job.given_up_by))
            for job in self.queue.all()
        )

    def accepted_groups(self, step: int) -> int:
        """Accepted groups that carry signal."""
        return sum(file.counted_groups for file in list(self.view.accepted.get(step, ())))

    def signal_rate(self) -> float:
        """Estimated share of groups that will count, from the newest steps."""
        newest = sorted(self.view.accepted)[-RATE_STEPS:]
        files = [file for step in newest for file in list(self.view.accepted.get(step, ()))]
        return self.schedule.rate(sum(file.groups for file in files), sum(file.counted_groups for file in files))

    # Accepted files and batches

    def accepted_file(self, verdict: Verdict) -> step_counter.AcceptedFile:
        """An accepted file with its groups told apart by signal; prompts are drawn again from the beacon."""
        name = (verdict.node, verdict.sha256)
        if name not in self._accepted:
            shape, prompts = (
                self.shape(verdict.step),
                self.drawn_prompts(verdict.step, verdict.node, verdict.submission),
            )
            # Continuations say nothing of a group: whether it carries signal is for its own completions to say.
            learnt_from = verdict.rewards[: shape.completions]
            carrying = self.schedule.counted_prompts(learnt_from, prompts, shape.group_size)
            assert verdict.policy_version is not None  # an accept has one
            self._accepted[name] = step_counter.AcceptedFile(
                node=verdict.node,
                submission=verdict.submission,
                sha256=verdict.sha256,
                policy_version=verdict.policy_version,
                rows=verdict.rows,
                signal_prompts=tuple(carrying),
                dropped_groups=shape.groups - len(carrying),
            )
        return self._accepted[name]

    def _accepted_files(self, step: int) -> list[step_counter.AcceptedFile]:
        """All accepted files of a step in the ledger's order, from memory or from their verdicts in the store."""
        files = []
        for file in list(self.view.accepted.get(step, ())):
            known = self._accepted.get((file.node, file.file))
            if known is None:
                data = self.store.get(keys.verdict(file.node, file.file))
                known = self.accepted_file(Signed[Verdict].from_json(data).document)
            files.append(known)
        return files

    def seal_if_full(self, step: int) -> StepBatch | None:
        """Write `batch.json` of a step that has enough groups, once; the batch, or None when it is not full or was sealed before.

        The object comes first and the ledger second: after a crash between the two, the object that is there is what the ledger will name.
        """
        with self.settle_lock:
            needed = self.schedule.needed_groups
            if step in self.view.sealed or self.accepted_groups(step) < needed:
                return None
            batch = step_counter.select_batch(
                self.config.run, step, self.beacon(step).hex(), needed, self._accepted_files(step)
            )
            if batch is None:
                return None
            data = batch.to_json()
            if not self.store.create(keys.step_batch(step), data):
                data = self.store.get(keys.step_batch(step))
                batch = StepBatch.from_json(data)
            sealed = BatchSealed(step=step, batch=hashlib.sha256(data).hexdigest(), groups=batch.groups)
            self.ledger.append(sealed)
            self._accepted = {
                name: file for name, file in self._accepted.items() if name not in _names(self.view.accepted[step])
            }
            get_logger().info("step sealed", step=step, files=len(batch.files), groups_dropped=batch.groups_dropped)
            return batch


def _names(files: list[Accepted]) -> set[tuple[str, str]]:
    return {(file.node, file.file) for file in files}
