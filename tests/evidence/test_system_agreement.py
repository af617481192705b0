"""Runs of the real system beside the simulator's: the manifest of an arm, what is read from a run's store, the band and the table.

A whole run is `python -m benchmarks.reproduce.system`; its parts have their own tests. What is read here is written with real contracts.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from benchmarks.reproduce import agreement, system
from benchmarks.reproduce.__main__ import RESULT, compact, digest, seeds_of
from benchmarks.reproduce.arms import BOUNDARIES, MATCHED_ARMS, MATCHED_STEPS, Arm
from benchmarks.reproduce.page import BEGIN, END
from benchmarks.reproduce.summary import prediction
from run_documents import NODE, RunFolder, step_metrics

from servers import ROOT
from shoal.cli.local_run import config_of, read_manifest
from shoal.contracts import keys
from shoal.contracts.datasets import DatasetColumns
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.verdicts import Outcome, RowReward, Verdict
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.datasets import import_files
from shoal.errors import InputWrong
from shoal.report.access import open_run
from shoal.report.facts import StoreFacts, StoreReader

ARM = MATCHED_ARMS["matched_async2"]
STEPS = 10


def config(folder: Path, arm: Arm, steps: int = MATCHED_STEPS) -> RunConfig:
    """`config/run.json` of an arm, as the operator makes it."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(system.manifest(arm, 7, steps, folder, folder / "tasks.jsonl")))
    return config_of(read_manifest(path))


@pytest.mark.parametrize("name", ["matched_async0", "matched_async2", "matched_no_online"])
def test_the_manifest_of_an_arm_has_the_simulators_recipe(tmp_path: Path, name: str) -> None:
    arm = MATCHED_ARMS[name]
    found, wanted = config(tmp_path, arm), arm.full_recipe()
    assert found.recipe.model_copy(update={"online_filter": wanted.online_filter}) == wanted
    assert found.recipe.online_filter == ("TaskReward" if arm.online_filter else "None")
    assert (found.async_level, found.seed, found.steps) == (arm.async_level, 7, MATCHED_STEPS)
    assert (found.sampling.temperature, found.sampling.max_completion_tokens) == (1.0, arm.max_completion)
    assert found.length_reward == arm.lengths
    assert found.kept_versions > agreement.MEASURE_EVERY_STEPS + arm.async_level
    assert found.model.path == str(tmp_path)


def test_every_matched_arm_within_the_bounds_of_a_manifest_can_be_run(tmp_path: Path) -> None:
    for arm in MATCHED_ARMS.values():
        if arm.async_level <= 4:
            assert config(tmp_path, arm).async_level == arm.async_level


def test_an_arm_beyond_the_bounds_of_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputWrong, match="asyncLevel"):
        config(tmp_path, MATCHED_ARMS["matched_async8"])
    with pytest.raises(ValueError, match=r"changes versions at tokens \(8, 16\)"):
        config(tmp_path, replace(ARM, boundaries=BOUNDARIES))


@pytest.mark.parametrize("steps", [0, 4, 165, -5])
def test_steps_that_cannot_be_compared_are_refused(tmp_path: Path, steps: int) -> None:
    with pytest.raises(ValueError, match=f"--steps is {steps}; allowed: multiples of 5 up to 160"):
        config(tmp_path, ARM, steps)


def test_the_runs_tasks_are_the_simulators_in_their_order(tmp_path: Path) -> None:
    tasks = Arithmetic().tasks(40, 3)
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(system.row_of(task)) + "\n" for task in tasks))
    found = import_files([path], DatasetColumns.model_validate(system.COLUMNS))
    assert tasks_digest(found.tasks) == tasks_digest(tasks)


@pytest.mark.parametrize("text", ["async9-1", "async2", "async2-0", "async2-x", "-1"])
def test_what_is_no_run_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no run; allowed: ARM-SEED .* async0, async1"):
        system._run(text)


