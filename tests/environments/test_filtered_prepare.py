"""Prepare of a run with an offline filter, as a whole: counts and base model come from the store of the run that sampled."""

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from samples import DIGEST, run_config
from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import FILTER_DATASET, DatasetSource, GenerateSettings
from shoal.contracts.filtering import FilterReport, ProblemCount
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared
from shoal.contracts.sft_data import write_problem_counts
from shoal.contracts.task_source import OfflineFilter, TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.environments.prepare import prepare
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.task_source import RunSource, find_tasks
from shoal.rewards.math import MathJudge
from shoal.storage.store import Store, open_folder

TASKS = Arithmetic().tasks(12, 0)
CONFIG = run_config(
    tasks=TaskSource(environment="arithmetic", count=12, offline_filter=OfflineFilter()),
    length_reward=None,
    recipe=Recipe(max_sequence_length=96),
)


def sampled(folder: Path, run: str, correct: list[int]) -> None:
    """What the run that samples has left."""
    (folder / "others" / f"{run}-filter").mkdir(parents=True)
    store = open_folder(folder / "others" / f"{run}-filter", f"shoal/{run}-filter", deadline_seconds=2.0)
    base = folder / "base"
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["12+34=", "\n"])
    shape = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=32, eos_token_id=0, **shape)
    ).save_pretrained(base)
    tokenizer.save_pretrained(base)
    for path in base.iterdir():
        store.put_file(keys.BASE_MODEL + path.name, path)
    prepared = Prepared(
        run=f"{run}-filter", model_id="tiny", environment="arithmetic", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=12,
        base_pass_rate=0.3,
    )  # fmt: skip
    store.put(keys.PREPARED, prepared.to_json())
    data = write_problem_counts(
        [ProblemCount(task.problem_id, 8, right, 9.0) for task, right in zip(TASKS, correct, strict=True)]
    )
    store.put(keys.dataset_problems(FILTER_DATASET, 0), data)
    card = DatasetCard(
        name=FILTER_DATASET, run=f"{run}-filter", licence="unknown", model_id="tiny", weights_digest=DIGEST, environment="arithmetic",
        environment_digest=DIGEST, tasks_digest=tasks_digest(TASKS), task_count=12, samples_per_problem=8, temperature=1.0,
        filters=GenerateSettings(), rows=0, completion_tokens=0, problems=12, problems_solved=0, correct_histogram=[0] * 9, parts=[],
        problem_files=[DatasetFile(name="problems-00000.parquet", sha256=hashlib.sha256(data).hexdigest(), size=len(data), rows=12)],
    )  # fmt: skip
    store.put(keys.dataset_card(FILTER_DATASET), card.to_json())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "store").mkdir()
    return open_folder(tmp_path / "store", f"shoal/{CONFIG.run}", deadline_seconds=2.0)


def test_the_task_table_is_what_the_filter_keeps_and_the_model_the_one_that_was_sampled(
    store: Store, tmp_path: Path
) -> None:
    sampled(tmp_path, CONFIG.run, [0, 4, 8, 1, 2, 3, 4, 8, 8, 0, 1, 2])
    prepared = prepare(CONFIG, store, tmp_path / "scratch")
    assert read_tasks(store.get(keys.task_table(prepared.tasks_digest))) == [TASKS[n] for n in (1, 3, 4, 5, 6, 10, 11)]
    assert prepared.base_pass_rate == 0.3
    assert store.get(keys.BASE_MODEL + "model.safetensors") == (tmp_path / "base" / "model.safetensors").read_bytes()
    report = FilterReport.from_json(store.get(keys.FILTER_REPORT))
    assert report.outcomes == {"kept": 7, "too easy": 3, "too hard": 2}


def test_a_filter_that_leaves_less_than_a_submission_is_refused(store: Store, tmp_path: Path) -> None:
    sampled(tmp_path, CONFIG.run, [4] + [0] * 11)
    with pytest.raises(CannotPrepare, match=r"there are 1 tasks; a submission has \d+ different ones"):
        prepare(CONFIG, store, tmp_path / "scratch")


def test_golds_that_the_run_that_sampled_has_proven_are_not_proven_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"problem": "{n}?", "answer": "x+{n}"}}\n' for n in range(1, 13)))
    source = TaskSource(environment="math", dataset=DatasetSource(path=str(rows)), offline_filter=OfflineFilter())
    config = CONFIG.model_copy(update={"tasks": source})
    sampled(tmp_path, config.run, [4] * 12)
    counted = open_folder(
        tmp_path / "others" / f"{config.run}-filter", f"shoal/{config.run}-filter", deadline_seconds=2
    )
    find_tasks(config, RunSource.of_run(config.tasks)[0], tmp_path, [counted])

    def again(judge: MathJudge, gold: str) -> str | None:
        raise AssertionError(f"{gold} is proven again")

    monkeypatch.setattr("shoal.environments.math.gold_flaw", again)
    with pytest.raises(CannotPrepare, match=r"sampled a task table with digest .* the data set was changed"):
        prepare(config, store, tmp_path / "scratch")  # the counts above are of other tasks
