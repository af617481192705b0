"""The step loop: train on what the run's method has for the step, copy the result aside, go on; until the run's last step.

In: a `TrainerContext` and the run's extensions. Out: one policy version a step. While step `s+1` trains, version `s+1` is handed over
in the background; in an order that makes a stop at any point harmless: a note of the step, the outbox, the report; then, every few versions, the
state. A resume takes up the newest version that was handed over, so no step is trained twice, with the newest state. If that is of the same
version, the run goes on bit for bit; else it says how old the state is. Every rank runs this, in step with the others. Called by `__main__`.
"""

import threading
import time
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from transformers.utils.logging import disable_progress_bar

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.mixture import MIXTURE
from shoal.contracts.steps import StepMetrics
from shoal.planner.memory import state_every
from shoal.storage import NotFound
from shoal.training.context import TrainerContext
from shoal.training.delivery import Delivery, Outbox, VersionArtifacts
from shoal.training.export import Export
from shoal.training.extensions.base import Extensions
from shoal.training.handover import BLOCKED_SECONDS, STATE_SECONDS, Handover
from shoal.training.host_copy import HostCopy, trained
from shoal.training.method import Method, StepTools, Untrained
from shoal.training.metrics import StepTimes, untrained_metrics
from shoal.training.model import Policy, load_policy
from shoal.training.objectives import source_losses
from shoal.training.published import PUBLISHED_DEADLINE_SECONDS, HandedOver
from shoal.training.reinforcement import Reinforcement
from shoal.training.sft.method import SupervisedFineTuning
from shoal.training.stability import History, Incident, Signals, after_roll_back, decide, in_force, observe
from shoal.training.state import SEAL, BadState, MadeVersion, SealedState, States
from shoal.training.stored_weights import weights_in_folder
from shoal.training.utilisation import utilisation_of
from shoal.training.waits import Waits

SCORED_GRACE_SECONDS = 300.0
"""The orchestrator ends the wait for the last version's scores by itself; this much longer without it ends the trainer too."""
PAUSE_DEADLINE_SECONDS = 7 * 24 * 3600.0
"""A person must look; after a week without one the attempt fails, and the next one pauses again."""
DONE = "the run has its result; to be stopped"
HANDED_OVER_LOOK_SECONDS = 0.05
STOP_GRACE_SECONDS = 10.0
"""Seconds for a version in flight when the process is asked to stop; a pod is given 60 s."""


def method_of(context: TrainerContext, policy: Policy, extensions: Extensions) -> Method:
    """How the run learns."""
    kind = SupervisedFineTuning if context.config.mode == "SFT" else Reinforcement
    return kind(context, policy, extensions)


