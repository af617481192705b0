"""The worker's pure parts: planning, versions on disk, checkpoint facts."""

import json
from pathlib import Path

import pytest
import tiny_policy
from safetensors.torch import load_file, save_file

from shoal.contracts.proof_profile import PROFILE_FILE
from shoal.contracts.run import PublicRun
from shoal.contracts.signed import sign
from shoal.contracts.weights import WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.environments.tokens import completion_text, eos_token_ids
from shoal.inference.assignments import WrongRuleError, require_rule
from shoal.inference.checkpoint import BadCheckpointError, check_tensor_parallel, read_checkpoint
from shoal.inference.rollouts import plan_submission
from shoal.inference.weights import newest_policy, versions_in
from shoal.storage.checkpoint_files import MANIFEST_FILE

TRAINER = PrivateKey.generate()


def test_a_plan_holds_every_sample_of_every_group_in_order() -> None:
    planned = plan_submission(
        tiny_policy.WORK,
        tiny_policy.STEP,
        tiny_policy.LEASE,
        tiny_policy.PUBLIC,
        tiny_policy.TASKS,
        lambda task, target: [target or 0] * 90,
    )
    assert [row.sample_index for row in planned] == list(range(8)) * 3
    assert len({row.prompt_index for row in planned}) == 3
    assert len({row.request.seed for row in planned}) == 24
    assert all(row.task is tiny_policy.TASKS[row.prompt_index] for row in planned)
    assert {row.target_length for row in planned} <= {16, 24, 32}
    assert {row.request.max_tokens for row in planned} == {
        128 - 90
    }  # what the sequence length leaves, below the 40 allowed


def test_a_prompt_that_leaves_no_room_is_an_error_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"the prompt of add-\d+-\d+ has 128 tokens, but maxSequenceLength is 128"):
        plan_submission(
            tiny_policy.WORK,
            tiny_policy.STEP,
            tiny_policy.LEASE,
            tiny_policy.PUBLIC,
            tiny_policy.TASKS,
            lambda task, target: [5] * 128,
        )


def version_folder(root: Path, name: str, version: int, *, run: str = "tiny", key: PrivateKey = TRAINER) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    manifest = WeightsManifest(
        run=run, version=version, model="m", sha256="0" * 64, open_digest="0" * 64, shards=["0" * 64]
    )
    (folder / MANIFEST_FILE).write_bytes(sign(manifest, key).to_json())


def test_the_newest_allowed_version_that_the_trainer_signed_is_used(tmp_path: Path) -> None:
    assert newest_policy(tmp_path / "missing", TRAINER.public, "tiny") is None
    for version in (3, 4, 5):
        version_folder(tmp_path, f"v{version:06d}", version)
    version_folder(tmp_path, "v000006", 6, key=PrivateKey.generate())
    version_folder(tmp_path, "v000007", 7, run="another")
    version_folder(tmp_path, "v000008", 2)
    version_folder(tmp_path, "v000009.partial", 9)
    assert versions_in(tmp_path) == [3, 4, 5, 6, 7, 8]

    def newest(lowest: int, highest: int) -> int | None:
        found = newest_policy(tmp_path, TRAINER.public, "tiny", lowest, highest)
        return None if found is None else found.version

    assert newest(0, 99) == 5
    assert newest(2, 4) == 4
    assert newest(6, 99) is None
    assert newest(0, 2) is None