def test_a_command_without_a_run_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "benchmarks.reproduce.system"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "say which runs, such as async2-1, or --page" in done.stderr


def verdict(step: int, number: int, outcome: Outcome, solved: list[float]) -> Verdict:
    accepted = outcome == "accept"
    rewards = [RowReward(task_reward=each, length_penalty=0.0, reward=each) for each in solved] if accepted else []
    return Verdict(
        run="demo", node=NODE, lease=f"{number:032x}", step=step, submission=number, sha256=f"{1000 * step + number:064x}",
        policy_version=step if accepted else None, outcome=outcome, reason="redraw" if outcome == "reject" else None,
        rewards=rewards, rows=len(rewards), completion_tokens=20 * len(rewards),
    )  # fmt: skip


def batch(step: int, *files: tuple[int, int]) -> StepBatch:
    """A batch of files of (version, groups)."""
    return StepBatch(
        run="demo", step=step, beacon="00" * 32, groups=sum(groups for _, groups in files), groups_dropped=1,
        files=[
            BatchFile(node=NODE, submission=number, sha256="cd" * 32, policy_version=version, rows=32, prompt_indices=[*range(groups)])
            for number, (version, groups) in enumerate(files)
        ],
    )  # fmt: skip


MIXED, EQUAL = [1.0] + [0.0] * 7, [1.0] * 8


def finished(folder: Path, steps: int = STEPS) -> StoreFacts:
    """What a run left whose step `s` has 12 groups of version s - 2 and 4 of version s - 1."""
    run = RunFolder(folder)
    for step in range(steps):
        run.store.put(keys.step_batch(step), batch(step, (max(0, step - 2), 12), (max(0, step - 1), 4)).to_json())
        run.store.put(keys.step_metrics(step), step_metrics(step, policy_lag_mean=1.75).to_json())
        run.add_verdict(verdict(step, 0, "accept", MIXED * 12 + EQUAL * 4))
        run.add_verdict(verdict(step, 1, "accept", MIXED * 4))
        run.add_verdict(verdict(step, 2, "reject", []))
        run.add_verdict(verdict(step, 3, "expired", []))
    return StoreReader(open_run(run.path).store).read()


def test_a_record_has_the_rewards_of_all_accepted_rows_and_the_lag_of_the_trained_ones(tmp_path: Path) -> None:
    records = system.records_of(finished(tmp_path), ARM, STEPS)
    assert [each["step"] for each in records] == list(range(STEPS + 1))
    last = records[STEPS - 1]
    assert last["task_reward"] == pytest.approx((16 / 8 + 4) / 20)
    assert last["completion_length"] == 20
    assert (last["groups_sampled"], last["groups_used"], last["signal_share"]) == (20, 16, 16 / 20)
    assert (last["files_accepted"], last["files_rejected"], last["files_late"]) == (2, 1, 1)
    assert (last["rows_behind_0"], last["rows_behind_1"], last["rows_behind_2"]) == (0, 4 * 8, 12 * 8)
    assert last["seconds"] == 10.0
    assert (records[0]["rows_behind_0"], records[1]["rows_behind_1"]) == (16 * 8, 16 * 8)  # version 0 is the oldest


def test_a_run_without_all_of_its_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="step 10 of 15 has no batch or no metrics"):
        system.records_of(finished(tmp_path), ARM, 15)


def test_a_row_older_than_the_arm_allows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="step 2 has rows 2 versions behind; allowed: 1"):
        system.records_of(finished(tmp_path), MATCHED_ARMS["matched_async1"], STEPS)


def test_another_runs_tasks_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    tasks = Arithmetic().tasks(4, 1)
    prepared = {"run": "demo", "model_id": "demo/tiny", "environment": "arithmetic", "environment_digest": "0" * 64}
    run.store.put(
        keys.PREPARED,
        json.dumps(prepared | {"tasks_digest": tasks_digest(tasks), "task_count": 4, "base_pass_rate": None}).encode(),
    )
    system.check_tasks(open_run(run.path), tasks)
    with pytest.raises(RuntimeError, match="demo has other tasks than the simulator"):
        system.check_tasks(open_run(run.path), tasks[:3])