class Trainer:
    """One attempt at a run's training."""

    def __init__(self, context: TrainerContext, extensions: Extensions) -> None:
        config, ranks, progress = context.config, context.ranks, context.progress
        self._config = config
        self._store = context.store
        self._progress = progress
        self._attempt = context.attempt
        self._liveness = context.liveness
        self._ranks = ranks
        self._extensions = extensions
        if config.mode != "SFT":
            source_losses(config.recipe)  # one that is wrong is refused before anything is loaded
        disable_progress_bar()  # the log is for lines that somebody reads
        self._policy = load_policy(context.base, config.trainer, ranks, context.liveness.progress, context.weights)
        progress.utilisation = utilisation_of(self._policy, self._policy.device, ranks.world)
        progress.environment = config.tasks.judged_by or MIXTURE
        extensions.attach(context, self._policy)
        progress.listeners = tuple(extensions)
        self._method = method_of(context, self._policy, extensions)
        torch.manual_seed(config.seed)  # of version 0; later ones bring their own random state
        self._optimizer = self._method.optimizer
        self._copy = HostCopy(self._policy, self._optimizer, ranks, extensions.learners(), extensions.extra_states)
        self._states = States(context.state_store, config.run, ranks, self._method.data)
        self._handover, self._saving = Handover(), Handover(STATE_SECONDS)
        self._waits = Waits(ranks, self._handover, self._saving, progress, context.liveness)
        # Adapters cannot be told from the weights that they are merged into.
        self._state_first = extensions.state_first or config.trainer.lora is not None
        self._state_every = 1
        if not self._state_first:
            parameters = sum(parameter.numel() for _, parameter in trained(self._policy))
            self._state_every = state_every(config.trainer.state_every, parameters)
        self._state_version = -1
        """The newest version whose state is saved, or being saved."""
        self._copy_is_whole = False
        self._moments_of: int | None = None
        """Until a step is trained on weights that are newer than the optimizer's state: which version that is of."""
        self._handed_over = HandedOver(context, self._waits)
        self._delivery = Delivery(
            config,
            context.state_store,
            self._states,
            Outbox(context.outbox, Export(self._policy, context.base, ranks), ranks),
            progress,
            ranks,
            publishes=extensions.publishes,
            state_first=self._state_first,
        )
        self._method.begin(StepTools(self._copy, self._states, self._waits))
        self._history = History()
        self._stability = in_force(config.stability, config.recipe)
        self.version = 0

    def run(self) -> None:
        """Train until the last step, and return when its version is announced. Raises `telemetry.Stopped` on SIGTERM."""
        try:
            self.begin()
            while self.version < self._config.steps:
                self.advance()
            with self._progress.phase("wait"):
                self._waits.idle()
                if self._extensions.publishes:
                    self._waits.leader(
                        "the last version to be announced",
                        self._last_is_announced,
                        deadline_seconds=PUBLISHED_DEADLINE_SECONDS,
                    )
                    self._serve_while_scored()
                self._extensions.after_run(self._result_is_there, self._waits)
        except telemetry.Stopped:
            until = time.monotonic() + STOP_GRACE_SECONDS
            for background in (self._handover, self._saving):
                background.settle(max(0.0, until - time.monotonic()))
            raise
        finally:
            self.close()
        telemetry.get_logger().info("run trained", version=self.version)

    def begin(self) -> None:
        """Take up what is there, before the first `advance`."""
        self.resume()
        self.version = self._extensions.before_run(self.version)

    def advance(self) -> None:
        """Make the next version, `self.version`. It is handed over in the background; `handed_over` waits for that."""
        self.next_step()
        self.version = self._extensions.after_step(self.version)

    def go_back(self, to_version: int) -> None:
        """Make the next version from an earlier one's state, as a run did whose trainer saw signs of instability. Raises BadState without it."""
        why = f"the run went back to version {to_version} here"
        self._roll_back(self.version, to_version, self._history.incident, why)
        self.version = self._extensions.after_step(self.version)

    def handed_over(self) -> None:
        """Wait until the newest version's folder is in the outbox and nothing of it is left to save; raises what went wrong on the way."""
        self._waits.idle()

    def close(self) -> None:
        """Nothing more will be trained."""
        self._method.stop()
        self._extensions.close()

    def live(self) -> None:
        """`run`, for a pod: a trainer that does not publish is of a StatefulSet, which starts again whatever ends. So it stays when it is done,
        and ends with `telemetry.Stopped` on SIGTERM."""
        self.run()
        if self._extensions.publishes or not self._ranks.broadcast(
            self._ranks.leader and self._result_is_there(), "whether the run has its result"
        ):
            return
        with self._progress.phase("wait", DONE):
            self._waits.leader("to be stopped", lambda: None, deadline_seconds=PAUSE_DEADLINE_SECONDS)

    def resume(self) -> None:
        """Take up the newest version with the newest intact state, or begin with the base model as version 0. What a stop left undone is finished."""
        sealed = self._states.restore_newest(self._copy, self._liveness, state_first=self._state_first)
        self._state_version = -1 if sealed is None else sealed.version
        newest = None
        if self._extensions.publishes and (
            not self._state_first or (sealed is None and not self._extensions.catches_up)
        ):
            newest = self._handed_over.newest()
        if newest is not None and newest > max(self._state_version, 0):
            if self._state_first:
                raise BadState(
                    f"version {newest} was handed over, and there is no training state, which this run cannot go on without."
                    f" Put its newest state back under {keys.TRAINER_STATE}, or start a new run"
                )
            self._take_up_published(newest, sealed)
            return
        if sealed is None:
            self._state_version, self._copy_is_whole = 0, True
            self._copy.take()
            self._deliver(0, None, save=True)
            self._progress.taken_up(0, None)
            return
        self.version, self._history = sealed.version, sealed.history
        self._optimizer.updates = sealed.updates
        telemetry.get_logger().info(
            "resumed bit for bit: weights and state are of one version", version=self.version, updates=sealed.updates
        )
        self._warn_of_a_roll_back_that_came_too_late()
        self._deliver(self.version, sealed.metrics, save=False)
        self._progress.taken_up(self.version, sealed.metrics)

    def _take_up_published(self, version: int, sealed: SealedState | None) -> None:
        """Go on from a version that is newer than the state `sealed`, which is in policy and optimizer already; None: there is none."""
        said = f"the optimizer state of version {sealed.version}" if sealed is not None else "a fresh optimizer state"
        with self._progress.phase("resume", f"with the weights of version {version} and {said}"):
            note = self._noted(version)
            self._handed_over.load(version, self._policy)
            self._copy.take_weights()
        self.version, self._moments_of = version, self._state_version
        known = note or sealed
        self._history = History() if known is None else known.history
        self._optimizer.updates = 0 if known is None else known.updates
        metrics = None if note is None else note.metrics
        telemetry.get_logger().warning(
            "resumed from published weights with an older state: not bit for bit as without the stop",
            version=version,
            state=None if sealed is None else sealed.version,
            updates=self._optimizer.updates,
            noted=note is not None,
        )
        self._warn_of_a_roll_back_that_came_too_late()
        self._deliver(version, metrics, save=False)
        self._progress.taken_up(version, metrics, version - max(self._state_version, 0))

    def _noted(self, version: int) -> MadeVersion | None:
        """What its trainer noted of a version before it handed it over."""
        return self._ranks.broadcast(
            self._states.noted(version) if self._ranks.leader else None, f"what is noted of version {version}"
        )

    def go_on_from(self, folder: Path, moments_of: int) -> None:
        """For whoever repeats a run: what its trainer did at this version after a stop. It took the weights as they are in `folder`, and the
        optimizer state of version `moments_of`; -1: a fresh one, as at a run's begin. Raises BadState: that state is not there, or cannot be made."""
        self.handed_over()
        if moments_of < 0 and (self._extensions.learners() or self._extensions.extra_states):
            raise BadState(
                "models trained beside the policy started afresh in another process, so this run cannot be repeated"
            )
        if moments_of >= 0:
            self._states.restore(moments_of, self._copy, self._liveness)
        else:
            self._optimizer.forget()
            torch.manual_seed(self._config.seed)
        self._policy.load_weights(weights_in_folder(folder).items())
        self._copy.take_weights()
        self._moments_of = moments_of

    def _result_is_there(self) -> bool:
        """Whether the run has the result of its last step: one of fewer steps is from before `spec.steps` was raised."""
        try:
            found = FinalModel.from_json(self._store.get(keys.FINAL_SEAL))
        except (NotFound, ValidationError):
            return False
        return found.version >= self._config.steps

    def next_step(self) -> None:
        """Make the next version: by training, or by going back when the run asks for it."""
        step, asked = self.version, self._config.roll_back
        if asked is not None and asked.at_step == step:
            self._roll_back(step, asked.to_version, None, f"spec.rollBack asks for version {asked.to_version}")
            return
        if self._history.incident is None or not self._act_on(self._history.incident, step):
            self.train_step(step)

    def _act_on(self, incident: Incident, step: int) -> bool:
        """Do what the settings demand about signs of instability; whether that made the next version."""
        states = self._ranks.broadcast(self._states.sealed(), "which states there are")
        while True:
            decision = decide(self._history, self._stability, states)
            if decision.action == "pause":
                self._pause(decision.reason)
            if decision.action != "roll_back" or decision.to_version is None:
                return False
            try:
                self._roll_back(step, decision.to_version, incident, decision.reason)
            except BadState as error:  # nothing was taken over from it; the one before may do, or a person
                telemetry.get_logger().error("a state is damaged; trying the previous one", reason=str(error))
                states = [version for version in states if version != decision.to_version]
            else:
                return True

    def _warn_of_a_roll_back_that_came_too_late(self) -> None:
        """Steps went on while it was asked for: its step is trained already, and nothing will come of it."""
        asked = self._config.roll_back
        if asked is None or asked.at_step >= self.version or not self._ranks.leader:
            return
        try:
            done = StepMetrics.from_json(self._store.get(keys.step_metrics(asked.at_step))).rolled_back_to
        except NotFound:
            return  # nobody can tell any more
        if done != asked.to_version:
            telemetry.get_logger().warning(
                "ignoring spec.rollBack: its step is trained already; set atStep to a later one",
                at_step=asked.at_step,
                version=self.version,
            )

    def train_step(self, step: int) -> None:
        """Make version `step + 1` from version `step`."""
        started = time.time()
        self._progress.begin(step)
        self._extensions.before_step(step)
        report = self._method.train(step)
        if isinstance(report, Untrained):
            self._take_copy(step + 1)  # others may have changed the weights since the version before
            self._finish_untrained(step, started, warnings=[report.warning], rows_left_out=report.rows_left_out)
            return
        with self._progress.phase("save"):
            self._take_copy(step + 1)
        metrics = report(StepTimes(started, time.time(), self._progress.seconds))
        history, signals, warnings = observe(self._history, metrics, self._stability)
        if self._moments_of is not None:
            warnings = [*warnings, _of_older_moments(step, self._moments_of)]
            metrics = metrics.model_copy(update={"moments_of": self._moments_of})
            self._moments_of = None
        self._finish(metrics.model_copy(update={"warnings": warnings}), history, signals)

    def _pause(self, reason: str) -> None:
        """Until the process is stopped: the settings that end a pause come with the next one."""
        telemetry.get_logger().warning("paused", version=self.version, reason=reason)
        with self._progress.phase("paused", reason):
            self._waits.leader(
                "a person to acknowledge the signs of instability",
                lambda: None,
                deadline_seconds=PAUSE_DEADLINE_SECONDS,
            )

    def _roll_back(self, step: int, to_version: int, incident: Incident | None, reason: str) -> None:
        """Make version `step + 1` by taking up the state of an earlier version."""
        started = time.time()
        telemetry.get_logger().warning("rolling back", step=step, to_version=to_version, reason=reason)
        self._progress.begin(step)
        with self._progress.phase("roll_back", reason):
            self._waits.idle()
            sealed = self._states.restore(self._state_for(to_version), self._copy, self._liveness)
            known: SealedState | MadeVersion = sealed
            self._moments_of = None
            if sealed.version != to_version:
                known = self._noted(to_version) or sealed
                self._handed_over.load(to_version, self._policy)
                self._moments_of = sealed.version
            self._optimizer.updates = known.updates
            self._take_copy(step + 1)
        self._history = after_roll_back(known.history, incident)
        self._finish_untrained(step, started, warnings=[reason], rolled_back_to=to_version)

    def _state_for(self, version: int) -> int:
        """The state to go back to `version` with: its own, else the newest older one, with its published weights. Raises BadState."""
        states = self._ranks.broadcast(self._states.sealed(), "which states there are")
        older = [state for state in states if state < version]
        if version in states or not older or self._state_first or not self._extensions.publishes:
            return version
        if not self._handed_over.has(version):
            raise BadState(
                f"there is no {keys.trainer_state(version)}{SEAL}; sealed states: {states}. Nor are the published weights of version {version}"
                f" in the store. Set spec.rollBack.toVersion to a version that has a state, or remove spec.rollBack"
            )
        return older[-1]

    def _take_copy(self, version: int) -> None:
        """Copy aside what `version` is made from, once the buffers are free: all of it where its state is to be saved, else the weights.

        A state that is still being saved holds up no version: the next state then is that of a later one. Only the last version waits for it, and
        each one where a state is saved of each.
        """
        started, last = time.monotonic(), version == self._config.steps
        self._waits.handed_over()
        due = last or version // self._state_every > self._state_version // self._state_every
        if due and (last or self._state_every == 1):
            self._waits.idle()
        self._copy_is_whole = due and (last or self._waits.saved())
        BLOCKED_SECONDS.set(time.monotonic() - started)
        if self._copy_is_whole:
            self._state_version = version
            self._copy.take()
        else:
            self._copy.take_weights()

    def _finish_untrained(self, step: int, started_unix: float, **said: Any) -> None:
        """A step that made a version without training has a report too."""
        metrics = untrained_metrics(
            run=self._config.run,
            step=step,
            attempt=self._attempt,
            times=StepTimes(started_unix, time.time(), self._progress.seconds),
            **said,
        )
        self._finish(metrics, self._history, None)

    def _finish(self, metrics: StepMetrics, history: History, signals: Signals | None) -> None:
        self.version, self._history = metrics.policy_version, history
        self._deliver(self.version, metrics, save=self._copy_is_whole)
        self._progress.finished(metrics, signals)

    def _deliver(self, version: int, metrics: StepMetrics | None, *, save: bool) -> None:
        """Start the delivery of the version that the host copy holds; with `save`, that of its state behind it."""
        self._waits.handed_over()
        self._method.keep(version)
        artifacts = VersionArtifacts(version, self._copy.tensors, self._optimizer.updates, metrics, self._history, save)
        delivered = threading.Event()

        def deliver() -> None:
            self._delivery.deliver(artifacts)
            delivered.set()

        def save_state() -> None:
            while not delivered.wait(HANDED_OVER_LOOK_SECONDS):
                if self._handover.failed:
                    return
            self._delivery.save(artifacts)

        self._handover.start(f"delivery of version {version}", deliver)
        if save and not self._state_first:
            self._saving.start(f"state of version {version}", save_state)

    def _serve_while_scored(self) -> None:
        """Keep this pod, and with it the origin, until the run's workers have scored the last version; the orchestrator says when that is."""
        settings = self._config.evaluation
        if settings is None:
            return
        until = time.monotonic() + settings.final_wait_seconds + SCORED_GRACE_SECONDS

        def scored() -> bool | None:
            progress = self._progress.run_progress()
            return True if (progress is not None and progress.complete) or time.monotonic() > until else None

        self._waits.leader(
            "the last version to be scored",
            scored,
            deadline_seconds=settings.final_wait_seconds + 2 * SCORED_GRACE_SECONDS,
        )

    def _last_is_announced(self) -> bool | None:
        newest = self._progress.announced_version()
        return True if newest is not None and newest >= self._config.steps else None


def _of_older_moments(step: int, moments_of: int) -> str:
    """For people: that a step is not what it would have been without a stop before it."""
    which = f"the optimizer state of version {moments_of}" if moments_of >= 0 else "a fresh optimizer state"
    return f"after a stop, this step began with the published weights of version {step} and {which}"
