"""The commands that are printed for the trained model work as they are printed."""

import os
import subprocess
import sys
from pathlib import Path

from run_documents import RunFolder, step_metrics

from shoal.contracts import keys
from shoal.contracts.run import Prepared
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.environments.base import load
from shoal.report.access import open_run
from shoal.report.loading import load_commands
from shoal.report.write import FALLBACK_PROMPT, Report, example_prompt, make_report


def make_checkpoint(folder: Path) -> dict[str, bytes]:
    """A Qwen3 of a few thousand parameters with a tokenizer of single characters, saved as the trainer saves its own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    characters = ["<eos>", *"0123456789+=<>,. \n", *"abcdefghijklmnopqrstuvwxyzTF"]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(characters)}, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(characters), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=64, tie_word_embeddings=False, eos_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def report_with_model(tmp_path: Path) -> Report:
    run = RunFolder(tmp_path)
    run.add_step(step_metrics(0))
    tasks = load("arithmetic").tasks(4, seed=1)
    digest = tasks_digest(tasks)
    run.store.put(keys.task_table(digest), write_tasks(tasks))
    prepared = Prepared(
        run="demo", model_id="demo/tiny", environment="arithmetic", environment_digest="00" * 32, tasks_digest=digest, task_count=4
    )  # fmt: skip
    run.store.put(keys.PREPARED, prepared.to_json())
    run.add_version(1, make_checkpoint(tmp_path / "checkpoint"))
    return make_report(run.path, run.path / "metrics.jsonl", run.path / "model")


def test_the_printed_command_loads_the_exported_model_with_transformers(tmp_path: Path) -> None:
    command = report_with_model(tmp_path).commands[0]
    assert command.title == "With transformers:"
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(["bash", "-c", command.text], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    first = load("arithmetic").tasks(4, seed=1)[0].prompt
    assert done.stdout.replace(" ", "").startswith(str(first))


def test_the_prompt_of_the_commands_is_the_run_s_first_task(tmp_path: Path) -> None:
    report_with_model(tmp_path)
    assert example_prompt(open_run(tmp_path / "demo")) == f"{load('arithmetic').tasks(4, seed=1)[0].prompt}\n"


def test_without_a_task_table_the_prompt_is_a_word(tmp_path: Path) -> None:
    assert example_prompt(open_run(RunFolder(tmp_path).path)) == FALLBACK_PROMPT


def test_a_folder_or_prompt_with_quotes_does_not_break_out_of_the_command(tmp_path: Path) -> None:
    for command in load_commands(tmp_path / "it's; touch x", "$(touch x) `touch x` \"'", 32):
        program = command.text.replace("python", "cat <<<", 1).replace(" -c ", " ", 1)
        shown = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
        assert "$(touch x) `touch x`" in shown
    assert list(tmp_path.iterdir()) == []
