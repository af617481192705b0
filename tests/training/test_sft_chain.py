"""A warm start, small: right answers of a tiny model are learnt by it, and it is right more often on sums that it has not seen.

The same with a pool of workers, and reinforcement learning after it, is `tests/system/test_warm_start.py`.
"""

from pathlib import Path

import pytest
import torch
from tiny_run import Orchestrator, make_store, make_trainer, ranks
from tiny_run import config as trainer_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.sft import SftDataset, SftSettings
from shoal.contracts.sft_data import Trace
from shoal.contracts.steps import StepMetrics
from shoal.contracts.task_source import TaskSource
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import Score
from shoal.environments.generated_model import make_model
from shoal.environments.prepare import prepare
from shoal.environments.prompts import prompt_tokens
from shoal.environments.sampling import pass_rate, sample
from shoal.environments.tokens import completion_text
from shoal.storage.store import open_folder
from trace_files import put_traces

STEPS, MAX_LENGTH = 3, 64
SAMPLED_TASKS, SAMPLES, ASKED_TASKS = 512, 4, 384
CERTAIN = 3.0
"""Standard errors between the two rates."""


def load(folder: Path) -> tuple[AutoModelForCausalLM, AutoTokenizer]:
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def verified_traces(folder: Path, tasks: list) -> list[Trace]:
    """Right answers of the model in `folder`, each text once."""
    model, tokenizer = load(folder)
    environment, ends = Arithmetic(), frozenset([model.config.eos_token_id])
    asked = [task for task in tasks for _ in range(SAMPLES)]
    prompts = [prompt_tokens(tokenizer, environment, task, None, None) for task in asked]
    kept = {}
    for task, tokens in zip(asked, sample(model, prompts, 28, seed=3), strict=True):
        text = completion_text(tokenizer, tokens, ends)
        if environment.score(task, text) == Score(1.0, "the sum is right"):
            prompt = environment.prompt(task, None)
            kept[prompt, text] = Trace(task.problem_id, task.task_type, prompt, text, 1.0, len(tokens))
    return list(kept.values())


@pytest.mark.timeout(600)  # of waits on a busy machine; half a minute of work
def test_what_is_learnt_from_its_own_right_answers_makes_a_model_right_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loopback: Loopback
) -> None:
    ranks()  # one thread, as everywhere
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    others = tmp_path / "others" / "traces"
    others.mkdir(parents=True)
    tasks = Arithmetic().tasks(SAMPLED_TASKS + ASKED_TASKS, seed=11)
    spec = GeneratedModel(hidden_size=128, layers=2, warm_start_pass_rate=0.2)
    make_model(tmp_path / "made", Arithmetic(), [None], spec, MAX_LENGTH, 7, lambda *_: None)
    traces = verified_traces(tmp_path / "made", tasks[:SAMPLED_TASKS])
    put_traces(open_folder(others, "shoal/traces", deadline_seconds=5.0), traces)

    orchestrator = Orchestrator(loopback.address())
    orchestrator.latest_version = STEPS
    settings = SftSettings(
        dataset=SftDataset(run="traces"),
        epochs=3,
        batch_rows=32,
        learning_rate=1e-3,
        warmup_steps=8,
        held_out_share=0.05,
        max_sequence_length=MAX_LENGTH,
        pack_length=512,
    )
    run = trainer_config(orchestrator.url, STEPS, mode="SFT", sft=settings).model_copy(
        update={
            "model": ModelSource(path=str(tmp_path / "made")),
            "tasks": TaskSource(environment="arithmetic", count=8),
        }
    )
    store = make_store(tmp_path / "store")
    prepare(run, store, tmp_path / "scratch")
    try:
        base = store.local_path(keys.BASE_MODEL + "config.json").parent
        make_trainer(tmp_path, base, store, orchestrator, run).run()
    finally:
        orchestrator.close()

    reports = [StepMetrics.from_json(store.get(keys.step_metrics(step))) for step in range(STEPS)]
    assert reports[-1].loss < reports[0].loss
    result = store.local_path(keys.FINAL_MODEL + "config.json").parent
    asked = [(task, None) for task in tasks[SAMPLED_TASKS:]]
    with torch.no_grad():
        before, after = (pass_rate(*load(folder), Arithmetic(), asked, seed=5) for folder in (base, result))
    error = (2 * 0.25 / len(asked)) ** 0.5
    assert after > before + CERTAIN * error, f"{len(traces)} traces: pass@1 {before:.3f} before, {after:.3f} after"
