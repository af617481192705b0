"""Learning from rollouts: wait for the step's batch, read it, compute log-probabilities of the fixed policies, make the updates (paper section 3).

In: the batches that the orchestrator writes, the rollout files that validators accepted. Out: policy and optimizer after the step, and its report.
Extensions may leave rows out, give other advantages, and change the weights after the last update. A `method` of the loop.
"""

import json
import shutil
from pathlib import Path

from shoal import telemetry
from shoal.contracts.recipe import Recipe
from shoal.contracts.routes import RouteShape, route_shape
from shoal.contracts.schedules import Schedules, value_at
from shoal.contracts.steps import StepBatch
from shoal.storage import NotFound, StoreUnavailable
from shoal.training.batches import StepPlan, plan_of_run
from shoal.training.behaviour import BehaviourWeights
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.method import Report, StepTools, Untrained
from shoal.training.metrics import expert_measures, recipe_measures, step_metrics
from shoal.training.model import Policy, load_reference, served_dtype
from shoal.training.objectives import needs_behaviour
from shoal.training.optimizer import Optimizer
from shoal.training.prefetch import Prefetch, Reader
from shoal.training.rollouts import BadBatch, RowLimits, StepRows, read_batch
from shoal.training.stored_weights import BadModel
from shoal.training.update import LogProbs, behaviour_logprobs, mismatch, plan_logprobs, train

BATCH_DEADLINE_SECONDS = 24 * 3600.0
"""A day without a full batch: nobody works on the run, and a failed Job says so louder than a waiting one."""
PROBLEMS_LOGGED = 20


def recorded_routes(recipe: Recipe, base: Path) -> RouteShape | None:
    """The routes that rows of a run on the checkpoint in `base` have; None where the recipe asks for none. Raises BadModel."""
    if recipe.router_replay is None:
        return None
    try:
        return route_shape(json.loads((base / "config.json").read_bytes()))
    except (OSError, ValueError) as error:  # NoRoutes is one
        raise BadModel(f"recipe.routerReplay: {error}") from error


class Reinforcement:
    """The method of `mode: Train`. A step's data is its batch, so that no state is bound to any."""

    data: str | None = None

    def __init__(self, context: TrainerContext, policy: Policy, extensions: Extensions) -> None:
        self._context, self._policy, self._extensions = context, policy, extensions
        config = context.config
        routes = recorded_routes(config.recipe, context.base)
        if routes is not None:
            policy.record_routes(routes, follows=config.recipe.router_replay == "Replay")
        self._reference: Policy | None = None
        if config.recipe.asks_reference:
            self._reference = load_reference(
                context.base, config.trainer, context.ranks, context.liveness.progress, context.weights
            )
        self.optimizer = Optimizer(
            policy.parameters(),
            config.recipe,
            matrices=policy.hidden_matrices,
            on_host=config.trainer.offloaded.optimizer,
        )
        self._reader = Reader(
            config,
            context.store,
            RowLimits(
                policy.vocabulary,
                config.recipe.max_sequence_length,
                extensions.continuations,
                routes,
                config.recipe.credit == "Turn",
            ),
            context.signer("validator"),
            _emptied(context.scratch / "rollouts" / f"rank-{context.ranks.rank}"),
        )
        self._prefetch = Prefetch(self._reader)
        self._behaviour: BehaviourWeights | None = None

    def begin(self, tools: StepTools) -> None:
        context = self._context
        self._waits = tools.waits
        if needs_behaviour(context.config.recipe):
            served = served_dtype(context.base)
            self._behaviour = BehaviourWeights(context, tools.states, self._policy, tools.copy, served)

    def train(self, step: int) -> Report | Untrained:
        context, extensions, recipe = self._context, self._extensions, self._context.config.recipe
        progress, policy, beat = context.progress, self._policy, self._waits.beat
        with progress.phase("wait"):
            batch = self._wait_for_batch(step)
        with progress.phase("read"):
            rows = extensions.keep_rows(self._read(batch))
            self._prefetch.start(step + 1)
            plan = plan_of_run(
                self._context.config,
                rows.groups,
                step,
                extensions.advantages,
                context.ranks.data_rank,
                context.ranks.data_world,
            )
        if plan is None:
            extensions.after_updates(step)
            owner = extensions.weights_owner
            weights = f"what {owner} holds" if owner else f"the weights of version {step}"
            return Untrained(
                f"no row of the batch could be trained on; version {step + 1} has {weights}", rows.left_out
            )
        behaviour = self.behaviour_logprobs(plan)
        old, reference = [], None
        if len(plan.optimizer_batches) > 1:
            with progress.phase("old_logprobs"):
                old = plan_logprobs(policy, plan, beat, begin=1)  # the first update finds its own
        if self._reference is not None:
            with progress.phase("reference_logprobs"):
                reference = plan_logprobs(self._reference, plan, beat)
        plan = extensions.before_updates(rows.groups, plan, reference, beat)
        schedules = recipe.schedules or Schedules()
        self.optimizer.peak_rate = value_at(schedules.learning_rate, step, recipe.learning_rate)
        with progress.phase("update"):
            updates = train(
                policy,
                self.optimizer,
                plan,
                old,
                reference,
                recipe,
                beat,
                behaviour,
                lambda: extensions.after_update(step),
                step,
            )
        mismatch_kl = mismatch(plan, updates.old, policy)
        extensions.after_updates(step)
        return lambda times: step_metrics(
            run=context.config.run,
            step=step,
            attempt=context.attempt,
            groups=rows.groups,
            rows_left_out=rows.left_out,
            plan=plan,
            updates=updates,
            mismatch_kl=mismatch_kl,
            times=times,
            by_source=batch.by_source,
            recipe=recipe,
            extra=recipe_measures(recipe, step, updates)
            | expert_measures(updates.experts, updates.router_mismatch)
            | extensions.measured(rows.groups),
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
            self._context.progress.phase("behaviour_logprobs"),
            self._behaviour.lent(self._waits.idle) as version_policy,
        ):
            found: LogProbs = behaviour_logprobs(version_policy, plan, self._waits.beat)
            return found

    def _wait_for_batch(self, step: int) -> StepBatch:
        def ask() -> StepBatch | None:
            try:
                return read_batch(self._context.store, self._context.config.run, step)
            except NotFound:
                return None
            except StoreUnavailable as error:
                telemetry.get_logger().warning("the store does not answer; still waiting", reason=str(error))
                return None

        return self._waits.leader("batch of the next step", ask, deadline_seconds=BATCH_DEADLINE_SECONDS)

    def _read(self, batch: StepBatch) -> StepRows:
        """The rows of the batch, read by every rank for itself, and the same on all."""
        ranks, what = self._context.ranks, f"the rows of step {batch.step}"
        rows = ranks.each_does(what, lambda: self._prefetch.rows(batch), self._context.liveness.progress)
        assert rows is not None  # every rank reads
        if not ranks.same(rows.digest, what):
            raise BadBatch(
                f"rank {ranks.rank} read different rows of step {batch.step} than rank 0; is its store the same?"
            )
        if ranks.leader:
            for problem in rows.problems[:PROBLEMS_LOGGED]:
                telemetry.get_logger().warning("left out of the step", step=batch.step, reason=problem)
        return rows


def _emptied(folder: Path) -> Path:
    """A process that was killed while it read has left its file there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
