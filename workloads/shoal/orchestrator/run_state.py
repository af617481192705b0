"""The collaborators of one run's orchestrator: configuration, store, ledger, Redis, and the rules that follow from what prepare left.

It only holds them. The rooms answer the questions: `work` which steps are open and how full, `verdicts`, `evaluation`, `nodes`, and `completeness`
whether the run is over. Made once by `http.service`; `recovery` fills it.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import redis

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import TrainerProgress
from shoal.contracts.roster import Roster
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.work import WorkCodec
from shoal.crypto.keys import PrivateKey
from shoal.evaluation.versions import ScoredVersion
from shoal.ledger.succession import Succession
from shoal.ledger.terms import TermsKeeper
from shoal.ledger.writer import LedgerWriter
from shoal.orchestrator.doubts import Doubts
from shoal.orchestrator.evaluation.plan import EvaluationPlan
from shoal.orchestrator.nodes.registry import NodeRegistry
from shoal.orchestrator.verdicts.learning import AnswerWindow
from shoal.orchestrator.verdicts.queue import ValidationQueue
from shoal.orchestrator.work.leases import LeaseBook
from shoal.orchestrator.work.schedule import Schedule, schedule_of
from shoal.orchestrator.work.step_counter import AcceptedFile
from shoal.sampling.curriculum import PoolName
from shoal.storage import NotFound, Store


class RunState:
    """The orchestrator's state of one run. Safe for several threads. Members that need `prepared.json` raise `Refusal` until it exists."""

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
        self.keys = config.trust
        self.prefix = f"shoal:{config.run}:orchestrator"
        first_run_key = self.roster.run_keys(config.roster.signer)[0]
        self.ledger = LedgerWriter(store, config.run, key, clock, Succession(self.roster, first_run_key))
        self.view = self.ledger.view
        self.terms = TermsKeeper(config, self.ledger)
        self.nodes = NodeRegistry(client, self.prefix, self.view.evicted, self.view.banned)
        self.doubts = Doubts()
        self.leases = LeaseBook(client, self.prefix, store, self.doubts)
        self.queue = ValidationQueue(client, self.prefix)
        self.lease_lock = threading.Lock()  # room is looked at and taken by one thread at a time
        self._node_locks: dict[str, threading.Lock] = {}
        self.confirming: dict[str, object] = {}  # leases of which a file is being confirmed
        self.standing_lock = threading.Lock()  # a node's room is changed by one thread at a time
        self.settle_lock = threading.RLock()  # a step is sealed and files settle one at a time
        self.trainer: TrainerProgress | None = None
        self.last_step: StepMetrics | None = None
        self.version_bytes: int | None = None  # of the newest version in full
        self.store_away_since: float | None = None
        self.files_expired = 0
        self.accepted_files: dict[tuple[str, str], AcceptedFile] = {}  # (node, file), of steps that are not sealed
        self.answers = AnswerWindow()
        self.pool_groups: Counter[PoolName] = Counter()  # of steps that this process sealed, in a run with a curriculum
        self.evaluations: dict[tuple[int, str], ScoredVersion] = {}  # (version, benchmark), once its record is written
        self.evaluation_problems: set[tuple[int, str]] = set()  # what cannot be written, and was said once
        self.best_written: BestVersion | None = None
        self.published_keys = b""
        self.process_changed_unix = -math.inf  # when this process last rebuilt for another process of Redis
        self.is_read = False  # by this process; what Redis says of it may be of the process before

    def lock_of_node(self, node: str) -> threading.Lock:
        """Held while bytes of this node are deleted or bound to a lease; where `lease_lock` is taken too, this one comes first."""
        return self._node_locks.setdefault(node, threading.Lock())

    @property
    def roster(self) -> Roster:
        """The newest roster that is known."""
        return self.keys.roster

    @cached_property
    def prepared(self) -> Prepared:
        """The result of prepare."""
        try:
            return Prepared.from_json(self.store.get(keys.PREPARED))
        except NotFound as error:
            raise Refusal(
                ProblemCode.NOT_PREPARED,
                "the prepare job is still making the run's base model and tasks",
                retry_after_seconds=2,
            ) from error

    @property
    def calibrated(self) -> bool:
        """Whether the base model's proofs are calibrated; True until prepare has ended, which judges the pools of its own start."""
        try:
            return self.prepared.proof_profile is not None
        except Refusal:
            return True

    @property
    def rewards_claimed(self) -> bool:
        """Whether workers' rewards count as they are claimed; False until prepare has ended, as of `calibrated`."""
        try:
            return self.prepared.rewards_claimed
        except Refusal:
            return False

    @cached_property
    def schedule(self) -> Schedule:
        """The rules of this run's mode."""
        return schedule_of(self.config, lambda: self.prepared.task_count)

    @cached_property
    def plan(self) -> EvaluationPlan:
        """The evaluation settings of this run."""
        config = self.config
        pinned = self.prepared.benchmarks if config.evaluation is not None else []
        return EvaluationPlan(config.evaluation, tuple(pinned), config.steps, config.async_level, config.kept_versions)

    @cached_property
    def codec(self) -> WorkCodec:
        """The meaning of the numbers of this run's work."""
        return self.prepared.codec(self.config, self._batch)

    def _batch(self, step: int) -> StepBatch:
        return StepBatch.from_json(self.store.get(keys.step_batch(step)))