def test_the_lag_of_a_run_is_the_mean_over_its_rows(tmp_path: Path) -> None:
    found = agreement.lag_of(compact(system.records_of(finished(tmp_path), ARM, STEPS)))
    assert found.most == 2
    assert sum(found.shares) == pytest.approx(1)
    # step 0 has rows of version 0 alone, and so has step 1
    assert found.mean == pytest.approx((0 + 1.0 + 8 * 1.75) / STEPS)


def test_without_a_trained_row_there_is_no_lag() -> None:
    with pytest.raises(ValueError, match="no row was trained on: columns rows_behind_0"):
        agreement.lag_of({"step": [0], "rows_behind_0": [0]})
    with pytest.raises(ValueError, match="columns of rows behind are missing"):
        agreement.lag_of({"step": [0]})


def test_a_band_holds_a_further_value_in_nineteen_of_twenty_cases() -> None:
    draw = np.random.default_rng(5)
    values = draw.normal(0.6, 0.03, (4000, 9))
    bands = [prediction(row[:8].tolist()) for row in values]
    held = np.mean([abs(row[8] - band.mean) <= band.half for row, band in zip(values, bands, strict=True)])
    assert held == pytest.approx(0.95, abs=0.012)


def simulator(*ends: float, steps: int = 160) -> dict[str, dict[str, list[float | None]]]:
    """Seeds whose reward rises evenly to `ends` at step 10 and stays there."""
    return {
        str(seed): {
            "step": list(range(steps + 1)),
            "version": [*(max(0, step - 2) for step in range(steps)), None],
            "groups_sampled": [*[22] * steps, None],
            "held_out_reward": [None if step % 5 else min(1.0, step / 10) * end for step in range(steps + 1)],
        }
        for seed, end in enumerate(ends, 1)
    }


def ran(end: float) -> dict[str, Any]:
    """A document of one run of ten steps that ends at `end`."""
    ours: dict[str, list[float | None]] = {
        "step": list(range(STEPS + 1)),
        "held_out_reward": [None if step % 5 else step / 10 * end for step in range(STEPS + 1)],
        "rows_behind_0": [128] * 5 + [0] * 5 + [None],
        "rows_behind_1": [0] * 5 + [128] * 5 + [None],
        "rows_behind_2": [0] * 10 + [None],
        "groups_sampled": [20] * STEPS + [None],
        "files_accepted": [5] * STEPS + [None],
        "files_rejected": [0] * 9 + [1, None],
    }
    [theirs] = simulator(0.58, steps=STEPS).values()
    seeds = {"7": {"system": ours, "simulator": theirs}}
    return {"steps": STEPS, "arms": {"matched_async2": {"digest": "", "seeds": seeds}}}


SEEDS = {"matched_async2": simulator(0.58, 0.6, 0.62, 0.6)}
BAND = 3.182 * np.std([0.29, 0.3, 0.31, 0.3], ddof=1) * np.sqrt(1.25)
"""Of an end, the mean of the measurements at steps 0, 5 and 10, half the last one."""


def test_a_run_is_compared_with_the_simulator_at_equal_steps() -> None:
    [found] = agreement.compare(ran(0.6), SEEDS)
    assert found.band is not None
    assert (found.band.mean, found.band.half) == (pytest.approx(0.3), pytest.approx(BAND))
    assert (found.reward, found.inside, found.points_inside, found.points) == (pytest.approx(0.3), True, 2, 2)
    assert found.gap == pytest.approx(0.3 - 0.29)
    assert (found.lag.mean, found.lag.most) == (0.5, 1)
    assert found.simulated_lag == pytest.approx((0 + 1 + 8 * 2) / 10)
    assert (found.groups, found.files_accepted, found.files_rejected) == ((20, 22), 50, 1)


