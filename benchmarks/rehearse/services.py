"""The real parts of a rehearsal, as processes: Redis, discovery, orchestrator, publisher with its nginx, sync agent with its nginx; a folder store.

A version goes through the outbox, the publisher and the relay with all its shards, of `SHARD_BYTES` each. Some nodes fetch every shard from the relay
and check its digest; what all others would fetch passes lines by the clock alone.
"""

import asyncio
import hashlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from broadcast_pods import Pod
from broadcast_run import put_outbox, trained

from benchmarks.protocol.wire import Wire
from protocol_stack import RUN, Stack
from servers import Loopback
from shoal.broadcast.nginx import NGINX_PORT
from shoal.contracts import keys, relay_token
from shoal.contracts.protocol import RelayToken
from shoal.contracts.relays import RateLimits, RelayConfig
from shoal.contracts.settings import Broadcast
from shoal.contracts.signed import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen
from shoal.crypto.keys import PrivateKey

SHARD_BYTES = 1024
"""The least that a run may have; a shard of 16 MiB is 16,384 times as large."""
HEAD_BYTES = 256
"""Of a version, which are no weights; the last shard is not full."""
PUBLISH_SECONDS = 300.0
"""Real seconds, after which a version that did not come through has not come through."""
TOKEN_SECONDS = 6 * 3600


class PublisherPod(Pod):
    """A trainer's pod without the trainer: publisher, nginx, outbox."""

    def run(self) -> None:
        self.start_nginx("origin")
        self.start("publisher", "shoal.broadcast.origin")


class SyncPod(Pod):
    """A relay: sync agent and nginx."""

    def run(self) -> None:
        self.start_nginx("relay")
        self.start("sync", "shoal.broadcast.relay")


class Services:
    """All of them, started by `start` and stopped by `close`."""

    def __init__(
        self, folder: Path, loopback: Loopback, shards: int, anchor_every: int, fetchers: int, **changes: object
    ) -> None:
        """`fetchers`: nodes that fetch each shard over HTTP; `changes`: to the run's configuration."""
        self.shards, self._fetchers = shards, fetchers
        cut = Broadcast(shard_bytes=SHARD_BYTES, anchor_every=anchor_every)
        self.stack = Stack(folder, loopback.address(), broadcast=cut, **changes)
        self.origin = PublisherPod(folder / "origin", self.stack.address)
        self.origin.configure(self.stack.config, self.stack.role_keys["trainer"])
        (self.origin.home / "store").symlink_to(folder / "store")
        (self.origin.home / "outbox").mkdir()
        self.relay = SyncPod(folder / "relay", loopback.address())
        self.relay.configure(self.stack.config, self.stack.role_keys["relay"])
        many = RateLimits(
            connections=4096,
            requests_per_second=10_000,
            address_connections=65_535,
            address_requests_per_second=100_000,
        )
        (self.relay.home / "config" / "relay.json").write_bytes(RelayConfig(rate_limits=many).to_json())
        self._background: set[asyncio.Task[Any]] = set()
        self.failures: list[BaseException] = []
        self.publish_seconds = 0.0
        """Real seconds of the newest version from the outbox to its announcement."""
        self.fetched_shards = 0
        self.bad_shards = 0

    def start(self) -> None:
        self.stack.start()
        self.origin.run()
        self.relay.run()

    def close(self) -> None:
        for each in (self.relay, self.origin, self.stack):
            each.stop() if isinstance(each, Pod) else each.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do something beside; what it fails with ends the rehearsal."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def idle(self) -> None:
        """Wait for all that is done beside."""
        while self._background:
            await asyncio.wait(self._background)

    async def publish(self, version: int) -> None:
        """Put a version into the outbox and wait until the publisher has announced it."""
        files = await asyncio.to_thread(trained, version, self.shards * SHARD_BYTES - HEAD_BYTES)
        began = time.monotonic()
        await asyncio.to_thread(put_outbox, self.origin.home / "outbox", version, files)
        await self._seal(self.origin, version)
        while (await asyncio.to_thread(self.stack.progress)).latest_version != version:
            await self._pause(began, f"the announcement of version {version}")
        self.publish_seconds = time.monotonic() - began
        for number in range(self._fetchers):
            self.spawn(self._fetch(version, number))

    async def _seal(self, pod: Pod, version: int) -> None:
        began, path = time.monotonic(), pod.home / "www" / keys.version_weights(version)
        while not path.exists():
            await self._pause(began, f"{path}; the log ends with {pod.log('publisher')[-500:]}{pod.log('sync')[-500:]}")

    async def _pause(self, began: float, what: str) -> None:
        if time.monotonic() - began > PUBLISH_SECONDS:
            raise TimeoutError(f"waited {PUBLISH_SECONDS:.0f} s for {what}")
        await asyncio.sleep(0.05)

    async def _fetch(self, version: int, number: int) -> None:
        """Every shard of a version, each compared with its signed descriptor."""
        await self._seal(self.relay, version)
        node = hashlib.sha256(f"fetcher {number}".encode()).hexdigest()
        token = RelayToken(run=RUN, node=node, expires_unix=int(time.time()) + TOKEN_SECONDS)
        head = f"Authorization: Bearer {relay_token.encode(token, self.stack.role_keys['orchestrator'])}\r\n"
        wire = Wire(f"http://{self.relay.address}:{NGINX_PORT}", PrivateKey.generate())
        opened = await wire.send("GET", f"/{keys.version_open(version)}", head, b"")
        record = Signed[VersionOpen].from_json(opened.body).verified(self.stack.role_keys["trainer"].public)
        if record.shard_count != self.shards:
            raise RuntimeError(f"version {version} has {record.shard_count} shards; required: {self.shards}")
        for index in range(record.shard_count):
            told = await wire.send("GET", f"/{keys.version_descriptor(version, index)}", head, b"")
            shard = await wire.send("GET", f"/{keys.version_shard(version, index)}", head, b"")
            if told.status != 200 or shard.status != 200:
                raise RuntimeError(
                    f"shard {index} of version {version}: the relay answered {told.status} and {shard.status}"
                )
            descriptor = Signed[ShardDescriptor].from_json(told.body).verified(self.stack.role_keys["trainer"].public)
            self.fetched_shards += 1
            self.bad_shards += hashlib.sha256(shard.body).hexdigest() != descriptor.sha256
        wire.close()