def test_a_checkpoint_says_how_it_is_served(tmp_path: Path) -> None:
    tiny_policy.make_policy(tmp_path / "m", 0)
    found = read_checkpoint(tmp_path / "m")
    assert (found.dtype, found.eos_token_ids, found.max_positions) == ("float32", {1}, 512)
    assert found.layout["model.embed_tokens.weight"] == ("F32", (258, 128))
    assert found.layout.keys() == load_file(tmp_path / "m" / "model.safetensors").keys()


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    tiny_policy.make_policy(folder, 0)
    with pytest.raises(BadCheckpointError, match=r"config\.json.*No such file"):
        read_checkpoint(tmp_path)
    change(folder, dtype="int8")
    with pytest.raises(BadCheckpointError, match="dtype is 'int8'; allowed: float32, bfloat16, float16"):
        read_checkpoint(folder)
    change(folder, dtype="float32", max_position_embeddings=None)
    with pytest.raises(BadCheckpointError, match="max_position_embeddings is None"):
        read_checkpoint(folder)
    (folder / "generation_config.json").unlink()
    change(folder, max_position_embeddings=512, eos_token_id=None)
    with pytest.raises(
        BadCheckpointError, match=r"neither generation_config\.json nor config\.json gives eos_token_id"
    ):
        read_checkpoint(folder)
    change(folder, eos_token_id=1)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(BadCheckpointError, match="header of 18446744073709551615 bytes"):
        read_checkpoint(folder)
    save_file({}, folder / "model.safetensors")
    with pytest.raises(BadCheckpointError, match="no tensors in any"):
        read_checkpoint(folder)


def test_a_checkpoint_names_the_dimensions_that_its_profile_masks(tmp_path: Path) -> None:
    tiny_policy.make_policy(tmp_path, 0)
    assert read_checkpoint(tmp_path).masked_dimensions == ()
    profile = tiny_policy.proof_profile([3, 64, 127])
    (tmp_path / PROFILE_FILE).write_bytes(profile.to_json())
    assert read_checkpoint(tmp_path).masked_dimensions == (3, 64, 127)
    (tmp_path / PROFILE_FILE).write_bytes(profile.model_copy(update={"hidden_size": 256}).to_json())
    with pytest.raises(BadCheckpointError, match="is of a model 256 wide, this one is 128 wide"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (3, "engine.tensorParallelSize is 3, which does not divide num_attention_heads, 4"),
        (4, None),  # two key-value heads are copied
        (8, "engine.tensorParallelSize is 8, which does not divide num_attention_heads, 4"),
    ],
)
def test_a_model_that_cannot_be_spread_is_refused_by_the_number_that_does_not_fit(
    tmp_path: Path, size: int, words: str | None
) -> None:
    tiny_policy.make_policy(tmp_path, 0)
    checkpoint = read_checkpoint(tmp_path)
    if words is None:
        check_tensor_parallel(checkpoint, size)
    else:
        with pytest.raises(BadCheckpointError, match=words):
            check_tensor_parallel(checkpoint, size)


def test_key_value_heads_that_can_be_neither_split_nor_copied_are_refused(tmp_path: Path) -> None:
    tiny_policy.make_policy(tmp_path, 0)
    change(tmp_path, num_attention_heads=12, num_key_value_heads=4, intermediate_size=240)
    with pytest.raises(BadCheckpointError, match="neither divides nor is a multiple of num_key_value_heads, 4"):
        check_tensor_parallel(read_checkpoint(tmp_path), 6)


def test_end_tokens_of_both_configurations_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert eos_token_ids(tmp_path) == {7, 9}


def test_the_text_of_a_completion_lacks_its_end_token_and_shows_others(tmp_path: Path) -> None:
    tiny_policy.make_policy(tmp_path, 0)
    tokenizer = tiny_policy.AutoTokenizer.from_pretrained(tmp_path)
    tokens = tokenizer.encode("<2+4+0=6>46", add_special_tokens=False)
    assert completion_text(tokenizer, [*tokens, 1], frozenset({1})) == "<2+4+0=6>46"
    assert completion_text(tokenizer, [*tokens, 0], frozenset({1})) == "<2+4+0=6>46<pad>"
    assert completion_text(tokenizer, [1], frozenset({1})) == ""


def test_a_worker_does_not_serve_a_run_whose_tokens_another_rule_draws() -> None:
    require_rule("gumbel-murmur3-1")
    with pytest.raises(WrongRuleError, match="draws tokens by rule vllm-cpu, this worker by gumbel-murmur3-1: install"):
        require_rule(PublicRun.model_fields["sampler"].default)  # what an orchestrator of 0.2 says
