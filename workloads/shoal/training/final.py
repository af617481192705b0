"""The run's result: its last version as a checkpoint in the store, for other runs and for people.

In: host copies of the last version. Out: `models/final/` (weights, configuration, tokenizer) and the seal `models/final.json`, which is written last:
files without it are of a stop on the way, and those that are whole are kept. Called by `delivery`, in the background, on all ranks.
"""

import hashlib
import shutil
from collections.abc import Mapping

from pydantic import ValidationError
from torch import Tensor

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.run import RunConfig
from shoal.storage import NotFound, Store
from shoal.training.outbox import Outbox
from shoal.training.parallel import Ranks


class Final:
    """Writes the result of one run; `outbox` makes the checkpoint's files."""

    def __init__(self, config: RunConfig, store: Store, outbox: Outbox, ranks: Ranks) -> None:
        self._config = config
        self._store = store
        self._outbox = outbox
        self._ranks = ranks.in_background

    def put(self, copies: Mapping[str, Tensor], version: int) -> None:
        """Make `version` the result, unless it is already. The result of a run that was given more steps is replaced."""
        if self._ranks.broadcast(self._is_there(version), "whether the result is written"):
            return
        folder = self._outbox.write(copies, version)
        if not self._ranks.leader:
            return
        if self._store.exists(keys.FINAL_SEAL):
            self._store.delete(keys.FINAL_SEAL)
        there = {info.key: info.size for info in self._store.list(keys.FINAL_MODEL)}
        paths = {keys.FINAL_MODEL + path.name: path for path in sorted(folder.iterdir())}
        for key in there.keys() - paths.keys():
            self._store.delete(key)
        files = {}
        for key, path in paths.items():
            with path.open("rb") as file:
                files[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
            # A stop on the way costs the file that was being written: a large model has many.
            if there.get(key) != path.stat().st_size or self._store.sha256(key)[0] != files[path.name]:
                self._store.put_file(key, path)
        shutil.rmtree(folder)
        seal = FinalModel(run=self._config.run, version=version, model_id=self._config.model_id, files=files)
        self._store.put(keys.FINAL_SEAL, seal.to_json())
        telemetry.get_logger().info("the run's result is written", key=keys.FINAL_MODEL, version=version)

    def _is_there(self, version: int) -> bool:
        if not self._ranks.leader:
            return False  # what the leader finds is what counts
        try:
            return FinalModel.from_json(self._store.get(keys.FINAL_SEAL)).version == version
        except (NotFound, ValidationError):
            return False
