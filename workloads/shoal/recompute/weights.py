"""Where the weights for proofs come from: the version that was just made again, bit for bit, or the store's published one.

In: a version's number. Out: a loaded policy, or why there is none. Called by `files`. Two models are in memory at most.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from shoal.contracts.proof_profile import WrongProfile, read_profile
from shoal.contracts.signed import BadSignature
from shoal.contracts.trust import HeldKeys
from shoal.ledger.audit import first_line
from shoal.recompute.evidence import CannotCheck, Evidence, WrongEvidence
from shoal.recompute.steps import Made
from shoal.storage import BadKey, NotFound
from shoal.storage.chains import BrokenDeltas
from shoal.storage.checkpoint_files import WrongWeights
from shoal.validation.memory import weights_bytes
from shoal.validation.models import CannotHold, best_device, load_model, weights_in
from shoal.validation.policies import LoadedPolicy, Policies

Answer = TypeVar("Answer")
HELD = 2
GB = 1e9


class Weights:
    """Loaded versions of one run. Safe for several threads."""

    def __init__(self, evidence: Evidence, folder: Path) -> None:
        """`folder` takes what is assembled from the store."""
        self._lock = threading.Lock()
        self._made: LoadedPolicy | None = None
        self._problems: dict[int, tuple[type[Exception], str]] = {}
        self._memory_bytes = weights_bytes(None, best_device())
        self._policies = Policies(
            evidence.store,
            folder,
            evidence.config.run,
            HeldKeys(evidence.roster, "trainer"),
            capacity=HELD,
            memory_bytes=self._memory_bytes,
        )

    def take(self, made: Made | None) -> None:
        """Use a version that was made again and equals the published one, from here on; None: no more."""
        with self._lock:
            self._made = None
            if made is not None:
                try:
                    self._made = self._loaded(made)
                    self._problems.pop(made.version, None)
                except (CannotHold, torch.OutOfMemoryError) as error:
                    self._problems[made.version] = _no_room(made.version, error)

    def _loaded(self, made: Made) -> LoadedPolicy:
        size = weights_in(made.folder)
        if size > self._memory_bytes:
            raise CannotHold(
                f"it has {size / GB:.1f} GB of weights, this machine may hold {self._memory_bytes / GB:.1f} GB"
            )
        model = load_model(made.folder)
        digest = self._policies.digest(made.version)
        return LoadedPolicy(made.version, digest, model, read_profile(made.folder, model.config.hidden_size))

    def digest(self, version: int) -> str:
        """The digest of a version, which is not loaded for it. Raises as `get` does."""
        with self._lock:
            if self._made is not None and self._made.version == version:
                return self._made.weights_digest
        return self._asked(version, self._policies.digest)

    def get(self, version: int) -> LoadedPolicy:
        """Raises `CannotCheck` for a version that is gone, `WrongEvidence` for one whose pieces are not what was signed.

        It may be written over one that was given before: nothing may run on that.
        """
        with self._lock:
            if self._made is not None and self._made.version == version:
                return self._made
        return self._asked(version, self._policies.get)

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
                    self._problems[version] = (
                        WrongEvidence,
                        f"the weights of version {version} are not what the trainer signed: {first_line(error)}",
                    )
            kind, text = self._problems[version]
        raise kind(text)  # a new one each time: a kept one would hold the frames, and so the rows, of every file


def _no_room(version: int, error: Exception) -> tuple[type[Exception], str]:
    """Kept, so that the next file of the version does not load it again."""
    return CannotCheck, f"the weights of version {version} cannot be checked here: {first_line(error)}"
