"""Policy versions as loaded models, a few at a time.

In: the store's published versions (assembled and checked by `storage.versions`). Out: `LoadedPolicy`: a model to prefill
with, and its weights digest. Called by `judge`. Step `s` accepts versions `s-k .. s`, so that a few versions serve
nearly every file.
"""

import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from shoal.contracts.keys import version_name
from shoal.contracts.proof_profile import ProofProfile, read_profile
from shoal.storage.store import Store
from shoal.storage.versions import materialise, read_sealed_manifest
from shoal.telemetry import get_logger


@dataclass(frozen=True)
class LoadedPolicy:
    """A version in memory: a Hugging Face causal language model, in evaluation mode, in the dtype of its checkpoint.

    `profile` is what is known about proofs of this model; the manifest's digest covers it like every file.
    """

    version: int
    weights_digest: str
    model: Any
    profile: ProofProfile | None = None

    @property
    def dtype(self) -> str:
        """Of the weights, as torch calls it without its prefix: float32, bfloat16, float16."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        """How many there are; tied weights count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


class Policies:
    """Loaded versions, the least recently used one dropped first, with its folder."""

    def __init__(self, store: Store, folder: Path, run: str, trainer_key: str, capacity: int) -> None:
        """`folder` holds the assembled checkpoints; `capacity` versions are kept in memory and on disk."""
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; allowed: 1 or more versions")
        self._store = store
        self._folder = folder
        self._run = run
        self._trainer_key = trainer_key
        self._capacity = capacity
        self._loaded: OrderedDict[int, LoadedPolicy] = OrderedDict()

    def get(self, version: int) -> LoadedPolicy:
        """The version, loaded; raises what `storage.versions.materialise` raises when it is not available, and
        `proof_profile.WrongProfile`.
        """
        if version in self._loaded:
            self._loaded.move_to_end(version)
            return self._loaded[version]
        # Before anything is dropped: a worker may claim a version of its step's window that is not made yet, again and again.
        read_sealed_manifest(self._store, version, self._trainer_key)
        while len(self._loaded) >= self._capacity:
            oldest, _ = self._loaded.popitem(last=False)
            shutil.rmtree(self._folder / version_name(oldest), ignore_errors=True)
        folder = self._folder / version_name(version)
        manifest = materialise(self._store, version, folder, self._run, self._trainer_key)
        model = load_model(folder)
        policy = LoadedPolicy(version, manifest.sha256, model, read_profile(folder, model.config.hidden_size))
        self._loaded[version] = policy
        kept = {version_name(number) for number in self._loaded}
        for left in self._folder.iterdir():  # of a process before this one; until now it could serve as a delta's base
            if left.name not in kept:
                shutil.rmtree(left, ignore_errors=True)
        get_logger().info("weights loaded", version=version, digest=manifest.sha256[:12])
        return policy


def load_model(folder: Path) -> Any:
    """The checkpoint in `folder` in its own dtype, on a GPU if there is one; never runs code from the checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False, use_safetensors=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.eval().to(device)
