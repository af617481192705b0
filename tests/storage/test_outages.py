"""The store goes away and comes back: nothing is lost, nothing is mistaken for missing, and a wait that is too long says so."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from places import S3, Place
from structlog.testing import capture_logs

from proxies import AilingProxy, Proxy, Slow
from servers import Loopback, wait_until
from shoal.contracts.storage import S3Storage
from shoal.retries import Backoff
from shoal.storage import LocalDiskFull, NotFound, Store, StoreUnavailable
from shoal.storage import store as store_module
from shoal.storage.store import open_folder, open_s3
from small_disks import SmallDisk


def test_operations_wait_for_a_store_that_is_away_and_then_do_what_they_should(place: Place, tmp_path: Path) -> None:
    store: Store = place.open(deadline_seconds=60)
    store.put("here", b"data")
    store.put("old", b"data")
    source = tmp_path / "source"
    source.write_bytes(b"file")
    operations: dict[str, tuple[Callable[[], object], object]] = {
        "get": (lambda: store.get("here"), b"data"),
        "get_range": (lambda: store.get_range("here", 1, 3), b"at"),
        "size": (lambda: store.size("here"), 4),
        "size of nothing": (lambda: store.size("none"), None),
        "list": (lambda: [info.key for info in store.list("steps/")], []),
        "put": (lambda: store.put("written", b"new"), None),
        "create": (lambda: store.create("created", b"new"), True),
        "create what is there": (lambda: store.create("here", b"other"), False),
        "put_file": (lambda: store.put_file("from-file", source), None),
        "delete": (lambda: store.delete("old"), None),
        "sha256": (lambda: store.sha256("here")[1], 4),
        "get_to_file": (lambda: store.get_to_file("here", tmp_path / "target"), None),
    }
    place.take_away()
    with ThreadPoolExecutor(len(operations)) as pool:
        running: dict[str, Future[object]] = {name: pool.submit(call) for name, (call, _) in operations.items()}
        time.sleep(1.5)
        early = {name: future for name, future in running.items() if future.done()}
        place.bring_back()
        answers = {name: future.result(60) for name, future in running.items()}
    assert not early, "an operation ended while the store was away"
    assert answers == {name: expected for name, (_, expected) in operations.items()}
    assert store.get("written") == store.get("created") == b"new"
    assert store.get("here") == b"data"
    assert store.get("from-file") == b"file"
    assert not store.exists("old")
    assert (tmp_path / "target").read_bytes() == b"data"


def test_a_full_disk_here_is_told_at_once_and_is_no_failure_of_the_store(tmp_path: Path) -> None:
    disk, store = SmallDisk(tmp_path / "disk", 1 << 20), open_folder(tmp_path / "store", "run", deadline_seconds=600)
    try:
        for size in (2 << 20, 9000):  # one is told of while it is written, the other when the file is closed
            store.put("large", bytes(size))
            disk.fill(left_bytes=4096)
            with pytest.raises(LocalDiskFull, match=f"cannot fetch large: the disk of {disk.folder} is full"):
                store.get_to_file("large", disk.folder / "large")
            assert [path.name for path in disk.folder.iterdir()] == ["filler"]
            disk.free()
            store.get_to_file("large", tmp_path / "large")
    finally:
        disk.unmount()


def test_a_store_that_stays_away_is_unavailable_not_empty_and_the_error_says_what_and_how_long(place: Place) -> None:
    store: Store = place.open(deadline_seconds=1.0)
    store.put("here", b"data")
    place.take_away()
    for what, call in {
        "read here": lambda: store.get("here"),
        "look at none": lambda: store.size("none"),
        "list steps/": lambda: store.list("steps/"),
        "write here": lambda: store.put("here", b"new"),
        "create new": lambda: store.create("new", b"new"),
    }.items():
        expected = rf"cannot {what}: the {place.kind} store did not answer for \d+ s; last error: \S+"
        with pytest.raises(StoreUnavailable, match=expected):
            call()
    place.bring_back()
    store = place.open()
    assert store.get("here") == b"data"
    assert not store.exists("new")
    with pytest.raises(NotFound):
        store.get("none")


def test_a_store_that_hangs_is_given_up_after_the_deadline(s3: S3) -> None:
    store: Store = s3.open(deadline_seconds=1.0)
    store.put("here", b"data")
    s3.server.pause()
    try:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(store.get, "here")
            with pytest.raises(StoreUnavailable, match="cannot read here: the s3 store did not answer"):
                pending.result(30)
    finally:
        s3.server.resume()
    assert s3.open().get("here") == b"data"


def test_a_store_that_hangs_and_goes_on_answers_what_was_asked(s3: S3) -> None:
    store: Store = s3.open(deadline_seconds=60)
    store.put("here", b"data")
    s3.server.pause()
    with ThreadPoolExecutor(2) as pool:
        try:
            reading, creating = pool.submit(store.get, "here"), pool.submit(store.create, "new", b"x")
            time.sleep(1.0)
            assert not reading.done()
        finally:
            s3.server.resume()
        assert reading.result(60) == b"data"
        assert creating.result(60) is True


def test_a_folder_that_was_moved_is_not_made_anew_by_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    store = open_folder(root, "shoal/run", deadline_seconds=0.3)
    root.rename(tmp_path / "moved")
    with pytest.raises(StoreUnavailable, match="the store's folder 'store' does not exist"):
        store.put("a", b"x")
    assert not root.exists()


def test_refused_credentials_are_said_at_once_and_not_waited_for(s3: S3) -> None:
    store = open_s3(s3.spec, "shoal/run", s3.server.access_key, "wrong-secret", deadline_seconds=600)
    for call in (lambda: store.get("a"), lambda: store.create("a", b"x"), lambda: store.list("a/")):
        with pytest.raises(StoreUnavailable, match="the store refuses our credentials") as caught:
            call()
        assert "wrong-secret" not in str(caught.value)


def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(s3: S3) -> None:
    spec = s3.spec.model_copy(update={"bucket": "no-such-bucket"})
    store = open_s3(spec, "shoal/run", s3.server.access_key, s3.server.secret_key, deadline_seconds=0.5)
    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        store.get("a")
    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        store.put("a", b"x")


@pytest.fixture
def flaky(s3: S3, loopback: Loopback) -> Iterator[tuple[Proxy, Store]]:
    proxy = Proxy((loopback.address(), 0), (s3.server.address, s3.server.port))
    spec: S3Storage = s3.spec.model_copy(update={"endpoint": proxy.url})
    yield proxy, open_s3(spec, f"{s3.prefix}/run", s3.server.access_key, s3.server.secret_key, deadline_seconds=30)
    proxy.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of each part of an upload, one of which is on its way at a time; the least that S3 takes."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 5 << 20)
    monkeypatch.setattr(store_module, "UPLOADS", 1)
    return 5 << 20


def test_an_upload_longer_than_the_deadline_outlives_one_fault_near_its_end(
    flaky: tuple[Proxy, Store], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state of 25 GB a rank took twelve minutes, and one 503 in its last part ended the trainer."""
    proxy, store = flaky
    monkeypatch.setattr(store, "_deadline_seconds", 4.0)
    tries = 0

    def chunks() -> Iterator[bytes]:
        nonlocal tries
        tries += 1
        for number in range(4):
            if tries == 1 and number == 3:
                time.sleep(4.5)
                proxy.losing = 1
            yield bytes([number]) * small_parts

    store.put_chunks("state", chunks, 4 * small_parts)
    assert tries == 2
    assert store.sha256("state")[1] == 4 * small_parts


