"""What the trainer is at, told to the world: the orchestrator (for status and live view), Prometheus, and the store's `metrics.json`.

In: phases and finished steps. Out: `POST /v1/progress`, gauges, `steps/<step>/metrics.json`. Telling never holds up training: an
orchestrator that is away is told again with the next phase. Called by `loop`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.protocol import RunProgress, TrainerProgress
from shoal.contracts.steps import StepMetrics
from shoal.storage import Store
from shoal.transport import Refused, SignedClient, Unavailable

TELL_DEADLINE_SECONDS = 2.0
"""Longest that a phase waits for the orchestrator."""
TELL_AGAIN_SECONDS = 15.0
"""In a long wait the phase is repeated, so that an orchestrator that restarted knows it too."""

STEP = Gauge("shoal_trainer_step", "Step that the trainer is at.")
SKIPPED = Counter("shoal_trainer_skipped_updates_total", "Updates left out because the gradient norm was not finite.")
TOKENS = Counter("shoal_trainer_completion_tokens_total", "Completion tokens trained on.")
LAST = {
    name: Gauge(f"shoal_trainer_{name}", f"{name.replace('_', ' ').capitalize()} of the last finished step.")
    for name in (
        "reward",
        "task_reward",
        "length_penalty",
        "loss",
        "gradient_norm",
        "clip_low",
        "clip_high",
        "clip_delta",
        "entropy",
        "kl",
        "mismatch_kl",
        "policy_lag_mean",
        "policy_lag_max",
        "packing_density",
        "learning_rate",
    )
}


class Progress:
    """Reports of one run's trainer."""

    def __init__(self, run: str, orchestrator: SignedClient, store: Store, last: StepMetrics | None = None) -> None:
        self._run = run
        self._orchestrator = orchestrator
        self._store = store
        self._step = 0
        self._phase = "start"
        self._told = 0.0
        self._seconds: dict[str, float] = {}
        self.last = last

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
    def phase(self, name: str) -> Iterator[None]:
        """The block is phase `name` of the step: told, timed, and counted as busy unless it is a wait."""
        self._phase = name
        self._tell()
        started = time.monotonic()
        try:
            if name == "wait":
                yield
            else:
                with telemetry.busy(name):
                    yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started

    def beat(self) -> None:
        """Called often in long phases: tells the phase again now and then."""
        if time.monotonic() - self._told > TELL_AGAIN_SECONDS:
            self._tell()

    def finished(self, metrics: StepMetrics) -> None:
        """Write the step's report, and tell it. A report that is there stays: a step is reported once."""
        self._store.create(keys.step_metrics(metrics.step), metrics.to_json())
        self.last = metrics
        for name, gauge in LAST.items():
            gauge.set(getattr(metrics, name))
        TOKENS.inc(metrics.completion_tokens)
        SKIPPED.inc(metrics.skipped_updates)
        self._tell()
        telemetry.get_logger().info(
            "step trained",
            step=metrics.step,
            reward=round(metrics.reward, 4),
            task_reward=round(metrics.task_reward, 4),
            gradient_norm=round(metrics.gradient_norm, 4),
            clip_ratio=round(metrics.clip_ratio, 5),
            entropy=round(metrics.entropy, 4),
            kl=round(metrics.kl, 5),
            policy_lag=round(metrics.policy_lag_mean, 2),
            skipped_updates=metrics.skipped_updates,
        )

    def announced_version(self) -> int | None:
        """The newest version that the orchestrator knows of; None while there is none or it is away."""
        try:
            answer = self._orchestrator.call(
                "GET", "/v1/run", reply=RunProgress, deadline_seconds=TELL_DEADLINE_SECONDS
            )
        except (Refused, Unavailable) as error:
            telemetry.get_logger().warning("cannot ask for the newest version", reason=str(error)[:300])
            return None
        return answer.latest_version if answer is not None else None

    def _tell(self) -> None:
        self._told = time.monotonic()
        said = TrainerProgress(run=self._run, step=self._step, phase=self._phase, metrics=self.last)
        try:
            self._orchestrator.call("POST", "/v1/progress", said, deadline_seconds=TELL_DEADLINE_SECONDS)
        except (Refused, Unavailable) as error:
            telemetry.get_logger().warning("progress was not told", phase=self._phase, reason=str(error)[:300])
