"""What the trainer is at, told to the world: the orchestrator (for status and live view), Prometheus, and the store's `metrics.json`.

In: phases and finished steps. Out: `POST /v1/progress`, gauges, `steps/<step>/metrics.json`. Telling never holds up training: an
orchestrator that is away is told again with the next phase. Of several ranks the leader alone tells. Called by `loop`.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Protocol

from prometheus_client import Counter, Gauge

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.protocol import RunProgress, TrainerProgress
from shoal.contracts.steps import StepMetrics
from shoal.storage import Store
from shoal.telemetry import unmeasured
from shoal.training.stability import Signals
from shoal.training.utilisation import Utilisation
from shoal.transport import Refused, SignedClient, Unavailable

TELL_DEADLINE_SECONDS = 2.0
"""Longest that a phase waits for the orchestrator."""
TELL_AGAIN_SECONDS = 15.0
"""In a long wait the phase is repeated, so that an orchestrator that restarted knows it too."""

IDLE_PHASES = ("wait", "paused")
"""Phases in which the trainer waits for others; all others count as busy, except for those of `Listener.idle_phases`."""
NOTE_LENGTH = 500

STEP = unmeasured(Gauge("shoal_trainer_step", "Current step of the trainer; NaN while it starts."))
SKIPPED = Counter("shoal_trainer_skipped_updates_total", "Skipped updates: the gradient norm was not finite.")
TOKENS = Counter("shoal_trainer_completion_tokens_total", "Completion tokens that training used.")
OF_ROLLOUTS = (
    "clip_low", "clip_high", "clip_delta", "kl", "mismatch_kl", "policy_lag_mean", "policy_lag_max", "importance_capped",
)  # fmt: skip
"""Metrics that a step of mode SFT does not have."""
OF_RECIPES = (
    "mismatch_truncated", "mismatch_masked", "completions_masked", "kl_coefficient", "clip_epsilon", "clip_epsilon_high",
)  # fmt: skip
"""Metrics of runs whose recipe has a mismatch correction or a schedule."""
OF_EXPERTS = ("expert_load_largest", "expert_load_entropy", "experts_unused", "router_replay_mismatch")
"""Metrics of models with experts."""
REWARDS = {
    name: Gauge(
        f"shoal_trainer_{name}",
        f"{name.replace('_', ' ').capitalize()} of the last finished step, by environment; NaN: it trained on nothing.",
        ["environment"],
    )
    for name in ("reward", "task_reward", "length_penalty")
}
BY_TYPE = {
    name: Gauge(
        f"shoal_trainer_type_{name}",
        f"{what} by task type, in the last finished step that trained on it. Only where a run has several types.",
        ["task_type"],
    )
    for name, what in (
        ("task_reward", "Mean task reward"),
        ("reward", "Mean reward"),
        ("completion_length_mean", "Mean completion length in tokens"),
        ("share", "Share of the groups that were trained on,"),
        ("sampled_share", "Share of the groups that were sampled,"),
        ("signal_share", "Share of the type's sampled groups that carry signal,"),
    )
}
"""A task type is a source, where the run has a mixture."""
LAST = {
    name: unmeasured(
        Gauge(
            f"shoal_trainer_{name}",
            f"{name.replace('_', ' ').capitalize()} of the last finished step; NaN: there is none, or it has none.",
        )
    )
    for name in (
        "loss",
        "gradient_norm",
        "gradient_norm_max",
        "completion_length_mean",
        "entropy",
        "packing_density",
        "learning_rate",
        *OF_ROLLOUTS,
        *OF_RECIPES,
        *OF_EXPERTS,
    )
}
PHASE_SECONDS = Gauge("shoal_trainer_phase_seconds", "Time of the last finished step by phase.", ["phase"])
STEP_SECONDS = unmeasured(Gauge("shoal_trainer_step_seconds", "Time of the last finished step."))
IDLE = unmeasured(Gauge("shoal_trainer_idle_ratio", "Share of the last finished step that the trainer spent waiting."))
TOKEN_RATE = unmeasured(
    Gauge("shoal_trainer_tokens_per_second", "Completion tokens per second of the last finished step.")
)
FLOPS = unmeasured(
    Gauge(
        "shoal_trainer_model_flops_per_second",
        "6 x parameters x completion tokens by the time of the last step's updates; prompts are not counted.",
    )
)
MFU = unmeasured(
    Gauge("shoal_trainer_mfu_ratio", "The same as a share of the accelerators' bf16 peak; NaN where that is not known.")
)
RESUMED_LAG = unmeasured(
    Gauge(
        "shoal_trainer_resumed_state_lag",
        "Versions by which the training state that this process took up is older than its weights; 0: it goes on bit for bit.",
    )
)
PAUSED = Gauge("shoal_trainer_paused", "1 while the trainer waits for an administrator.")

SIGNALS = {
    "gradient_norm_slope": unmeasured(
        Gauge(
            "shoal_trainer_gradient_norm_slope",
            "Relative change of the gradient norm per step over the window; NaN: too few steps.",
        )
    ),
    "gradient_norm_growth": unmeasured(
        Gauge(
            "shoal_trainer_gradient_norm_growth", "Mean gradient norm of the window, divided by the previous window's."
        )
    ),
    "entropy_rise": unmeasured(
        Gauge("shoal_trainer_entropy_rise", "Mean entropy of the window above its minimum so far, as a share of it.")
    ),
    "clip_ratio_growth": unmeasured(
        Gauge("shoal_trainer_clip_ratio_growth", "Mean clip ratio of the window, divided by the previous window's.")
    ),
    "clip_ratio_level": unmeasured(
        Gauge("shoal_trainer_clip_ratio_level", "Mean clip ratio of the last three steps; NaN: too few steps.")
    ),
    "incident": unmeasured(
        Gauge(
            "shoal_trainer_incident",
            "1 while the run shows signs of instability on which spec.stability.action acts; NaN: the last step trained on nothing.",
        )
    ),
}
HELD_OUT_LOSS = unmeasured(
    Gauge(
        "shoal_trainer_held_out_loss",
        "Mean loss of held-out rows after the last step; NaN: there are none.",
    )
)
WARNED = Gauge("shoal_trainer_warnings", "Signs of instability in the last step.")
LEFT_OUT = Counter("shoal_trainer_rows_left_out_total", "Rows of batches that could not be trained on.")


class Listener(Protocol):
    """An extension's part in what is told and shown."""

    idle_phases: Collection[str]

    def progress(self) -> dict[str, Any]:
        """Fields of `TrainerProgress`."""

    def show(self, metrics: StepMetrics, *, finished: bool) -> None:
        """Put a step into gauges, and into counters where it is `finished`."""