def test_a_run_beside_the_band_does_not_agree() -> None:
    beyond = 2 * BAND + 0.001
    assert [each.inside for each in agreement.compare(ran(0.6 + beyond), SEEDS)] == [False]
    assert [each.inside for each in agreement.compare(ran(0.6 - beyond), SEEDS)] == [False]
    assert "| **no** | 0 of 2 |" in agreement.table(ran(0.6 + beyond), SEEDS)


@pytest.mark.parametrize("seeds", [{}, {"matched_async2": simulator(0.58, 0.6)}])
def test_without_enough_seeds_of_the_simulator_nothing_is_said_of_a_band(seeds: dict[str, Any]) -> None:
    [found] = agreement.compare(ran(0.6), seeds)
    assert (found.band, found.inside, found.points) == (None, None, 0)


def test_the_table_has_a_row_a_run() -> None:
    last = agreement.table(ran(0.6), SEEDS).splitlines()[-1]
    assert last == (
        "| `matched_async2`, 7 | 0.300 | 0.271 to 0.329 | yes | 2 of 2 | +0.010 | 0.50 of 2, 1.70 | 50% / 50% / 0% | 20.0, 22.0 | 50, 1 |"
    )
    assert agreement.table({"steps": 0, "arms": {}}, SEEDS) == ""


def test_a_wait_says_what_it_waits_for() -> None:
    assert system.waits_for(-1, 60) == ("version 0, the base model,", system.FIRST_VERSION_SECONDS)
    assert system.waits_for(3, 60) == ("version 4 of 60", system.VERSION_SECONDS)
    assert system.waits_for(60, 60) == ("the end of `shoal up`", system.END_SECONDS)


def test_a_run_that_fails_says_how_its_log_ends(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("kind: TrainingRun\n")
    with pytest.raises(RuntimeError, match=r"(?s)async2-1: `shoal up` ended with code 2.*run\.yaml"):
        system.shoal_up(tmp_path, tmp_path / "runs" / "async2-1", 5)


def test_results_are_those_of_the_cache_and_of_what_is_committed(tmp_path: Path) -> None:
    result, name = tmp_path / "reproduction_system.json", "matched_async2"
    found = ran(0.6)["arms"][name]["seeds"]["7"]
    for seed, steps in ((7, MATCHED_STEPS), (12, MATCHED_STEPS), (8, 5)):
        system.place_of(name, seed, steps, tmp_path).write_text(json.dumps(found))
    system.write_results(tmp_path, result)
    written = json.loads(result.read_text())
    assert list(written["arms"][name]["seeds"]) == ["7", "12"]  # the run of 5 steps is none of these
    system.place_of(name, 7, MATCHED_STEPS, tmp_path).unlink()
    system.write_results(tmp_path, result)
    assert json.loads(result.read_text())["arms"] == written["arms"]
    written["arms"][name]["digest"] = "of another arm"
    result.write_text(json.dumps(written))
    system.write_results(tmp_path, result)
    assert list(json.loads(result.read_text())["arms"][name]["seeds"]) == ["12"]


def test_the_committed_runs_are_of_the_arms_as_they_are_and_stand_on_the_page() -> None:
    found = agreement.read(system.SYSTEM_RESULT)
    for name, run in found["arms"].items():
        assert run["digest"] == digest(replace(MATCHED_ARMS[name], steps=found["steps"])), f"run {name} again"
        for columns in run["seeds"].values():
            ours, theirs = columns["system"], columns["simulator"]
            assert ours["step"] == theirs["step"] == list(range(found["steps"] + 1))
            assert ours["held_out_reward"][0] == theirs["held_out_reward"][0]  # both begin with one base model
    simulators = seeds_of(json.loads(RESULT.read_text())["arms"])
    page = (ROOT / "docs" / "reproduction.md").read_text().partition(BEGIN)[2].partition(END)[0]
    assert agreement.table(found, simulators) in page, "run `python -m benchmarks.reproduce.system --page`"
