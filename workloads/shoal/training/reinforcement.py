"""Learning from rollouts: wait for the step's batch, read it, compute log-probabilities of the fixed policies, make the updates (paper section 3).

In: the batches that the orchestrator writes, the rollout files that validators accepted. Out: policy and optimizer after the step, and its report.
With algorithm `prime` the reward model (`process_rewards`) completes the advantages and is updated before the policy is; with `vineppo` advantages
are differences of Monte-Carlo values (`values`), which came with the rollouts.
Where the run is an island of a group, it exchanges with the others after a step's last update: what the step computed under fixed policies is used up
then, and the version that the step makes has the weights that came of it. A `method` of the loop.
"""

from shoal import telemetry
from shoal.contracts.steps import StepBatch
from shoal.storage import NotFound, StoreUnavailable
from shoal.training.batches import StepPlan, plan_step
from shoal.training.behaviour import BehaviourWeights
from shoal.training.method import Report, Tools, Untrained, Workplace
from shoal.training.metrics import step_metrics
from shoal.training.model import load_reference, served_dtype
from shoal.training.objectives import needs_behaviour
from shoal.training.optimizer import Optimizer
from shoal.training.prefetch import Prefetch, Reader
from shoal.training.process_rewards import ProcessRewards, told_of
from shoal.training.rollouts import BadBatch, Limits, StepRows, read_batch, sampled_after
from shoal.training.update import LogProbs, behaviour_logprobs, mismatch, plan_logprobs, train
from shoal.training.values import boundary_means

BATCH_DEADLINE_SECONDS = 24 * 3600.0
"""A day without a full batch: nobody works on the run, and a failed Job says so louder than a waiting one."""
PROBLEMS_LOGGED = 20


