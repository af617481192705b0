"""The step loop: wait for a batch, train on it, save, hand over the new version; until the run's last step.

In: `RunConfig`, the store, the orchestrator. Out: one policy version a step, in the outbox, and its training state in the store. The order
within a step makes a stop at any point harmless: state first (it holds all that is needed to do the rest again), then
the outbox, then the report. Called by `__main__`.
"""

import time
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.storage import NotFound, Store, StoreUnavailable
from shoal.training.batches import plan_step
from shoal.training.metrics import StepTimes, step_metrics
from shoal.training.model import load_policy, load_reference
from shoal.training.optimizer import Optimizer
from shoal.training.outbox import Outbox
from shoal.training.progress import Progress
from shoal.training.rollouts import Limits, read_batch, read_groups
from shoal.training.state import States
from shoal.training.update import mismatch, plan_logprobs, train

BATCH_DEADLINE_SECONDS = 24 * 3600.0
"""A day without a full batch: nobody works on the run, and a failed Job says so louder than a waiting one."""
ANNOUNCE_DEADLINE_SECONDS = 3600.0
"""The publisher needs minutes for tens of gigabytes; after an hour something is broken."""
POLL_SECONDS = 0.25


class Trainer:
    """One attempt at a run's training. `base` is the folder of the base checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        store: Store,
        base: Path,
        outbox: Path,
        scratch: Path,
        progress: Progress,
        attempt: str,
        liveness: telemetry.Liveness,
    ) -> None:
        """`outbox` is where versions go, `scratch` a folder for files on their way to and from the store."""
        self._config = config
        self._store = store
        self._outbox = Outbox(outbox, base)
        self._states = States(store, config.run, scratch)
        self._progress = progress
        self._attempt = attempt
        self._liveness = liveness
        disable_progress_bar()  # the log is for lines that somebody reads
        self._policy = load_policy(base)
        self._reference = load_reference(base)
        torch.manual_seed(config.seed)  # of version 0; later ones bring their own random state
        self._optimizer = Optimizer(self._policy.parameters(), config.recipe)
        self._limits = Limits(self._policy.config.vocab_size, config.recipe.max_sequence_length)
        self._validator_key = config.trusted_roster().keys["validator"]
        self.version = 0

    def run(self) -> None:
        """Train until the last step, and return when its version is announced. Raises `telemetry.Stopped` on SIGTERM."""
        self.resume()
        while self.version < self._config.steps:
            self.train_step(self.version)
        with self._progress.phase("wait"):
            telemetry.wait_for(
                "the last version to be announced",
                self._last_is_announced,
                deadline_seconds=ANNOUNCE_DEADLINE_SECONDS,
                interval_seconds=1.0,
                liveness=self._liveness,
            )
        telemetry.get_logger().info("run trained", version=self.version)

    def resume(self) -> None:
        """Take up the newest whole state, or begin with the base model as version 0, and finish what a stop left undone."""
        sealed = self._states.sealed()
        metrics: StepMetrics | None = None
        if sealed:
            self.version = sealed[-1]
            metrics = self._states.restore(self.version, self._policy, self._optimizer).metrics
            telemetry.get_logger().info("resumed", version=self.version, updates=self._optimizer.updates)
        else:
            self._states.save(0, self._policy, self._optimizer, None)
        self._hand_over()
        if metrics is not None:
            self._progress.finished(metrics)

    def train_step(self, step: int) -> None:
        """Make version `step + 1` from version `step`."""
        progress, recipe = self._progress, self._config.recipe
        started = time.time()
        progress.begin(step)
        with progress.phase("wait"):
            batch = self._wait_for_batch(step)
        with progress.phase("read"):
            groups = read_groups(self._store, batch, self._validator_key, self._limits)
            plan = plan_step(groups, recipe, seed=self._config.seed, step=step)
        with progress.phase("old_logprobs"):
            old = plan_logprobs(self._policy, plan, self._beat)
        with progress.phase("reference_logprobs"):
            reference = plan_logprobs(self._reference, plan, self._beat)
        with progress.phase("update"):
            updates = train(self._policy, self._optimizer, plan, old, reference, recipe, self._beat)
        mismatch_kl = mismatch(plan, old)

        def report() -> StepMetrics:
            return step_metrics(
                run=self._config.run,
                step=step,
                attempt=self._attempt,
                groups=groups,
                plan=plan,
                updates=updates,
                mismatch_kl=mismatch_kl,
                times=StepTimes(started, time.time(), progress.seconds),
            )

        with progress.phase("save"):
            self._states.save(step + 1, self._policy, self._optimizer, report())
            self.version = step + 1
            self._hand_over()
        progress.finished(report())

    def _wait_for_batch(self, step: int) -> StepBatch:
        def poll() -> StepBatch | None:
            self._progress.beat()
            try:
                return read_batch(self._store, self._config.run, step)
            except NotFound:
                return None
            except StoreUnavailable as error:
                telemetry.get_logger().warning("the store is away, the wait goes on", reason=str(error))
                return None

        return telemetry.wait_for(
            "batch of the next step",
            poll,
            deadline_seconds=BATCH_DEADLINE_SECONDS,
            interval_seconds=POLL_SECONDS,
            liveness=self._liveness,
        )

    def _hand_over(self) -> None:
        """Put the current version into the outbox, unless the publisher has sealed it already."""
        if not self._store.exists(keys.version_weights(self.version)):
            self._outbox.put(self._policy, self.version)
        self._liveness.progress()

    def _last_is_announced(self) -> bool | None:
        self._progress.beat()
        newest = self._progress.announced_version()
        return True if newest is not None and newest >= self._config.steps else None

    def _beat(self) -> None:
        self._liveness.progress()
        self._progress.beat()
        if telemetry.STOP.is_set():
            raise telemetry.Stopped("asked to stop while training; the step is done again from its beginning")
