"""The rollout worker's loop: newest weights, open step, lease, generate, score, file, agent; then again.

In: the agent's socket, `weights/`. Out: one Parquet file a lease in `tmp/`, handed to the agent. Started by
`__main__`. Every wait ends when the process is asked to stop. What is being generated then is finished if it can be
within the grace period, and so is what is scored or handed in; else the lease is given back at once, as it is when its
step was sealed meanwhile. A restart of the agent, a closed step or a refused file cost one file and no more.
"""

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from shoal.contracts.pools import EngineSettings
from shoal.contracts.protocol import Lease, LocalSubmission, StepInfo
from shoal.contracts.rollouts import Rollout, RolloutMetadata, write_rollouts
from shoal.contracts.run import AgentState, PublicRun
from shoal.contracts.signed import Signer
from shoal.contracts.tasks import Task
from shoal.contracts.trust import TrustedKeys
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.environments.episodes import Tools, tools_of
from shoal.environments.prompts import pinned_tokenizer, prompt_tokens
from shoal.environments.scored_once import ScoredOnce
from shoal.environments.tokens import completion_text
from shoal.inference import metrics
from shoal.inference.agent import AgentClient
from shoal.inference.assignments import WorkContext, benchmarks_here, require_rule, work_on
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.commitment import Commitment
from shoal.inference.completions import Completion
from shoal.inference.engine import Engine, GenerationStoppedError
from shoal.inference.rollouts import PlannedRow, assemble, plan_continuations, plan_submission
from shoal.inference.tool_episodes import ToolFailedError, play
from shoal.inference.weights import VersionOnDisk, newest_policy, versions_in
from shoal.telemetry import STOP, Liveness, Stopped, busy, every_line, get_logger, wait_for
from shoal.transport.client import Refused, Unavailable

WAIT_SECONDS = 7 * 24 * 3600.0
"""A worker has nothing better to do than to wait for its run; the wait says so in the log and in a metric all the
while.
"""
POLL_SECONDS = 0.5
KEYS_SECONDS = 5.0  # between questions whether the trainer's key was changed
LEASE_PAUSE_SECONDS = 1.0
"""Between refused leases: the step is full, or about to close."""
TOOL_PAUSE_SECONDS = 10.0
"""After a tool that failed: the same lease comes again, and with it the same calls."""


