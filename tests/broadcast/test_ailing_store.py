"""The store answers 503 for minutes, and then slowly for minutes, in the middle of a publish and of a fetch: nothing is lost, made twice or given up.

Relays never ask the store: what they sync from a new origin is what it fetches from there. Once with some megabytes, and once with 4 GB in a thousand
shards, which takes sixteen gigabytes of a disk.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from broadcast_pods import OriginPod, Pod, Pods, RelayPod
from broadcast_run import RUN, cut_into

from bad_minutes import BadMinutes, Passed
from proxies import AilingProxy, Slow
from servers import PLAIN, Loopback, Minio, wait_until
from shoal.broadcast.cut import opening_record
from shoal.broadcast.nginx import ORIGIN_PORT
from shoal.broadcast.publishing import checkpoint_files
from shoal.contracts import keys
from shoal.contracts.storage import S3Storage, StorageSpec
from shoal.storage import Store
from shoal.storage.checkpoint_files import version_digest
from shoal.storage.store import open_s3

IMPATIENT = """
from shoal.storage import store
store.WORD_SECONDS, store.READ_BYTES = {word}, 4 << 10
from shoal.broadcast import origin, publishing
publishing.WORD_SECONDS = {word}
origin.STORE_DEADLINE_SECONDS, origin.LONGEST_PAUSE_SECONDS, origin.LIVENESS_SECONDS = 2.0, 1.0, 6.0
origin.main()
"""
"""The publisher with a fifteenth of its patience."""
NAMES_THE_STORE = ("store",)


@dataclass(frozen=True)
class Story:
    """How much there is, and how bad it gets."""

    shards: int
    shard_bytes: int
    bad: BadMinutes
    wait_seconds: float
    impatient: bool = False


SHORT = Story(80, 256 << 10, BadMinutes(13.0, Slow(0.5, 32 << 10), 6.0, late_seconds=6.0), 120.0, impatient=True)
AT_SIZE = Story(1000, 4 << 20, BadMinutes(180.0, Slow(5.0, 16 << 10), 60.0), 1800.0)


class Ailing:
    """An origin and a relay of a run whose store is a MinIO behind a proxy."""

    def __init__(self, pods: Pods, minio: Minio, loopback: Loopback, story: Story) -> None:
        self.story = story
        self.proxy = AilingProxy((loopback.address(), 0), (minio.address, minio.port))
        self.store: Store = open_s3(
            self._spec(minio.endpoint, minio), f"shoal/{RUN}", minio.access_key, minio.secret_key
        )
        self.middle = keys.version_shard(0, story.shards // 2)
        self._minio = minio
        self._pods = pods

    def _spec(self, endpoint: str, minio: Minio) -> S3Storage:
        return S3Storage(endpoint=endpoint, bucket=minio.bucket, credentials_secret="store")

    def origin_and_relay(self, *handed_in: int) -> tuple[OriginPod, RelayPod]:
        """Running, of one run; the origin's `www/` is empty, and small versions of these numbers wait for the publisher."""
        changes = {
            "broadcast": cut_into(self.story.shard_bytes),
            "storage": StorageSpec(s3=self._spec(self.proxy.url, self._minio)),
        }
        origin = self._pods.origin(**changes)
        relay = self._pods.relay(origin, broadcast=changes["broadcast"])
        secrets = origin.home / "secrets" / "store"
        secrets.mkdir()
        (secrets / "accessKey").write_text(self._minio.access_key)
        (secrets / "secretKey").write_text(self._minio.secret_key)
        for version in handed_in:
            origin.hand_in(version)
        origin.environment["no_proxy"] = self.proxy.host  # the clients of stores heed proxies
        origin.start_nginx("origin")
        if self.story.impatient:
            word = self.story.bad.word_seconds / 4
            origin.start_python("publisher", "-c", IMPATIENT.format(word=word))
        else:
            origin.start("publisher", "shoal.broadcast.origin")
        relay.run()
        return origin, relay

    def bad_minutes(self, origin: Pod) -> Passed:
        """From the middle of what is asked for, which `refuse_at` has named. The publisher stays alive, and says what it waits for."""
        wait_until("the middle", lambda: self.proxy.refusing, self.story.wait_seconds)

        def look() -> None:
            answer = httpx.get(f"http://{origin.address}:{ORIGIN_PORT}/healthz", **PLAIN, timeout=30.0)
            assert answer.status_code == 200, answer.text

        passed = self.story.bad.pass_by(self.proxy, look)
        log = origin.log("publisher")
        print(
            f"refused {passed.refused}, slow {passed.slowed}, silence {passed.longest_silence(log, NAMES_THE_STORE):.1f} s,"
            f" lines a second {passed.lines_a_second(log, NAMES_THE_STORE):.2f}"
        )
        assert passed.refused > 0
        assert passed.slowed > 0
        assert passed.longest_silence(log, NAMES_THE_STORE) < self.story.bad.longest_silence
        assert passed.lines_a_second(log, NAMES_THE_STORE) < 8 / self.story.bad.word_seconds
        return passed

    def close(self) -> None:
        self.proxy.close()
        for info in self.store.list(keys.VERSIONS):
            self.store.delete(info.key)