class Reinforcement:
    """The method of `mode: Train`. A step's data is its batch, so that no state is bound to any."""

    data: str | None = None

    def __init__(self, place: Workplace) -> None:
        self._place = place
        config, policy, ranks = place.config, place.policy, place.ranks
        self._reference = load_reference(place.base, config.trainer, ranks, place.liveness.progress)
        self.optimizer = Optimizer(policy.parameters(), config.recipe)
        self._process = ProcessRewards.of(place)
        self.companion = None if self._process is None else self._process.learner
        self._reader = Reader(
            config, place.store, Limits(policy.vocabulary, config.recipe.max_sequence_length, config.recipe.vine)
        )
        self._prefetch = Prefetch(self._reader)
        self._behaviour: BehaviourWeights | None = None
        self._member = place.membership
        self._owes = False
        """An exchange is overdue: it is tried after each step until it comes about."""

    def begin(self, tools: Tools) -> None:
        place = self._place
        self._waits = tools.waits
        if needs_behaviour(place.config.recipe):
            served = served_dtype(place.base)
            self._behaviour = BehaviourWeights(
                place.config, place.store, tools.states, place.policy, tools.copy, place.ranks, place.scratch, served, place.liveness
            )  # fmt: skip

    def train(self, step: int) -> Report | Untrained:
        place, recipe = self._place, self._place.config.recipe
        progress, policy, beat = place.progress, place.policy, self._waits.beat
        self._look_for_a_jump(step)
        with progress.phase("wait"):
            batch = self._wait_for_batch(step)
        with progress.phase("read"):
            left_behind = -1 if self._member is None else self._member.left_behind
            rows = sampled_after(self._read(batch), left_behind)
            self._prefetch.start(step + 1)
            plan = self._plan(rows, step)
        if plan is None:
            self._finish_if_last(step)
            self._look_for_a_jump(step)
            weights = f"the weights of version {step}" if self._member is None else "what its island holds"
            return Untrained(
                f"nothing of the batch could be trained on; version {step + 1} has {weights}", rows.left_out
            )
        behaviour = self.behaviour_logprobs(plan)
        with progress.phase("old_logprobs"):
            old = plan_logprobs(policy, plan, beat)
        with progress.phase("reference_logprobs"):
            reference = plan_logprobs(self._reference, plan, beat)
        learnt = None
        if self._process is not None:
            with progress.phase("process_rewards"):
                told = told_of(rows.groups)
                plan = self._process.complete(plan, reference, told, beat)
            with progress.phase("reward_model"):
                learnt = self._process.learn(plan, reference, told, beat)
        with progress.phase("update"):
            updates = train(policy, self.optimizer, plan, old, reference, recipe, beat, behaviour)
        mismatch_kl = mismatch(plan, old, policy)
        self._exchange(step, len(updates.applied))
        return lambda times: step_metrics(
            run=place.config.run,
            step=step,
            attempt=place.attempt,
            groups=rows.groups,
            rows_left_out=rows.left_out,
            plan=plan,
            updates=updates,
            mismatch_kl=mismatch_kl,
            times=times,
            reward_model=learnt,
            values=boundary_means(rows.groups, recipe),
        )

    def _exchange(self, step: int, updates: int) -> None:
        """With the other islands, when it is time; after the run's last update until it comes about."""
        member, progress = self._member, self._place.progress
        if member is None:
            return
        due = member.due(updates)
        if due or self._owes:
            with progress.phase("exchange", "with the other islands"):
                # Where a member has other settings, the next try is when the next exchange is due.
                self._owes = not member.exchange(step + 1, overdue=not due) and not member.held
        self._finish_if_last(step)
        self._look_for_a_jump(step)

    def _finish_if_last(self, step: int) -> None:
        if self._member is not None and step + 1 == self._place.config.steps:
            with self._place.progress.phase("exchange", "what was learnt last, with the other islands"):
                self._member.finish(step + 1)

    def _look_for_a_jump(self, version: int) -> None:
        """Whether the weights have been replaced by others' since the last look; what up to `version` sampled is not trained on then."""
        if self._member is not None and self._member.jumped:
            self._member.jumped = False
            self._member.left_behind = version
            telemetry.get_logger().warning(
                "rows of before a copy of other islands' weights are left out", up_to=version
            )

    def keep(self, version: int) -> None:
        if self._behaviour is not None:
            self._behaviour.keep(version)

    def stop(self) -> None:
        self._prefetch.stop()

    def behaviour_logprobs(self, plan: StepPlan) -> LogProbs | None:
        """Log-probabilities under the versions that sampled the rows; None where nothing is weighed by them."""
        if self._behaviour is None:
            return None
        with (
            self._place.progress.phase("behaviour_logprobs"),
            self._behaviour.lent(self._waits.idle) as version_policy,
        ):
            return behaviour_logprobs(version_policy, plan, self._waits.beat)

    def _wait_for_batch(self, step: int) -> StepBatch:
        def ask() -> StepBatch | None:
            try:
                return read_batch(self._place.store, self._place.config.run, step)
            except NotFound:
                return None
            except StoreUnavailable as error:
                telemetry.get_logger().warning("the store is away, the wait goes on", reason=str(error))
                return None

        return self._waits.leader("batch of the next step", ask, deadline_seconds=BATCH_DEADLINE_SECONDS)

    def _read(self, batch: StepBatch) -> StepRows:
        """The rows of the batch, read by every rank for itself, and the same on all."""
        ranks, what = self._place.ranks, f"the rows of step {batch.step}"
        rows = ranks.each_does(what, lambda: self._prefetch.rows(batch), self._place.liveness.progress)
        assert rows is not None  # every rank reads
        if not ranks.same(rows.digest, what):
            raise BadBatch(
                f"rank {ranks.rank} read other rows of step {batch.step} than rank 0; is its store the same?"
            )
        if ranks.leader:
            for problem in rows.problems[:PROBLEMS_LOGGED]:
                telemetry.get_logger().warning("left out of the step", step=batch.step, reason=problem)
        return rows

    def _plan(self, rows: StepRows, step: int) -> StepPlan | None:
        """The step's plan; None when there is nothing to train on. With few rows left it makes fewer optimizer steps."""
        config, ranks = self._place.config, self._place.ranks
        samples = sum(len(group.samples) for group in rows.groups)
        if samples == 0:
            return None
        plan = plan_step(
            rows.groups,
            config.recipe.model_copy(update={"optimizer_steps": min(samples, config.recipe.optimizer_steps)}),
            seed=config.seed,
            step=step,
            completion_limit=config.sampling.max_completion_tokens,
            rank=ranks.rank,
            world=ranks.world,
        )
        return plan if plan.token_count else None
