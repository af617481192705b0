"""Phases of a step: each second is in one of them, also where one interrupts another, and waits are not busy. Its gauges never tell a 0 that nobody
measured, and a new process goes on with what the one before it told."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tiny_run import RUN, make_store

from samples import METRICS
from shoal import telemetry
from shoal.training.extensions.base import Extension
from shoal.training.metrics import StepTimes, bare_metrics, untrained_metrics
from shoal.training.progress import ProgressReporter

WHILE_IT_STARTS = """
import math
from prometheus_client import REGISTRY
from shoal.training import progress
for family in REGISTRY.collect():
    if family.type == "gauge" and family.name.startswith("shoal_trainer_"):
        for sample in family.samples:
            print(sample.name, sample.value)
"""
TIMES = StepTimes(100.0, 200.0, {"wait": 25.0, "update": 75.0})


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"shoal_trainer_{name}", labels)


def busy_seconds(phase: str) -> float:
    return float(telemetry.BUSY_SECONDS.labels(phase)._value.get())


class Waiting(Extension):
    """Waits for others in a phase of its own."""

    idle_phases = ("exchange",)


def test_an_exchange_between_updates_is_a_wait_and_no_part_of_the_updates(tmp_path: Path) -> None:
    progress = ProgressReporter(RUN, None, make_store(tmp_path))
    progress.listeners = (Waiting(),)
    before = busy_seconds("update"), busy_seconds("exchange")
    progress.begin(3)
    started = time.monotonic()
    with progress.phase("update", "of 2"):
        with progress.phase("exchange", "with others"):
            assert (progress._phase, progress._note) == ("exchange", "with others")
            time.sleep(0.2)
        assert (progress._phase, progress._note) == ("update", "of 2"), "the interrupted phase goes on"
    whole = time.monotonic() - started
    seconds = progress.seconds
    assert seconds["exchange"] >= 0.2
    assert seconds["update"] == pytest.approx(whole - seconds["exchange"], abs=0.05)
    assert sum(seconds.values()) <= whole
    assert busy_seconds("update") - before[0] == pytest.approx(seconds["update"])
    assert busy_seconds("exchange") == before[1]


def test_a_phase_that_fails_is_counted_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    progress = ProgressReporter(RUN, None, make_store(tmp_path))
    with progress.phase("update"):
        with pytest.raises(OSError, match="gone"), progress.phase("exchange"):
            raise OSError("gone")
        assert progress._phase == "update"
    assert set(progress.seconds) == {"update", "exchange"}


def test_a_process_that_starts_tells_no_0_for_what_it_has_not_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IT_STARTS], capture_output=True, text=True, check=True, timeout=120
    )
    values = {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}
    assert {
        "shoal_trainer_loss",
        "shoal_trainer_gradient_norm",
        "shoal_trainer_entropy",
        "shoal_trainer_idle_ratio",
    } <= values.keys()
    assert {name for name, value in values.items() if not math.isnan(value)} == {
        "shoal_trainer_paused", "shoal_trainer_warnings",  # it is not, and there are none
    }  # fmt: skip


def test_a_process_that_takes_up_a_version_tells_what_its_step_told_and_counts_it_only_once(tmp_path: Path) -> None:
    before = ProgressReporter(RUN, None, make_store(tmp_path))
    before.environment = "sums"
    step = METRICS.model_copy(update={"skipped_updates": 2, "completion_tokens": 1000, "warnings": ["one"]})
    before.finished(step)
    names = ("loss", "gradient_norm", "entropy", "idle_ratio", "step_seconds", "policy_lag_max", "warnings")
    shown = {name: told(name) for name in names} | {"reward": told("reward", environment="sums")}
    assert not any(value is None or math.isnan(value) for value in shown.values())
    before.finished(
        untrained_metrics(run=RUN, step=7, attempt="t-0", times=TIMES, warnings=[])
    )  # the gauges say other things now
    counted = told("completion_tokens_total"), told("skipped_updates_total")

    after = ProgressReporter(RUN, None, make_store(tmp_path))
    after.environment = "sums"
    after.taken_up(step.policy_version, step)
    assert {name: told(name) for name in names} | {"reward": told("reward", environment="sums")} == shown
    assert told("step") == step.policy_version
    assert (told("completion_tokens_total"), told("skipped_updates_total")) == counted
    assert after.last == step


def test_a_step_that_trained_on_nothing_leaves_a_gap_where_its_means_would_be(tmp_path: Path) -> None:
    progress = ProgressReporter(RUN, None, make_store(tmp_path))
    progress.environment = "sums"
    progress.finished(METRICS)
    progress.finished(untrained_metrics(run=RUN, step=8, attempt="t-0", times=TIMES, warnings=["nothing"]))
    for name in ("loss", "gradient_norm", "entropy", "kl", "clip_low", "policy_lag_mean", "learning_rate"):
        assert math.isnan(told(name) or 0.0), name
    for name in ("reward", "task_reward", "length_penalty"):
        assert math.isnan(told(name, environment="sums") or 0.0), name
    assert (told("idle_ratio"), told("step_seconds"), told("tokens_per_second")) == (0.25, 100.0, 0.0)
    assert told("warnings") == 1.0


def test_a_step_of_supervised_fine_tuning_has_no_ratios_lags_or_rewards(tmp_path: Path) -> None:
    progress = ProgressReporter(RUN, None, make_store(tmp_path))
    progress.environment = "unused"
    progress.finished(
        bare_metrics(
            run=RUN, step=1, attempt="t-0", times=TIMES, epoch=0.5, rows=8, loss=2.5, entropy=1.5, completion_tokens=80
        )
    )
    assert (told("loss"), told("entropy")) == (2.5, 1.5)
    for name in ("clip_low", "clip_high", "kl", "mismatch_kl", "policy_lag_max"):
        assert math.isnan(told(name) or 0.0), name
    assert told("reward", environment="unused") is None
