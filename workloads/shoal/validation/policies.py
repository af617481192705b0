"""Policy versions as loaded models: as many as memory holds, down to one.

In: the store's published versions (assembled and checked by `storage.versions`). Out: `LoadedPolicy`: a model to prefill
with, and its weights digest. Called by `judge`. Step `s` accepts versions `s-k .. s`, so that a few versions serve
nearly every file. A version that finds no room is written over the least recently used one: on disk it is made by its delta, in memory tensor by
tensor. At 65 GB: 65 GB on disk for each version held and one more, 65 GB of memory a version; a change takes some two minutes, most of it hashing.
"""

import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.contracts.keys import version_name
from shoal.contracts.pools import Quantization
from shoal.contracts.proof_profile import ProofProfile, read_profile
from shoal.contracts.signed import Signer
from shoal.environments.proof_calibration import hidden_size
from shoal.storage.store import Store
from shoal.storage.versions import materialise, read_sealed_manifest
from shoal.telemetry import get_logger
from shoal.validation import metrics
from shoal.validation.models import Beat, CannotHold, Models, no_beat, weights_in

GB = 1e9


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
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}  # which are two where only the head is spread
        return sum(parameter.numel() for name, parameter in self.model.named_parameters() if name not in tied)


class Policies:
    """Loaded versions with their folders. The least recently used one makes room."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        run: str,
        trainer_key: Signer,
        capacity: int,
        memory_bytes: int | None = None,
        models: Models | None = None,
        beat: Beat = no_beat,
        quantization: Quantization | None = None,
    ) -> None:
        """`folder` holds the assembled checkpoints. At most `capacity` versions are kept, of at most `memory_bytes` together (None: any).

        `beat` is called for each piece that was downloaded or loaded. `quantization` is the run's: versions are held as its workers sample with them.
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; allowed: 1 or more versions")
        self._store = store
        self._folder = folder
        self._run = run
        self._trainer_key = trainer_key
        self._capacity = capacity
        self._memory_bytes = memory_bytes
        self._models = models if models is not None else Models(beat)
        self._beat = beat
        self._quantization = quantization
        self._loaded: OrderedDict[int, LoadedPolicy] = OrderedDict()
        self._room = capacity

    @property
    def preferred(self) -> list[int]:
        """Versions that are held, where memory is short of the versions that files may need: their files should come first."""
        return sorted(self._loaded) if self._room < self._capacity else []

    def digest(self, version: int) -> str:
        """The weights digest of a version, without loading it; raises `storage.NotFound` when it is not sealed."""
        if version in self._loaded:
            return self._loaded[version].weights_digest
        return read_sealed_manifest(self._store, version, self._trainer_key).sha256

    def get(self, version: int) -> LoadedPolicy:
        """The version, loaded; where it is held, its seal alone is read again.

        Raises what `storage.versions.materialise` raises when it is not available, `proof_profile.WrongProfile`, and `CannotHold`.
        """
        # Before anything is dropped: a worker may claim a version of its step's window that is not made yet, again and again.
        sealed = read_sealed_manifest(self._store, version, self._trainer_key)
        if version in self._loaded:
            if self._loaded[version].weights_digest == sealed.sha256:
                self._loaded.move_to_end(version)
                return self._loaded[version]
            self._drop(version)  # a leaked key had sealed it, and the trainer's new one sealed its number again
        # What is held stays until then: on disk it can be the base of a delta.
        folder = self._folder / version_name(version)
        manifest = materialise(self._store, version, folder, self._run, self._trainer_key, self._beat)
        profile = read_profile(folder, hidden_size(folder))
        self._room = self._fitting(folder)
        self._put(version, folder)
        policy = LoadedPolicy(version, manifest.sha256, self._models.of(version), profile)
        self._loaded[version] = policy
        kept = {version_name(number) for number in self._loaded}
        for left in self._folder.iterdir():  # of a process before this one; until now it could serve as a delta's base
            if left.name not in kept:
                shutil.rmtree(left, ignore_errors=True)
        get_logger().info("weights loaded", version=version, digest=manifest.sha256[:12], held=sorted(self._loaded))
        return policy

    def _put(self, version: int, folder: Path) -> None:
        """Bring a version into memory: beside the others, or over the one that was not needed for longest."""
        while len(self._loaded) > self._room:
            self._drop(next(iter(self._loaded)))
        if len(self._loaded) < self._room:
            self._models.load(version, folder, self._quantization)
            metrics.LOADS.labels("beside").inc()
            return
        old, _ = self._loaded.popitem(last=False)
        try:
            self._models.replace(old, version, folder, self._quantization)
        finally:
            shutil.rmtree(self._folder / version_name(old), ignore_errors=True)
        metrics.LOADS.labels("over").inc()

    def _fitting(self, folder: Path) -> int:
        """How many versions of this one's size are held at most."""
        self._models.check(folder)
        size = weights_in(folder)
        if self._memory_bytes is None:
            return self._capacity
        if size > self._memory_bytes:
            raise CannotHold(
                f"{folder.name} has {size / GB:.1f} GB of weights, this validator may hold {self._memory_bytes / GB:.1f} GB: give validators more"
                " or larger GPUs (gpu.count), more memory (resources), or raise validation.weightsMemoryBytes"
            )
        return min(self._capacity, self._memory_bytes // size)

    def _drop(self, version: int) -> None:
        self._models.drop(version)
        del self._loaded[version]
        shutil.rmtree(self._folder / version_name(version), ignore_errors=True)