def hand_in(outbox: Path, story: Story) -> tuple[str, str]:
    """Version 0, every shard of it other bytes; the SHA-256 of its weights, and the digest that it is to be announced with."""
    making = outbox / ".making-v000000"
    making.mkdir()
    (making / "config.json").write_bytes(b"{}")
    running, noise = hashlib.sha256(), os.urandom(story.shard_bytes - 8)
    with (making / "model.safetensors").open("wb") as file:
        for index in range(story.shards):
            for piece in (index.to_bytes(8, "little"), noise):
                file.write(piece)
                running.update(piece)
    record = opening_record(RUN, 0, checkpoint_files(making), story.shard_bytes)
    digest = version_digest(record, making)
    making.rename(outbox / keys.version_name(0))
    return running.hexdigest(), digest


def weights_of(pod: Pod, story: Story) -> str:
    """SHA-256 of the weights that a pod serves, from its shards: those of a version that is sent in full lie one after the other."""
    running, folder = hashlib.sha256(), pod.home / "www" / keys.version(0)
    for index in range(story.shards + 1):
        data = (folder / keys.shard_name(index)).read_bytes()
        running.update(data[2:] if index == 0 else data)  # config.json comes first
    return running.hexdigest()


@pytest.fixture(
    params=[
        pytest.param(SHORT, id="short"),
        pytest.param(AT_SIZE, id="at size", marks=[pytest.mark.soak, pytest.mark.timeout(5400)]),
    ]
)
def ailing(
    request: pytest.FixtureRequest,
    pods: Pods,
    minio_server: Minio,
    loopback: Loopback,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ailing]:
    made = Ailing(pods, minio_server, loopback, request.param)
    yield made
    pods.stop()
    made.close()
    for folder in tmp_path_factory.getbasetemp().glob("b*/*-*"):
        shutil.rmtree(folder)


def test_a_store_that_says_503_and_then_answers_slowly_delays_a_publish_and_nothing_else(
    ailing: Ailing, pods: Pods
) -> None:
    story = ailing.story
    origin, relay = ailing.origin_and_relay()
    ailing.proxy.refuse_at(ailing.middle)
    weights, digest = hand_in(origin.home / "outbox", story)
    ailing.bad_minutes(origin)
    assert pods.announcements.versions() == []
    wait_until("the announcement", lambda: pods.announcements.versions() == [0], story.wait_seconds)
    assert pods.announcements.taken[0].weights_digest == digest
    assert "a turn failed, trying again" in origin.log("publisher")
    assert sum(info.key.endswith(".bin") for info in ailing.store.list(keys.VERSIONS)) == story.shards + 1
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], story.wait_seconds)
    assert weights_of(relay, story) == weights


def test_a_store_that_says_503_and_then_answers_slowly_delays_a_new_origin_and_its_relay_and_nothing_else(
    ailing: Ailing, pods: Pods
) -> None:
    story = ailing.story
    first, _ = ailing.origin_and_relay()
    weights, digest = hand_in(first.home / "outbox", story)
    wait_until("the announcement", lambda: pods.announcements.versions() == [0], story.wait_seconds)
    first.stop()
    shutil.rmtree(first.home / "outbox")

    ailing.proxy.refuse_at(ailing.middle)
    fresh, relay = ailing.origin_and_relay()
    ailing.bad_minutes(fresh)
    assert fresh.versions() == relay.versions() == []
    wait_until("version 0 on its relay", lambda: relay.versions() == [0], story.wait_seconds)
    assert weights_of(relay, story) == weights
    wait_until("its announcement", lambda: "version announced" in fresh.log("publisher"), story.wait_seconds)
    assert [taken.weights_digest for taken in pods.announcements.taken] == [digest]


@pytest.mark.parametrize("ailing", [SHORT], indirect=True)
def test_a_version_is_announced_before_the_store_takes_the_next_one(ailing: Ailing, pods: Pods) -> None:
    ailing.proxy.refuse_at(keys.version_shard(1, 0))
    ailing.origin_and_relay(0, 1)
    wait_until("version 1 on its way", lambda: ailing.proxy.refusing)
    wait_until("version 0 to be announced", lambda: pods.announcements.versions() == [0], 20)
    ailing.proxy.refusing = False
    wait_until("version 1 to be announced", lambda: pods.announcements.versions() == [0, 1])
