"""Policy versions as loaded models, a few at a time.

In: the store's published versions (assembled and checked by `storage.versions`). Out: `Policy`: a model to prefill
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
from shoal.storage.store import Store
from shoal.storage.versions import materialise
from shoal.telemetry import busy, get_logger


@dataclass(frozen=True)
class Policy:
    """A version in memory: a Hugging Face causal language model, in evaluation mode, in the dtype of its checkpoint."""

    version: int
    weights_digest: str
    model: Any


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
        self._loaded: OrderedDict[int, Policy] = OrderedDict()

    def get(self, version: int) -> Policy:
        """The version, loaded; raises what `storage.versions.materialise` raises when it cannot be had."""
        if version in self._loaded:
            self._loaded.move_to_end(version)
            return self._loaded[version]
        with busy("load"):
            while len(self._loaded) >= self._capacity:
                oldest, _ = self._loaded.popitem(last=False)
                shutil.rmtree(self._folder / version_name(oldest), ignore_errors=True)
            folder = self._folder / version_name(version)
            manifest = materialise(self._store, version, folder, self._run, self._trainer_key)
            policy = Policy(version, manifest.sha256, load_model(folder))
        self._loaded[version] = policy
        get_logger().info("weights loaded", version=version, digest=manifest.sha256[:12])
        return policy


def load_model(folder: Path) -> Any:
    """The checkpoint in `folder` in its own dtype, on a GPU if there is one; never runs code from the checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False, use_safetensors=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.eval().to(device)
