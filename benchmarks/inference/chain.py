"""From "new version on a relay" to "first token with it", over the real chain: publisher, origin, relay, fetch, worker, each a process of its own.

Only the orchestrator and the agent are stand-ins (those of the tests): leases are there at once and the open step accepts what the moment asks for.
Measured twice: for a worker that waits for the version, and for one that is busy with a file of the version before, which it finishes first. A relay
has a version when its `weights.json` is there; the worker's log says when it had the first token. Called by `__main__`.
"""

import json
import re
import statistics
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("", "broadcast", "inference")]

import tiny_policy
from broadcast_pods import Pod, Pods
from broadcast_run import RUN, Keys, cut_into
from socket_agent import Agent, SocketAgent

from servers import Loopback, wait_until
from shoal.contracts.keys import version_name
from shoal.contracts.run import AgentState
from shoal.contracts.tasks import tasks_digest

NODE = "a" * 64
VERSIONS = 4
"""Measured for a waiting worker and as many for a busy one, after the version that the engine starts on."""
SHARD_BYTES = 512 << 10  # as examples/arithmetic cuts the same 2.6 MB
START_SECONDS = 180.0
VERSION_SECONDS = 60.0

PUBLIC = tiny_policy.PUBLIC.model_copy(
    update={
        "run": RUN,
        "tasks_digest": tasks_digest(tiny_policy.TASKS),
        "max_sequence_length": 300,
        "sampling": tiny_policy.PUBLIC.sampling.model_copy(update={"max_completion_tokens": 200}),
    }
)


class PoolPod(Pod):
    """A pool pod: fetch and worker, with the agent's socket served from here."""

    def __init__(self, home: Path, address: str, keys: Keys, relay: str) -> None:
        super().__init__(home, address)
        self.configure(keys.node_config())
        state = AgentState(
            node=NODE,
            state="Healthy",
            relays=[relay],
            relay_token=keys.token(NODE),
            trainer_key=keys.trainer.public,
            public=PUBLIC,
        )
        self.agent = Agent(state=state, tasks=tiny_policy.TASKS)
        self._socket = SocketAgent(home, self.agent)

    def run(self) -> None:
        self.start("fetch", "shoal.broadcast.fetch")
        self.start("worker", "shoal.inference")

    def announce(self, version: int) -> None:
        self.agent.state = self.agent.state.model_copy(update={"latest_version": version})

    def open_step(self, lowest: int, highest: int) -> None:
        changes = {"run": RUN, "min_version": lowest, "max_version": highest, "latest_version": highest}
        self.agent.step = tiny_policy.STEP.model_copy(update=changes)

    def first_token(self, version: int) -> float | None:
        """When the worker had it, in seconds since 1970; None while it has not."""
        for line in self.log("worker").splitlines():
            if '"first token of a version"' in line and json.loads(line).get("version") == version:
                return datetime.fromisoformat(re.sub("Z$", "+00:00", json.loads(line)["timestamp"])).timestamp()
        return None

    def stop(self) -> None:
        super().stop()
        self._socket.close()


def measure(folder: Path) -> dict[str, Any]:
    """Seconds for each version, `waiting` and `busy`, with their medians."""
    run_keys, loopback = Keys(), Loopback()
    pods = Pods(run_keys, loopback, folder)
    pool: PoolPod | None = None
    try:
        origin = pods.origin(broadcast=cut_into(SHARD_BYTES))
        relay = pods.relay(origin)
        origin.run()
        relay.run()
        pool = PoolPod(folder / "pool", loopback.address(), run_keys, relay.url)

        def publish(version: int) -> None:
            made = folder / f"made-{version}"
            tiny_policy.make_policy(made, version)
            origin.hand_in(version, {path.name: path.read_bytes() for path in made.iterdir()})
            wait_until(
                f"version {version} on the relay", lambda: sealed(version).exists(), VERSION_SECONDS, interval=0.01
            )
            pool.announce(version)

        def sealed(version: int) -> Path:
            return Path(relay.home) / "www" / "versions" / version_name(version) / "weights.json"

        def seconds(version: int) -> float:
            found = wait_until(
                f"the first token of version {version}",
                lambda: pool.first_token(version),
                VERSION_SECONDS,
                interval=0.1,
            )
            assert isinstance(found, float)
            return found - sealed(version).stat().st_mtime

        publish(0)
        pool.open_step(0, 0)
        pool.run()
        wait_until("the first file", lambda: bool(pool.agent.files), START_SECONDS, interval=0.2)
        found: dict[str, list[float]] = {"waiting": [], "busy": []}
        for version in range(1, VERSIONS + 1):
            pool.open_step(version, version)  # accepts nothing that is there
            wait_until("the worker to be idle", lambda: is_idle(pool), VERSION_SECONDS, interval=0.2)
            publish(version)
            found["waiting"].append(seconds(version))
        for version in range(VERSIONS + 1, 2 * VERSIONS + 1):
            pool.open_step(0, version)
            leases = pool.agent.leases
            wait_until(
                "work on a lease", lambda before=leases: pool.agent.leases > before, VERSION_SECONDS, interval=0.02
            )
            publish(version)
            found["busy"].append(seconds(version))
        return {kind: {"seconds": each, "median": statistics.median(each)} for kind, each in found.items()}
    finally:
        if pool is not None:
            pool.stop()
        pods.stop()
        loopback.close()


def is_idle(pool: PoolPod) -> bool:
    """Whether every lease has its file or was given back."""
    return bool(len(pool.agent.files) + sum(name is not None for name in pool.agent.returned) == pool.agent.leases)
