"""Where the weights for proofs come from: the version that was just made again, bit for bit, or the store's published one.

In: a version's number. Out: a loaded policy, or why there is none. Called by `files`. Two models are in memory at most.

Where a file may be of several versions, each version that was made again stays on the disk until no file needs it: as many as the async level and
one more. At 65 GB and an async level of 2 that is 195 GB.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from shoal.contracts import keys
from shoal.contracts.proof_profile import WrongProfile, read_profile
from shoal.contracts.signed import BadSignature
from shoal.contracts.trust import HeldKeys
from shoal.ledger.audit import first_line
from shoal.recompute.evidence import CannotCheck, Evidence, WrongEvidence
from shoal.recompute.steps import RepeatedVersion
from shoal.storage import BadKey, NotFound
from shoal.storage.chains import BrokenDeltas
from shoal.storage.checkpoint_files import WrongWeights
from shoal.validation.memory import weights_bytes
from shoal.validation.models import CannotHold, best_device, load_model, overwrite, weights_in
from shoal.validation.policies import LoadedPolicy, Policies

Answer = TypeVar("Answer")
HELD = 2
GB = 1e9


class Weights:
    """Loaded versions of one run. Safe for several threads."""

    def __init__(self, evidence: Evidence, folder: Path, made: Path, span: int = 0) -> None:
        """`folder` takes what is assembled from the store. Versions that were made again stay in `made` until `span` newer ones are there.

        What an earlier call left in `made` was compared with the published versions then.
        """
        self._lock = threading.Lock()
        self._kept, self._span = made, span
        self._folders: dict[int, Path] = {}
        for path in made.iterdir() if made.is_dir() else ():
            if (version := keys.parse_version(path.name)) is not None:
                self._folders[version] = path
        self._made: dict[int, LoadedPolicy] = {}
        self._problems: dict[int, tuple[type[Exception], str]] = {}
        self._memory_bytes = weights_bytes(None, best_device())
        self._quantization = evidence.config.quantization
        self._policies = Policies(
            evidence.store,
            folder,
            evidence.config.run,
            HeldKeys(evidence.roster, "trainer"),
            capacity=HELD,
            memory_bytes=self._memory_bytes,
            quantization=self._quantization,
        )

    def take(self, made: RepeatedVersion) -> None:
        """Use a version that was made again and equals the published one, from here on."""
        with self._lock:
            folder = made.folder if self._span == 0 else self._link(made)
            self._folders[made.version] = folder
            self._problems.pop(made.version, None)
            for version in [each for each in self._folders if each < made.version - self._span]:
                _remove(self._folders.pop(version))

    def rest(self) -> None:
        """Hold no version in memory that was made again; the folder of the last one goes where files have one version."""
        with self._lock:
            self._made.clear()
            if self._span == 0:
                self._folders.clear()

    def close(self) -> None:
        """No file is left."""
        self.rest()
        for folder in self._kept.iterdir() if self._kept.is_dir() else ():
            _remove(folder)
        shutil.rmtree(self._kept, ignore_errors=True)

    def _link(self, made: RepeatedVersion) -> Path:
        """The same files, in a folder that stays when the trainer removes its own."""
        folder = self._kept / keys.version_name(made.version)
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(made.folder, partial, copy_function=os.link)
            partial.rename(folder)
        return folder

    def _loaded(self, version: int) -> LoadedPolicy:
        """One that was made again; with as many others as find room beside it."""
        if version not in self._made:
            folder = self._folders[version]
            size = weights_in(folder)
            if size > self._memory_bytes:
                raise CannotHold(
                    f"it has {size / GB:.1f} GB of weights, this machine may hold {self._memory_bytes / GB:.1f} GB"
                )
            model = None
            while self._made and len(self._made) >= min(HELD, self._memory_bytes // size):
                model = self._made.pop(next(iter(self._made))).model
            if model is None:
                model = load_model(folder, quantization=self._quantization)
            else:  # whoever asked before may still hold it: there is no room for another beside it
                overwrite(model, folder, quantization=self._quantization)
            digest = self._policies.digest(version)
            self._made[version] = LoadedPolicy(version, digest, model, read_profile(folder, model.config.hidden_size))
        return self._made[version]

    def digest(self, version: int) -> str:
        """The digest of a version, which is not loaded for it. Raises as `get` does."""
        return self._asked(version, self._policies.digest)

    def get(self, version: int) -> LoadedPolicy:
        """Raises `CannotCheck` for a version that is gone, `WrongEvidence` for one whose pieces are not what was signed.

        It may be written over one that was given before: nothing may run on that.
        """
        return self._asked(version, self._loaded if version in self._folders else self._policies.get)

    def _asked(self, version: int, ask: Callable[[int], Answer]) -> Answer:
        with self._lock:
            if version not in self._problems:
                try:
                    return ask(version)
                except NotFound as error:
                    self._problems[version] = (
                        CannotCheck,
                        f"the weights of version {version} are not in the store ({first_line(error)}); repeat the steps too, to make them again",
                    )
                except (CannotHold, torch.OutOfMemoryError) as error:
                    self._problems[version] = _no_room(version, error)
                except (ValueError, BadSignature, WrongWeights, WrongProfile, BrokenDeltas, BadKey, OSError) as error:
                    # What was made here was compared then: a fault of this machine's copy is no word of the trainer's.
                    own = ask == self._loaded
                    self._problems[version] = (
                        (
                            CannotCheck,
                            f"the weights of version {version} that were made here cannot be read: {first_line(error)}",
                        )
                        if own
                        else (
                            WrongEvidence,
                            f"the weights of version {version} are not what the trainer signed: {first_line(error)}",
                        )
                    )
            kind, text = self._problems[version]
        raise kind(text)  # a new one each time: a kept one would hold the frames, and so the rows, of every file


def _remove(folder: Path) -> None:
    """Delete a version. Half of one that a stopped audit leaves has another name, and is not taken for it."""
    going = folder.with_suffix(".partial")
    if not folder.name.endswith(".partial"):
        with contextlib.suppress(OSError):
            folder.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _no_room(version: int, error: Exception) -> tuple[type[Exception], str]:
    """Kept, so that the next file of the version does not load it again."""
    return CannotCheck, f"the weights of version {version} cannot be checked here: {first_line(error)}"