@pytest.mark.parametrize("how", ["read", "hash"])
def test_a_download_longer_than_the_deadline_outlives_a_fault_in_its_middle_and_beats(
    flaky: tuple[Proxy, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    proxy, store = flaky
    monkeypatch.setattr(store, "_deadline_seconds", 3.0)
    mib, slow = 128, 64  # more than buffers on the way hold, of which the first chunks take longer than the deadline
    store.put("large", bytes(mib << 20))
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats < slow:
            time.sleep(0.06)
        if beats == slow:
            proxy.losing = 1

    if how == "read":
        store.get_to_file("large", tmp_path / "large", beat)
        assert (tmp_path / "large").stat().st_size == mib << 20
    else:
        assert store.sha256("large", beat)[1] == mib << 20
    assert proxy.lost == 1
    assert beats > slow


def test_a_dozen_threads_that_wait_for_the_store_are_one_line(flaky: tuple[Proxy, Store], s3: S3) -> None:
    proxy, store = flaky
    s3.open(prefix=f"{s3.prefix}/run").put("here", b"data")
    proxy.busy = 60
    with capture_logs() as said, ThreadPoolExecutor(12) as pool:
        assert set(pool.map(store.get, ["here"] * 12)) == {b"data"}
    assert proxy.busy == 0
    assert [line["event"] for line in said] == ["store away, waiting"]


def test_a_transfer_that_takes_long_says_how_far_it_is(
    flaky: tuple[Proxy, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WORD_SECONDS", 0.5)
    store = Store(flaky[1]._backend, flaky[1]._prefix)
    store.put("large", bytes(8 << 20))
    with capture_logs() as said:
        store.get_to_file("large", tmp_path / "large", lambda: time.sleep(0.05))
    assert 1 <= len(said) <= 4
    assert said[0]["event"] == "waiting for the store"
    assert said[0]["what"] == "read large"
    assert 0 < said[0]["bytes"] < said[0]["of_bytes"] == 8 << 20


def test_a_store_that_refuses_in_the_middle_and_then_trickles_has_what_was_written(
    s3: S3, loopback: Loopback, tmp_path: Path, small_parts: int
) -> None:
    proxy = AilingProxy((loopback.address(), 0), (s3.server.address, s3.server.port))
    spec: S3Storage = s3.spec.model_copy(update={"endpoint": proxy.url})
    store = open_s3(spec, f"{s3.prefix}/ailing", s3.server.access_key, s3.server.secret_key, deadline_seconds=30)
    parts = [bytes([number]) * small_parts for number in range(4)]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    try:
        proxy.refuse_at("large?partNumber=3")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(store.put_chunks, "large", lambda: parts, 4 * small_parts)
            wait_until("the refusal", lambda: proxy.refusing)
            time.sleep(1.0)
            assert proxy.refused > 1
            proxy.slow, proxy.refusing = Slow(0.3, 4 << 20), False
            writing.result(60)
        assert proxy.slowed > 3
        proxy.slow = None
        proxy.refuse_at("GET", 1)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(store.get_to_file, "large", tmp_path / "large")
            wait_until("the refusal", lambda: proxy.refusing)
            proxy.refusing = False
            reading.result(60)
    finally:
        proxy.close()
    assert hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest() == digest


def test_an_upload_that_never_gets_further_ends_at_the_deadline(
    flaky: tuple[Proxy, Store], small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try begins well and takes parts again, which is nothing new."""
    proxy, store = flaky
    monkeypatch.setattr(store, "_deadline_seconds", 2.0)
    monkeypatch.setattr(store_module, "PAUSES", Backoff(0.1, 0.2))
    tries = 0

    def chunks() -> Iterator[bytes]:
        nonlocal tries
        tries += 1
        proxy.losing = 0
        assert tries < 60, "the deadline counts from what every try takes"
        return parts()

    def parts() -> Iterator[bytes]:
        for number in range(9):
            if number == 2:
                proxy.losing = 1 << 20
            yield bytes(small_parts)
        raise AssertionError("the store took all of it")

    with pytest.raises(StoreUnavailable, match=r"cannot write state: the s3 store did not answer for \d+ s"):
        store.put_chunks("state", chunks, 9 * small_parts)
    assert tries > 1


@pytest.mark.parametrize("answers_lost", [1, 2, 3])
def test_a_create_whose_answer_was_lost_still_knows_that_it_won(flaky: tuple[Proxy, Store], answers_lost: int) -> None:
    proxy, store = flaky
    proxy.losing = answers_lost
    assert store.create("ledger/1.json", b"ours") is True
    assert proxy.lost == answers_lost
    assert store.get("ledger/1.json") == b"ours"
    proxy.losing = answers_lost
    assert store.create("ledger/1.json", b"another writer's") is False
    assert store.get("ledger/1.json") == b"ours"
