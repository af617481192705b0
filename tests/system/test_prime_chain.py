"""The pipeline of `examples/prime` on fewer tasks and steps: a strong policy's traces, an SFT run that learns them, PRIME from what that leaves.

The figures of the whole example are in its README.
"""

from pathlib import Path
from typing import Any

import pytest
from local_system import LocalSystem, write_manifest
from test_warm_start import CERTAIN, SEED_OF_RUNS

from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.final_model import FinalModel
from shoal.contracts.sft import SftManifest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.sampling import pass_rate
from shoal.storage import Store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "prime"
RUN_SECONDS = 1800.0
TASKS, ASKED, STEPS = 256, 384, 2
FEW_TASKS = {"count": TASKS}


def run_part(folder: Path, name: str, **changes: Any) -> Store:
    manifest = write_manifest(EXAMPLE / f"{name}.yaml", folder / f"{name}.yaml", **changes)
    system = LocalSystem(manifest, folder / "runs")
    system.start()
    try:
        system.until(f"{name} is complete", lambda: system.local.finished() == "complete", RUN_SECONDS)
        rejected = [entry for entry in system.ledger() if entry.kind == "rejected"]
        assert not rejected
        return system.store
    finally:
        system.stop()


def right(store: Store, prefix: str) -> float:
    """How often the model under `prefix` is right on sums that no run has seen, sampled at temperature 1."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = store.local_path(f"{prefix}config.json").parent
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    tasks = Arithmetic().tasks(TASKS + ASKED, SEED_OF_RUNS)[TASKS:]
    return pass_rate(model, tokenizer, Arithmetic(), [(task, None) for task in tasks], seed=1)


def test_prime_begins_with_what_a_strong_policys_traces_have_taught(tmp_path: Path) -> None:
    traces = run_part(tmp_path, "1-traces", tasks=FEW_TASKS)
    card = DatasetCard.from_json(traces.get(keys.dataset_card("sums")))
    strong = right(traces, keys.BASE_MODEL)
    assert card.filters.max_completion_tokens == 30
    assert TASKS // 2 < card.rows <= TASKS, "an answer is kept once"
    assert card.left_out["is wrong"] > 0

    weak = {"generated": {"warmStartPassRate": 0.2}}
    tuned = run_part(tmp_path, "2-sft", tasks=FEW_TASKS, model=weak, steps=1, sft={"epochs": 4})
    rows = SftManifest.from_json(tuned.get(keys.SFT_MANIFEST))
    assert rows.rows(held_out=False) + rows.rows(held_out=True) == card.rows
    base, taught = right(tuned, keys.BASE_MODEL), right(tuned, keys.FINAL_MODEL)
    error = (2 * 0.25 / ASKED) ** 0.5
    assert strong > base + CERTAIN * error, "the traces are of a better policy"
    assert taught > base + CERTAIN * error, "they teach the base model"

    recipe = {"promptsPerStep": 8, "optimizerSteps": 1}
    trained = run_part(
        tmp_path, "3-prime", tasks=FEW_TASKS, steps=STEPS, recipe=recipe, sampling={"groupsPerSubmission": 2}
    )
    assert trained.get(keys.BASE_MODEL + "model.safetensors") == tuned.get(keys.FINAL_MODEL + "model.safetensors")
    seal = FinalModel.from_json(trained.get(keys.FINAL_SEAL))
    assert seal.version == STEPS
    assert right(trained, keys.FINAL_MODEL) > base + CERTAIN * error, "what was taught is not lost"
