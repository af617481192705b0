"""The worker's pure parts: proofs recorded row by row, planning, versions on disk, checkpoint facts."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_policy
from safetensors.torch import load_file, save_file

from shoal.contracts import toploc
from shoal.contracts.canonical import sign
from shoal.contracts.identity import PrivateKey
from shoal.contracts.weights import WeightsManifest
from shoal.environments.tokens import completion_text, eos_token_ids
from shoal.inference.checkpoint import BadCheckpointError, read_checkpoint
from shoal.inference.proofs import ProofRecorder
from shoal.inference.rollouts import plan_submission
from shoal.inference.weights import newest_policy, versions_in
from shoal.storage.checkpoint_files import MANIFEST_FILE

TRAINER = PrivateKey.generate()


def test_rows_recorded_one_by_one_and_interleaved_give_the_proofs_of_each_whole() -> None:
    random = np.random.default_rng(0)
    whole = {
        name: random.normal(size=(length, 128)).astype(np.float32) for name, length in (("a", 70), ("b", 3), ("c", 32))
    }
    recorder = ProofRecorder()
    for step in range(70):
        running = [name for name, states in whole.items() if step < len(states)]
        recorder.add(running, np.stack([whole[name][step] for name in running]))
    taken = recorder.take(["c", "a", "b"])
    assert taken == {name: toploc.encode(states) for name, states in whole.items()}
    with pytest.raises(KeyError):
        recorder.take(["a"])


def test_aborted_sequences_are_forgotten() -> None:
    recorder = ProofRecorder()
    recorder.add(["a"], np.ones((1, 128), np.float32))
    recorder.forget()
    with pytest.raises(KeyError):
        recorder.take(["a"])


def test_states_without_a_request_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rows of hidden states for 1 sampled tokens"):
        ProofRecorder().add(["a"], np.ones((2, 128), np.float32))


def test_a_plan_holds_every_sample_of_every_group_in_order() -> None:
    planned = plan_submission(
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
    with pytest.raises(ValueError, match=r"the prompt of add-\d+-\d+ has 128 tokens, maxSequenceLength is 128"):
        plan_submission(
            tiny_policy.STEP, tiny_policy.LEASE, tiny_policy.PUBLIC, tiny_policy.TASKS, lambda task, target: [5] * 128
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
        BadCheckpointError, match=r"neither config\.json nor generation_config\.json gives eos_token_id"
    ):
        read_checkpoint(folder)
    change(folder, eos_token_id=1)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(BadCheckpointError, match="header of 18446744073709551615 bytes"):
        read_checkpoint(folder)
    save_file({}, folder / "model.safetensors")
    with pytest.raises(BadCheckpointError, match="no tensors in any"):
        read_checkpoint(folder)


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
