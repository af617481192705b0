"""A made-up run for the broadcast's tests: its keys, configuration and checkpoints."""

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.broadcast.nginx import NGINX_PORT
from shoal.contracts import keys, relay_token
from shoal.contracts.completions import Sampling
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.protocol import RelayToken
from shoal.contracts.recipe import Recipe
from shoal.contracts.roster import ROLES, Role, Roster
from shoal.contracts.run import Addresses, NodeConfig, RunConfig
from shoal.contracts.settings import Broadcast
from shoal.contracts.signed import sign
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.validation import Validation
from shoal.crypto.keys import PrivateKey

RUN = "tides"
SHARD = 64 << 10
KEPT = 3


def cut_into(shard_bytes: int, anchor_every: int = 1) -> Broadcast:
    """Versions are sent in full unless a test says otherwise: made-up weights do not resemble each other."""
    return Broadcast(shard_bytes=shard_bytes, anchor_every=anchor_every)


def checkpoint(version: int, size: int = 10 * SHARD - 123) -> dict[str, bytes]:
    """Files of a made-up checkpoint: a config and `size` bytes of weights that differ from version to version."""
    return {
        "config.json": json.dumps({"version": version}).encode(),
        "model.safetensors": random.Random(version).randbytes(size),
    }


def trained(version: int, size: int = 6 * SHARD) -> dict[str, bytes]:
    """Files of a version of a run that learns slowly: a few of its bf16 weights differ from those of the version before."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    weights = np.random.default_rng(0).integers(0, 1 << 16, size // 2, dtype=np.uint16)
    for step in range(1, version + 1):
        moved = np.random.default_rng(step).random(weights.size) < 0.03
        weights = weights ^ moved.astype(np.uint16)
    safetensors = len(header).to_bytes(8, "little") + header + weights.tobytes()
    return {"config.json": b"{}", "model.safetensors": safetensors}


@dataclass
class Keys:
    """The keys of a made-up run."""

    run: PrivateKey = field(default_factory=PrivateKey.generate)
    roles: dict[Role, PrivateKey] = field(default_factory=lambda: {role: PrivateKey.generate() for role in ROLES})

    def roster(self) -> Roster:
        return Roster(run=RUN, keys={role: key.public for role, key in self.roles.items()})

    @property
    def trainer(self) -> PrivateKey:
        return self.roles["trainer"]

    def token(
        self, node: str = "a" * 64, *, seconds: float = 600, run: str = RUN, signer: Role = "orchestrator"
    ) -> str:
        """A relay token, by default a good one."""
        token = RelayToken(run=run, node=node, expires_unix=int(time.time() + seconds))
        return relay_token.encode(token, self.roles[signer])

    def config(
        self, origin: str = "127.0.0.1", orchestrator: str = "http://127.0.0.1:1", **changes: object
    ) -> RunConfig:
        fields: dict[str, object] = {
            "run": RUN,
            "steps": 100,
            "async_level": 1,
            "model_id": "tiny-model",
            "model": ModelSource(generated=GeneratedModel()),
            "tasks": TaskSource(environment="arithmetic", count=10),
            "recipe": Recipe(),
            "sampling": Sampling(),
            "length_reward": None,
            "validation": Validation(),
            "storage": StorageSpec(),
            "kept_versions": KEPT,
            "broadcast": cut_into(SHARD),
            "addresses": Addresses(
                discovery="http://127.0.0.1:1",
                orchestrator=orchestrator,
                origin=f"http://{origin}:{NGINX_PORT}",
                relays=[],
                redis="redis://127.0.0.1:1/0",
            ),
            "roster": sign(self.roster(), self.run),
            "run_key": self.run.public,
        }
        return RunConfig.model_validate({**fields, **changes})

    def node_config(self) -> NodeConfig:
        return NodeConfig(
            run=RUN,
            pool="pool",
            discovery="http://127.0.0.1:1",
            roster=sign(self.roster(), self.run),
            run_key=self.run.public,
        )


def put_outbox(outbox: Path, version: int, files: dict[str, bytes]) -> None:
    name = keys.version_name(version)
    making = outbox / f".making-{name}"
    making.mkdir()
    for file, data in files.items():
        (making / file).write_bytes(data)
    making.rename(outbox / name)
