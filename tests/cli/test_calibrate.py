"""`shoal calibrate`: a profile beside the weights, a table for people, and mistakes in one line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shoal.cli.calibrate import calibrate
from shoal.contracts.proof_profile import read_profile
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.errors import InputWrong
from shoal.proofs.calibration import Effort

EFFORT = Effort(sequences=10, max_tokens=8, seconds=60.0, file_sequences=5, learning_rate=1e-4, updates=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random model of one layer; in float32."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["12+34=", "<2+4+0=6,1+3+0=4>46"])
    shape = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=32, **shape)
    config.eos_token_id = 1
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_profile_is_beside_the_weights_and_has_the_given_type(model: Path) -> None:
    said: list[str] = []
    calibrate(model, "arithmetic", "bfloat16", 64, EFFORT, None, said.append)
    profile = read_profile(model, 128)
    assert profile is not None
    assert (profile.dtype, profile.size.sequences, profile.size.file_sequences) == ("bfloat16", 10, 5)
    text = "\n".join(said)
    assert "10 sequences, 80 tokens, 10 chunks in bfloat16; files of 5 sequences" in text
    assert "dimension prior, passed" in text
    assert "0.00% (0.00%-30.85%)" in text  # of honest chunks: none of ten
    assert f"wrote {model / 'proof_profile.json'}" in text
    assert not list(model.glob("*.part*"))


def test_the_workers_own_engine_bounds_whole_files(model: Path) -> None:
    said: list[str] = []
    calibrate(model, "arithmetic", "bfloat16", 64, EFFORT, None, said.append, engine=True)
    profile = read_profile(model, 128)
    assert profile is not None
    assert profile.size.sequences == 20  # ten of each
    assert profile.thresholds.file_mean is not None
    assert profile.honest.rejected_files.events == 0
    assert "mean over a file of many chunks: " in "\n".join(said)


def test_prompts_may_leave_no_more_room_than_their_completions_need(model: Path) -> None:
    effort = replace(EFFORT, max_tokens=2)
    calibrate(model, "arithmetic", "float32", 9, effort, None, lambda line: None)  # prompts have 7 tokens
    assert read_profile(model, 128) is not None
    with pytest.raises(InputWrong, match=r"none of 512 prompts takes at most 6 of a sequence's 8 tokens"):
        calibrate(model, "arithmetic", "float32", 8, effort, None, lambda line: None)


def test_a_model_that_never_ends_is_refused(model: Path) -> None:
    for name in ("generation_config.json", "config.json"):
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | {"eos_token_id": None}))
    with pytest.raises(InputWrong, match=r"neither generation_config.json nor config.json gives eos_token_id"):
        calibrate(model, "arithmetic", "float32", 64, EFFORT, None, lambda line: None, engine=True)


def test_an_engine_that_cannot_start_is_named_with_its_last_words(model: Path) -> None:
    of_nobody = json.loads((model / "config.json").read_text()) | {"architectures": ["OfNobodyForCausalLM"]}
    (model / "config.json").write_text(json.dumps(of_nobody))  # transformers goes by the model type, vLLM by this
    with pytest.raises(InputWrong, match=r"the engine ended with status 1: "):
        calibrate(model, "arithmetic", "float32", 64, EFFORT, None, lambda line: None, engine=True)


def test_the_profile_is_written_to_the_given_path(model: Path, tmp_path: Path) -> None:
    calibrate(model, "arithmetic", "auto", 64, EFFORT, tmp_path / "there.json", lambda line: None)
    assert (tmp_path / "there.json").exists()
    assert read_profile(model, 128) is None


def test_wrong_options_are_named(model: Path, tmp_path: Path) -> None:
    def refusal(folder: Path, environment: str = "arithmetic", max_length: int = 64) -> str:
        with pytest.raises(InputWrong) as caught:
            calibrate(folder, environment, "auto", max_length, EFFORT, None, lambda line: None)
        return "\n".join(caught.value.lines)

    assert "is not a folder" in refusal(tmp_path / "nowhere")
    assert "none of 512 prompts takes at most 1 of a sequence's 2 tokens" in refusal(model, max_length=2)
    assert "nonesuch" in refusal(model, environment="nonesuch")