class ProgressReporter:
    """Reports of one run's trainer. Without an `orchestrator` (on ranks that do not lead) it only keeps time."""

    def __init__(self, run: str, orchestrator: SignedClient | None, store: Store) -> None:
        self._run = run
        self._orchestrator = orchestrator
        self._store = store
        self._step = 0
        self._phase = "start"
        self._note = ""
        self._told = 0.0
        self._seconds: dict[str, float] = {}
        self._inner_seconds: list[float] = []
        """Of each phase that is open, the outermost first: how long others inside of it have taken."""
        self.last: StepMetrics | None = None
        self.environment = ""
        """Whose rewards steps report; the manifest names it. Set by the loop."""
        self.listeners: Sequence[Listener] = ()
        """Who has more to tell and to show; set by the loop."""
        self.utilisation = Utilisation()

    def taken_up(self, version: int, metrics: StepMetrics | None, state_lag: int = 0) -> None:
        """A new process continues from `version`: what the step that made it said is shown again, and counted only once.

        `state_lag`: how many versions older its training state is.
        """
        self._step = version
        RESUMED_LAG.set(state_lag)
        STEP.set(version)
        if metrics is not None:
            self._show(metrics, None, finished=False)
        self._tell()

    def begin(self, step: int) -> None:
        """Step `step` begins: its phases count from zero."""
        self._step = step
        self._seconds = {}
        STEP.set(step)

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds of the step by phase, so far."""
        return dict(self._seconds)

    @contextmanager
    def phase(self, name: str, note: str = "") -> Iterator[None]:
        """The block is phase `name` of the step: told with a `note` in words, timed, and counted as busy unless it is a wait.

        A phase inside of another interrupts it: its time is not a part of the outer one's.
        """
        outer = self._phase, self._note
        self._enter(name, note)
        self._inner_seconds.append(0.0)
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            own = spent - self._inner_seconds.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + own
            if name not in self._idle_phases():
                telemetry.BUSY_SECONDS.labels(name).inc(own)
            if self._inner_seconds:
                self._inner_seconds[-1] += spent
                self._enter(*outer)

    def _enter(self, name: str, note: str) -> None:
        self._phase, self._note = name, note
        PAUSED.set(name == "paused")
        self._tell()

    def beat(self) -> None:
        """Called often in long phases: tells the phase again now and then."""
        if time.monotonic() - self._told > TELL_AGAIN_SECONDS:
            self._tell()

    def report(self, metrics: StepMetrics, *, replace: bool = False) -> None:
        """Write the step's report, by the leader. One that is there stays, unless it is to `replace`: it was of a version that nobody got."""
        write = self._store.put if replace else self._store.create
        write(keys.step_metrics(metrics.step), metrics.to_json())

    def finished(self, metrics: StepMetrics, signals: Signals | None = None) -> None:
        """Tell of a finished step, and of the trends that it shows."""
        self._show(metrics, signals, finished=True)
        LEFT_OUT.inc(metrics.rows_left_out)
        TOKENS.inc(metrics.completion_tokens)
        SKIPPED.inc(metrics.skipped_updates)
        self._tell()
        if self._orchestrator is None:
            return
        for warning in metrics.warnings:
            telemetry.get_logger().warning("sign of instability", step=metrics.step, warning=warning)
        telemetry.get_logger().info(
            "step trained",
            step=metrics.step,
            loss=round(metrics.loss, 5),
            held_out_loss=metrics.held_out_loss if metrics.held_out_loss is None else round(metrics.held_out_loss, 5),
            reward=round(metrics.reward, 4),
            task_reward=round(metrics.task_reward, 4),
            gradient_norm=round(metrics.gradient_norm, 4),
            clip_ratio=round(metrics.clip_ratio, 5),
            entropy=round(metrics.entropy, 4),
            kl=metrics.kl if metrics.kl is None else round(metrics.kl, 5),
            policy_lag=round(metrics.policy_lag_mean, 2),
            skipped_updates=metrics.skipped_updates,
            rows_left_out=metrics.rows_left_out,
        )

    def _show(self, metrics: StepMetrics, signals: Signals | None, *, finished: bool) -> None:
        """Put the step into the gauges. What it has not measured is NaN there, never 0."""
        self.last = metrics
        for signal in fields(Signals):
            value = None if signals is None else getattr(signals, signal.name)
            SIGNALS[signal.name].set(math.nan if value is None else value)
        HELD_OUT_LOSS.set(math.nan if metrics.held_out_loss is None else metrics.held_out_loss)
        for listener in self.listeners:
            listener.show(metrics, finished=finished)
        WARNED.set(len(metrics.warnings))
        for name, gauge in LAST.items():
            measured = metrics.trained and not (metrics.supervised and name in OF_ROLLOUTS)
            value = getattr(metrics, name) if measured else None
            gauge.set(math.nan if value is None else value)
        if not metrics.supervised:
            for name, gauge in REWARDS.items():
                gauge.labels(self.environment).set(getattr(metrics, name) if metrics.trained else math.nan)
        for kind, means in metrics.by_task_type.items():
            for name, gauge in BY_TYPE.items():
                value = getattr(means, name)
                gauge.labels(kind).set(math.nan if value is None else value)
        self._measure_times(metrics)

    def _measure_times(self, metrics: StepMetrics) -> None:
        phases, tokens = metrics.phase_seconds, metrics.completion_tokens
        seconds = metrics.finished_unix - metrics.started_unix
        PHASE_SECONDS.clear()
        for name, spent in phases.items():
            PHASE_SECONDS.labels(name).set(spent)
        STEP_SECONDS.set(seconds)
        idle = sum(phases.get(name, 0.0) for name in self._idle_phases())
        IDLE.set(min(1.0, idle / seconds) if seconds > 0 else math.nan)
        TOKEN_RATE.set(tokens / seconds if seconds > 0 else math.nan)
        FLOPS.set(self.utilisation.flops_per_second(tokens, phases.get("update", 0.0)))
        MFU.set(self.utilisation.share(tokens, phases.get("update", 0.0)))

    def _idle_phases(self) -> set[str]:
        return {*IDLE_PHASES, *(name for listener in self.listeners for name in listener.idle_phases)}

    def announced_version(self) -> int | None:
        """The newest version that the orchestrator knows of; None while there is none or it is away."""
        answer = self.run_progress()
        return answer.latest_version if answer is not None else None

    def run_progress(self) -> RunProgress | None:
        """The orchestrator's state of the run; None while it is away."""
        if self._orchestrator is None:
            return None
        try:
            return self._orchestrator.call("GET", "/v1/run", reply=RunProgress, deadline_seconds=TELL_DEADLINE_SECONDS)
        except (Refused, Unavailable) as error:
            telemetry.get_logger().warning("could not ask for the newest version", reason=str(error)[:300])
            return None

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self._orchestrator is None:
            return
        said = TrainerProgress(
            run=self._run,
            step=self._step,
            phase=self._phase,
            note=self._note[:NOTE_LENGTH],
            metrics=self.last,
            **{name: value for listener in self.listeners for name, value in listener.progress().items()},
        )
        try:
            self._orchestrator.call("POST", "/v1/progress", said, deadline_seconds=TELL_DEADLINE_SECONDS)
        except (Refused, Unavailable) as error:
            telemetry.get_logger().warning("could not report progress", phase=self._phase, reason=str(error)[:300])
