"""Generate, SFT and reinforcement learning in a row on the tiny model, as in `examples/warm-start`: each begins with what the one before has left.

How often each model is right is measured on sums that no run has seen. `make soak` runs this; the figures are in benchmarks/results/warm-start.json.
"""

from pathlib import Path

import pytest
import torch
from local_system import LocalSystem
from test_soak import write_result
from transformers import AutoModelForCausalLM, AutoTokenizer

from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.final_model import FinalModel
from shoal.contracts.sft import SftManifest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.sampling import pass_rate
from shoal.storage import Store
from shoal_operator.engine.conditions import is_true

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "warm-start"
RUN_SECONDS = 1200.0
SEED_OF_RUNS = 7
TASKS_OF_RUNS, ASKED = 1024, 768
CERTAIN = 3.0
"""Standard errors between two rates."""


def run_to_the_end(name: str, runs: Path, *, kill_trainer: bool = False) -> Store:
    system = LocalSystem(EXAMPLE / f"{name}.yaml", runs)
    system.start()
    try:
        if kill_trainer:
            system.until("version 1 is announced", lambda: system.latest_version() >= 1, RUN_SECONDS)
            system.kill("trainer", "trainer")
        system.until("the run is complete", lambda: system.local.finished() == "complete", RUN_SECONDS)
        assert system.running_pods()
        return system.store
    finally:
        system.stop()


def rate(store: Store, prefix: str) -> float:
    """How often the model under `prefix` is right on sums that no run has seen, sampled at temperature 1."""
    folder = store.local_path(f"{prefix}config.json").parent
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    tasks = Arithmetic().tasks(TASKS_OF_RUNS + ASKED, SEED_OF_RUNS)[TASKS_OF_RUNS:]
    torch.set_num_threads(1)
    return pass_rate(model, tokenizer, Arithmetic(), [(task, None) for task in tasks], seed=1)


def test_a_run_that_builds_on_one_that_is_not_there_waits_and_says_so(tmp_path: Path) -> None:
    system = LocalSystem(EXAMPLE / "3-train.yaml", tmp_path / "runs")
    system.start()
    try:
        system.until("a condition", lambda: system.local.status().get("conditions"), 30)
        messages = {each["type"]: each.get("message", "") for each in system.local.status()["conditions"]}
        assert messages["Ready"] == (
            "waits for TrainingRun warm-sft (spec.model.run), which does not exist: create it, or correct the name"
        )
        assert not is_true({"status": system.local.status()}, "Failed")
    finally:
        system.stop()


def test_each_of_three_runs_begins_with_the_one_before_and_what_is_learnt_stays(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    traces = run_to_the_end("1-traces", runs)
    card = DatasetCard.from_json(traces.get(keys.dataset_card("sums")))
    tuned = run_to_the_end("2-sft", runs, kill_trainer=True)
    rows = SftManifest.from_json(tuned.get(keys.SFT_MANIFEST))
    assert rows.rows(held_out=False) + rows.rows(held_out=True) == card.rows
    assert traces.get(keys.BASE_MODEL + "model.safetensors") == tuned.get(keys.BASE_MODEL + "model.safetensors")
    trained = run_to_the_end("3-train", runs)
    seal = FinalModel.from_json(tuned.get(keys.FINAL_SEAL))
    assert trained.get(keys.BASE_MODEL + "model.safetensors") == tuned.get(keys.FINAL_MODEL + "model.safetensors")
    assert (seal.version, FinalModel.from_json(trained.get(keys.FINAL_SEAL)).version) == (4, 30)

    base, after_sft, after_training = (
        rate(tuned, keys.BASE_MODEL), rate(tuned, keys.FINAL_MODEL), rate(trained, keys.FINAL_MODEL),
    )  # fmt: skip
    error = (2 * 0.25 / ASKED) ** 0.5
    write_result(
        "warm-start",
        {
            "traces": card.rows,
            "tasks": card.task_count,
            "pass_at_1_base": base,
            "pass_at_1_after_sft": after_sft,
            "pass_at_1_after_reinforcement": after_training,
            "asked": ASKED,
            "standard_error_of_a_difference": round(error, 4),
        },
    )
    assert after_sft > base + CERTAIN * error
    assert (
        after_training > after_sft - CERTAIN * error
    )  # so few steps need not gain; that they can is the demo's to show
