"""Versions in a validator's memory: as many as fit, down to one, the next one written over the last, and files of one version together."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
import torch
from safetensors.torch import load_file, save_file
from test_validator_process import ROLE_KEYS, publish

from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.contracts.weights import DeltaBase, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.storage.store import Store, open_folder
from shoal.validation.memory import HOST_SHARE, host_bytes, weights_bytes
from shoal.validation.models import CannotHold, Models, check_division, overwrite, weights_in
from shoal.validation.policies import Policies
from shoal.validation.service import TURN_SECONDS, Turn


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three of one shape, of 2 MB."""
    root = tmp_path_factory.mktemp("checkpoints")
    for seed in range(3):
        tiny_policy.make_policy(root / str(seed), seed)
    return [root / str(seed) for seed in range(3)]


class Held:
    """Three published versions, and policies whose memory holds `versions` of them."""

    def __init__(self, folder: Path, checkpoints: list[Path], versions: float, capacity: int = 3) -> None:
        (folder / "store").mkdir()
        self.store: Store = open_folder(folder / "store", "shoal/tiny")
        for version, checkpoint in enumerate(checkpoints):
            publish(self.store, checkpoint, version)
        self.folder = folder / "policies"
        self.beats = 0
        self.policies = Policies(
            self.store, self.folder, "tiny", ROLE_KEYS["trainer"].public, capacity,
            memory_bytes=int(versions * weights_in(checkpoints[0])), beat=self._beat,
        )  # fmt: skip

    def _beat(self) -> None:
        self.beats += 1

    def on_disk(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(model: Any, folder: Path) -> bool:
    own = model.state_dict()
    return all(torch.equal(own[name], weight) for name, weight in weights(folder).items())


def test_where_one_version_fits_the_next_is_written_over_it(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=1.5)
    assert held.policies.preferred == []
    first = held.policies.get(0)
    assert held.policies.preferred == [0]
    places = {name: weight.data_ptr() for name, weight in first.model.state_dict().items()}
    for version in (1, 2, 0):
        policy = held.policies.get(version)
        assert policy.model is first.model
        assert {name: weight.data_ptr() for name, weight in policy.model.state_dict().items()} == places
        assert same(policy.model, checkpoints[version])
        assert held.on_disk() == {keys.version_name(version)}
        assert same(policy.model, held.folder / keys.version_name(version))  # memory is not the file's
    assert held.policies.get(0) is policy


def test_the_digest_of_a_version_is_known_without_loading_it(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=1.5)
    digest = held.policies.digest(1)
    assert held.policies.preferred == []
    assert held.beats == 0
    assert (held.policies.get(1).weights_digest, held.policies.digest(1)) == (digest, digest)


def test_as_many_versions_are_held_as_fit(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=2.5)
    first, second = held.policies.get(0), held.policies.get(1)
    assert first.model is not second.model
    assert held.policies.get(0) is first
    assert held.policies.get(2).model is second.model
    assert same(first.model, checkpoints[0])
    assert held.on_disk() == {"v000000", "v000002"}
    assert held.policies.preferred == [0, 2]
    roomy = Policies(held.store, tmp_path / "roomy", "tiny", ROLE_KEYS["trainer"].public, 3, memory_bytes=1 << 40)
    roomy.get(0)
    assert roomy.preferred == []  # every version that a file may need is held: no file has to wait for its turn


def test_a_version_that_was_sealed_again_takes_the_place_of_what_is_held(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    held = Held(tmp_path, checkpoints, versions=2.5)
    old = held.policies.get(1)
    digest = publish(held.store, checkpoints[2], 1)
    new = held.policies.get(1)
    assert (new.weights_digest, old.weights_digest == digest) == (digest, False)
    assert same(new.model, checkpoints[2])
    assert same(new.model, held.folder / keys.version_name(1))
    assert held.policies.get(1) is new


def test_a_version_larger_than_the_memory_is_refused_with_what_to_do(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=0.5)
    with pytest.raises(CannotHold, match=r"v000001 has 0\.0 GB of weights, this validator may hold .*gpu\.count"):
        held.policies.get(1)


def test_signs_of_life_come_with_every_piece_and_every_tensor(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=1.5)
    held.policies.get(0)
    assert held.beats >= 2  # two pieces
    before = held.beats
    held.policies.get(1)
    # Two pieces, as they come and as they are hashed, and the tensors.
    assert held.beats - before == 2 + 2 + len(weights(checkpoints[1]))


def test_a_delta_is_applied_to_the_version_that_is_held(checkpoints: list[Path], tmp_path: Path) -> None:
    held = Held(tmp_path, checkpoints, versions=1.5)
    as_delta(held.store, version=1, base=0)
    held.policies.get(0)
    for info in held.store.list(keys.version(0)):
        if info.key.endswith(".bin"):
            held.store.delete(info.key)
    assert same(held.policies.get(1).model, checkpoints[1])
    assert held.on_disk() == {"v000001"}


def as_delta(store: Store, version: int, base: int) -> None:
    """Sign a published version again as one that is based on another. Its pieces may stay in full."""
    trainer = ROLE_KEYS["trainer"]
    manifests = {
        number: Signed[WeightsManifest].from_json(store.get(keys.version_weights(number))).document
        for number in (version, base)
    }
    record = Signed[VersionOpen].from_json(store.get(keys.version_open(version))).document
    opened = record.model_copy(
        update={
            "encoding": "delta",
            "base": DeltaBase(version=base, sha256=manifests[base].sha256, item_size=4),
        }
    )
    sealed = manifests[version].model_copy(update={"open_digest": document_digest(opened)})
    store.put(keys.version_open(version), sign(opened, trainer).to_json())
    store.put(keys.version_weights(version), sign(sealed, trainer).to_json())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found.pop("model.norm.weight"), "lacks 1 weights of the version before: model.norm.weight"),
        (
            lambda found: found.update(more=torch.zeros(2)),
            r"more of shape \(2,\) is not a weight of the version before",
        ),
        (
            lambda found: found.update({"lm_head.weight": torch.zeros(3, 128)}),
            r"lm_head\.weight of shape \(3, 128\) is not a weight",
        ),
    ],
)
def test_a_version_of_another_shape_is_refused_and_leaves_no_half_written_one(
    change: Callable[[dict[str, torch.Tensor]], Any], told: str, checkpoints: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    tiny_policy.make_policy(other, 9)
    found = weights(other)
    change(found)
    save_file(found, other / "model.safetensors", metadata={"format": "pt"})
    held = Held(tmp_path, [checkpoints[0], other, checkpoints[2]], versions=1.5)
    held.policies.get(0)
    with pytest.raises(CannotHold, match=told):
        held.policies.get(1)
    assert same(held.policies.get(0).model, checkpoints[0])


def test_weights_that_are_tied_are_written_once(tmp_path: Path) -> None:
    model = tiny_policy.make_policy(tmp_path / "a", 1, tied=True)
    other = tiny_policy.make_policy(tmp_path / "b", 2, tied=True)
    overwrite(model, tmp_path / "b")
    assert torch.equal(model.lm_head.weight, other.lm_head.weight)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_that_the_gpus_do_not_divide_is_refused(checkpoints: list[Path]) -> None:
    check_division(checkpoints[0], 2)
    with pytest.raises(CannotHold, match=r"4 GPUs cannot spread the model: they do not divide num_key_value_heads, 2"):
        check_division(checkpoints[0], 4)
    Models().check(checkpoints[0])


def test_rounding_the_weights_of_a_load_gives_signs_of_life(checkpoints: list[Path]) -> None:
    """On one core it takes minutes at 32B, and a validator that says nothing for ten is killed."""
    beats: list[int] = []
    Models(lambda: beats.append(1)).load(0, checkpoints[0], "fp8")
    assert len(beats) > len(weights(checkpoints[0]))


def test_memory_is_the_setting_else_a_share_of_the_pods_limit(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("max\n")
    assert host_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert host_bytes(tmp_path) == 1 << 30
    cpu = torch.device("cpu")
    assert weights_bytes(7, cpu) == 7
    assert weights_bytes(None, cpu, 2) == int(HOST_SHARE * host_bytes())


def test_files_of_the_held_version_come_first_for_a_turn_and_then_whichever_waits_longest() -> None:
    turn = Turn()
    assert turn.versions([], 0.0) == []
    assert turn.versions([3], 10.0) == [3]
    assert turn.versions([3], 9.0 + TURN_SECONDS) == [3]
    for later in (10.0, 20.0, 30.0):  # until another version takes its place
        assert turn.versions([3], later + TURN_SECONDS) == []
    assert turn.versions([2], 31.0 + TURN_SECONDS) == [2]