class Worker:
    """One engine and the loop that feeds it."""

    def __init__(
        self, home: Path, liveness: Liveness, settings: EngineSettings, trust: TrustedKeys | None = None
    ) -> None:
        """`trust`: the keys of the run, which follow those of the agent; None: the agent's first word on the trainer's key holds."""
        self._trust = trust
        self._asked_for_keys = 0.0
        self._weights = home / "weights"
        self._tmp = home / "tmp"
        self._agent = AgentClient(home / "run" / "agent.sock")
        self._liveness = liveness
        self._settings = settings
        self._engine: Engine | None = None
        self._policy: VersionOnDisk | None = None
        self._policy_is_new = False  # no token has come of it yet

    @property
    def not_ready(self) -> str | None:
        """Why this worker generates nothing yet, or None."""
        return None if self._engine is not None else "no weights are loaded yet"

    def run(self) -> None:
        """Work until the process is asked to stop."""
        try:
            self._prepare()
            while not STOP.is_set():
                self._one_file()
        except Stopped as stopped:
            get_logger().info("stopped", reason=str(stopped))
        finally:
            if self._engine is not None:
                self._engine.close()

    def _prepare(self) -> None:
        """Wait for the run's description, its task table and the first weights; start the engine on them."""
        self._tmp.mkdir(exist_ok=True)
        for pattern in ("*.parquet", "*.partial"):  # of a process before this one, whose leases are given back below
            for left in self._tmp.glob(pattern):
                left.unlink()
        self._state = wait_for("the agent to be admitted to a run", self._admitted, **self._waiting)
        every_line(node=self._state.node)
        self._agent.give_back(None)
        public = self._state.public
        assert public is not None
        self._public: PublicRun = public
        self._codec = public.codec
        require_rule(public.sampler)
        self._training = work_on(public, self._task_table)
        self._benchmarks = benchmarks_here(public, lambda digest: self._task_table(digest, benchmark=True))
        policy = wait_for("the first weights", lambda: self._newest(0, 999_999), **self._waiting)
        works = [self._training, *self._benchmarks.values()]
        self._tokenizer = pinned_tokenizer(policy.folder, *(work.public.prompt for work in works))
        with busy("start"):
            checkpoint = read_checkpoint(policy.folder)
            self._eos = checkpoint.eos_token_ids
            # By environment: what it finds out about a vocabulary is kept.
            self._tools = {
                work.environment.name: tools_of(work.environment, self._tokenizer, self._eos) for work in works
            }
            self._engine = Engine(
                checkpoint,
                max_sequence_length=public.max_sequence_length,
                batch=public.sampling.groups_per_submission * public.group_size * public.rows_each,
                settings=self._settings,
            )
        self._loaded(policy)

    def _task_table(self, digest: str, *, benchmark: bool = False) -> list[Task]:
        return wait_for("a task table", lambda: self._agent.tasks(digest, benchmark), **self._waiting)

    def _context_of(self, work: Work) -> WorkContext:
        """The run's own tasks, or, for a slice of an evaluation, its benchmark."""
        match work:
            case TrainingStep() | TableSlice():
                return self._training
            case EvaluationSlice(benchmark=benchmark):
                return self._benchmarks[benchmark.name]

    def _one_file(self) -> None:
        """Serve one lease of the open step, or of a slice of an evaluation."""
        step, policy = wait_for("an open step and weights that it accepts", self._work, **self._waiting)
        work = self._codec.decode(step.step)
        context = self._context_of(work)
        lease = self._agent.lease(self._state.node, step.step)
        if lease is None:
            STOP.wait(LEASE_PAUSE_SECONDS)
            return
        self._swap(policy)  # behind the lease: for a place that another node got, it would be for nothing
        log = get_logger().bind(step=step.step, submission=lease.submission, version=policy.version)
        try:
            rows = self._generate(work, step, lease, policy, context)
        except GenerationStoppedError as stopped:
            self._give_back(lease, stopped.reason)
            log.info("lease given back", reason=stopped.reason, detail=str(stopped))
            return
        except ToolFailedError as failed:
            self._give_back(lease, "tool")
            log.warning("gave the lease back: a tool failed", reason=str(failed))
            STOP.wait(TOOL_PAUSE_SECONDS)
            return
        self._submit(lease, policy, rows, context.public)
        self._agent.report(metrics.heartbeat_metrics())
        log.info("file done", rows=len(rows), tokens=sum(len(row.completion_tokens) for row in rows))

    def _give_back(self, lease: Lease, reason: str) -> None:
        metrics.RETURNED.labels(reason).inc()
        self._agent.give_back(lease.lease)

    def _swap(self, policy: VersionOnDisk) -> None:
        assert self._engine is not None
        assert self._policy is not None
        # A number is sealed again with other weights where a leaked key had sealed it.
        if (policy.version, policy.manifest.sha256) == (self._policy.version, self._policy.manifest.sha256):
            return
        started = time.monotonic()
        with busy("swap"):
            self._engine.swap(read_checkpoint(policy.folder))
        metrics.SWAP_SECONDS.observe(time.monotonic() - started, exemplar={"version": str(policy.version)})
        self._loaded(policy)

    def _loaded(self, policy: VersionOnDisk) -> None:
        self._policy, self._policy_is_new = policy, True
        metrics.POLICY_VERSION.set(policy.version)
        get_logger().info("weights loaded", version=policy.version, digest=policy.manifest.sha256[:12])

    def _generate(
        self, work: Work, step: StepInfo, lease: Lease, policy: VersionOnDisk, context: WorkContext
    ) -> list[Rollout]:
        assert self._engine is not None
        if isinstance(work, TrainingStep):
            metrics.POLICY_LAG.set(work.number - policy.version)

        def render(task: Task, target_length: int | None) -> Sequence[int]:
            return prompt_tokens(self._tokenizer, context.environment, task, target_length, context.public.prompt)

        scored = ScoredOnce(context.environment)

        def score(task: Task, tokens: Sequence[int]) -> float | None:
            reward = scored.reward(task, completion_text(self._tokenizer, tokens, self._eos))
            self._liveness.progress()
            return reward

        planned = plan_submission(work, step, lease, context.public, context.tasks, render)
        started = time.monotonic()
        requests = [row.request for row in planned]
        # What continuations may take is known from the start: each is shorter than the longest completion.
        rounds = [requests] + ([requests * (work.shape.rows_each - 1)] if work.shape.rows_each > 1 else [])
        with busy("generate"), Commitment(work, lease, rounds, self._engine.sequences, self._agent.step) as commitment:
            completions = self._complete(planned, commitment, self._tools[context.environment.name])
            continued = plan_continuations(planned, completions, context.public)
            if continued:
                commitment.begin_next_round([row.request for row in continued])
                completions += self._complete(continued, commitment, None)
        whole, planned = len(planned), planned + continued
        tokens = sum(completion.sampled for completion in completions)
        metrics.TOKENS.inc(tokens)
        metrics.ROLLOUTS.inc(whole)
        metrics.CONTINUATIONS.inc(len(continued))
        for completion in completions[:whole]:
            metrics.COMPLETION_TOKENS.observe(completion.sampled, exemplar={"step": str(step.step)})
        metrics.GENERATED_PER_SECOND.set(tokens / (time.monotonic() - started))
        with busy("score"):
            return assemble(planned, completions, lease, context.public, policy.version, score)

    def _complete(self, planned: Sequence[PlannedRow], commitment: Commitment, tools: Tools | None) -> list[Completion]:
        engine = self._engine
        assert engine is not None

        def over() -> str | None:
            self._liveness.progress()  # asked before every decoding step
            if self._policy_is_new and commitment.steps:
                get_logger().info("first token of a version", version=self._policy and self._policy.version)
                self._policy_is_new = False
            return commitment.over()

        if tools is None:
            return engine.generate([row.request for row in planned], over)
        return play(planned, tools, lambda requests: engine.generate(requests, over, tools.pauses))

    def _submit(self, lease: Lease, policy: VersionOnDisk, rows: Sequence[Rollout], public: PublicRun) -> None:
        """Write the file and hand it over; a file that nobody takes is given up."""
        path = self._tmp / f"{lease.lease}.parquet"
        metadata = RolloutMetadata(
            model=public.model_id,
            weights_digest=policy.manifest.sha256,
            environment_digest=public.environment_digest,
            software_version=version("shoal"),
        )
        groups = public.sampling.groups_per_submission
        with busy("submit"):
            partial = path.with_suffix(".partial")
            partial.write_bytes(write_rollouts(rows, metadata))
            partial.replace(path)
            try:
                handed = LocalSubmission(
                    lease=lease.lease, file=path.name, groups=groups, policy_version=policy.version
                )
                receipt = self._agent.submit(handed)
                metrics.SUBMISSIONS.labels(receipt.status).inc()
            except (Refused, Unavailable) as error:
                metrics.SUBMISSIONS.labels("refused").inc()
                get_logger().warning("file not taken", step=lease.step, submission=lease.submission, reason=str(error))
            finally:
                path.unlink(missing_ok=True)

    def _admitted(self) -> AgentState | None:
        state = self._agent.state()
        return state if state is not None and state.public is not None else None

    def _newest(self, lowest: int, highest: int) -> VersionOnDisk | None:
        signer: Signer = self._state.trainer_key
        if self._trust is not None:
            self._follow_keys(self._trust)
            signer = self._trust.of("trainer")
        return newest_policy(self._weights, signer, self._public.run, lowest, highest)

    def _follow_keys(self, trust: TrustedKeys) -> None:
        """Take over what the agent has learned of changed keys, now and then."""
        if time.monotonic() - self._asked_for_keys < KEYS_SECONDS:
            return
        self._asked_for_keys = time.monotonic()
        state = self._agent.state()
        if state is not None and state.notice is not None:
            trust.take(state.notice)

    def _work(self) -> tuple[StepInfo, VersionOnDisk] | None:
        """The open step with the newest weights that it accepts, when there are both."""
        # Which versions are here is said only where benchmarks can be served: without it no slice is offered.
        step = self._agent.step(versions_in(self._weights)[-16:] if self._benchmarks else ())
        if step is None:
            return None
        policy = self._newest(step.min_version, step.max_version)
        return None if policy is None else (step, policy)

    @property
    def _waiting(self) -> dict:  # type: ignore[type-arg]
        return {"deadline_seconds": WAIT_SECONDS, "interval_seconds": POLL_SECONDS, "liveness": self._liveness}
