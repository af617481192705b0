"""What a `Store` promises, held by a folder and by a real MinIO alike."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from places import Place

from shoal.storage import BadKey, NotFound, Store
from shoal.storage.store import CHUNK_BYTES

READS: dict[str, Callable[[Store, str, Path], object]] = {
    "get": lambda store, key, path: store.get(key),
    "get_range": lambda store, key, path: store.get_range(key, 0, 1),
    "get_to_file": lambda store, key, path: store.get_to_file(key, path),
    "sha256": lambda store, key, path: store.sha256(key),
    "stream": lambda store, key, path: list(store.stream(key)),
    "copy_if_absent": lambda store, key, path: store.copy_if_absent(key, "elsewhere"),
}
WRITES: dict[str, Callable[[Store, str, Path], object]] = {
    "put": lambda store, key, path: store.put(key, b"x"),
    "create": lambda store, key, path: store.create(key, b"x"),
    "put_file": lambda store, key, path: store.put_file(key, path),
    "delete": lambda store, key, path: store.delete(key),
    "size": lambda store, key, path: store.size(key),
    "list": lambda store, key, path: store.list(key),
}

BAD_KEYS = [
    "", "/", "..", ".", "a/", "/a", "a//b", "../escape", "a/../../escape", "a/..", "a/./b", ".hidden", "a/.hidden",
    "a b", "a\tb", "a\n", "a\nb", "a\0b", "a\\b", "a:b", "a?b", "a#1", "a%2e%2e", "~root", "-rf", "a/-rf", "é", "\u202e",
    "a" * 513,
]  # fmt: skip


def test_an_object_that_was_written_is_read_back(store: Store) -> None:
    for data in (b"", b"x", bytes(range(256)) * 1000):
        store.put("steps/000007/batch.json", data)
        assert store.get("steps/000007/batch.json") == data
        assert store.size("steps/000007/batch.json") == len(data)
        assert store.exists("steps/000007/batch.json")
        assert store.sha256("steps/000007/batch.json") == (hashlib.sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize("operation", READS)
def test_reading_what_is_not_there_is_not_found_and_names_the_key(store: Store, tmp_path: Path, operation: str) -> None:
    with pytest.raises(NotFound, match=r"no object 'steps/000001/batch.json' in the store"):
        READS[operation](store, "steps/000001/batch.json", tmp_path / "out")
    assert not list(tmp_path.glob("out*")), "a read that failed leaves no file"


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.put("steps/000001/batch.json", b"x")
    assert store.size("steps/000001") is None
    with pytest.raises(NotFound):
        store.get("steps/000001")


def test_what_is_not_there_has_no_size_and_can_be_deleted(store: Store) -> None:
    assert store.size("none") is None
    assert not store.exists("none")
    store.delete("none")


def test_a_deleted_object_is_gone_and_its_neighbours_stay(store: Store) -> None:
    store.put("a/1", b"1")
    store.put("a/2", b"2")
    store.delete("a/1")
    assert [info.key for info in store.list("a")] == ["a/2"]


def test_create_writes_once_and_never_replaces(store: Store) -> None:
    assert store.create("ledger/1.json", b"first") is True
    assert store.create("ledger/1.json", b"second") is False
    assert store.create("ledger/1.json", b"first") is False, "the same bytes from another writer are another writer's"
    assert store.get("ledger/1.json") == b"first"


def test_of_writers_that_race_to_create_exactly_one_wins_and_its_bytes_stay(store: Store) -> None:
    writers = 12
    with ThreadPoolExecutor(writers) as pool:
        for race in range(8):
            start = threading.Barrier(writers)

            def attempt(writer: int, race: int = race, start: threading.Barrier = start) -> bool:
                start.wait()
                return store.create(f"ledger/{race}.json", b"%d" % writer * 5000)

            won = list(pool.map(attempt, range(writers)))
            assert won.count(True) == 1
            assert store.get(f"ledger/{race}.json") == b"%d" % won.index(True) * 5000


def test_a_reader_never_sees_half_of_an_overwrite(store: Store) -> None:
    letters, size, stop = b"abcdef", 300_000, threading.Event()
    store.put("live/object", letters[:1] * size)

    def overwrite() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            store.put("live/object", letters[turn % 6 : turn % 6 + 1] * size)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(overwrite) for _ in range(2)]
        try:
            seen = set()
            for _ in range(60):
                data = store.get("live/object")
                assert len(data) == size
                assert data == data[:1] * size, "bytes of two writes in one read"
                seen.add(data[:1])
                assert [info.key for info in store.list("live")] == ["live/object"], "a half-written file is listed"
        finally:
            stop.set()
        for writer in writers:
            writer.result(20)
    assert len(seen) > 1, "the writers did overwrite meanwhile"


def test_copy_if_absent_gives_a_second_name_and_never_replaces(store: Store) -> None:
    store.put("staging/a", b"upload")
    assert store.copy_if_absent("staging/a", "uploads/a") is True
    store.put("staging/a", b"another")
    assert store.copy_if_absent("staging/a", "uploads/a") is False
    assert store.get("uploads/a") == b"upload"
    assert store.get("staging/a") == b"another"


def test_a_copy_moves_no_byte_through_this_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("staging/a", b"a" * (12 << 20))
    for name in ("get", "put", "get_range"):
        monkeypatch.setattr(f"shoal.storage.store.obstore.{name}", None)
    assert store.copy_if_absent("staging/a", "uploads/a") is True
    assert store.copy_if_absent("staging/a", "uploads/a") is False
    assert store.size("uploads/a") == 12 << 20


def test_of_racing_copies_one_wins_and_its_bytes_stay(store: Store) -> None:
    for number in range(8):
        store.put(f"staging/{number}", str(number).encode())
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: store.copy_if_absent(f"staging/{number}", "uploads/a"), range(8)))
    assert won.count(True) == 1
    assert store.get("uploads/a") == str(won.index(True)).encode()


def test_a_list_is_in_the_order_of_keys_with_sizes_and_only_of_its_folder(store: Store) -> None:
    keys = [
        "versions/v000010/open.json",
        "versions/v000002/open.json",
        "versions/v000002/00000.bin",
        "versions/index.json",
    ]
    for number, key in enumerate(keys):
        store.put(key, b"x" * number)
    store.put("versions2/other", b"x")
    store.put("version", b"x")
    found = store.list("versions/")
    assert [info.key for info in found] == sorted(keys)
    assert {info.key: info.size for info in found} == {key: number for number, key in enumerate(keys)}
    assert all(info.modified_unix > 1_600_000_000 for info in found)
    assert store.list("versions") == found
    assert store.list("nothing/") == []


def test_a_list_of_more_than_one_page_is_whole(store: Store) -> None:
    keys = [f"ledger/{number:020d}.json" for number in range(1100)]  # S3 gives at most 1000 keys a page
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda key: store.create(key, b"{}"), keys))
    assert [info.key for info in store.list("ledger/")] == keys


def test_runs_do_not_see_each_other(place: Place, store: Store) -> None:
    other = place.open(prefix="shoal/other")
    other.put("a", b"theirs")
    store.put("a", b"ours")
    assert (store.get("a"), other.get("a")) == (b"ours", b"theirs")
    assert [info.key for info in store.list("a")] in ([], ["a"])
    other.delete("a")
    assert store.exists("a")


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 1000), (999, 1000), (17, 400), (5, 5000), (5, 5)])
def test_a_range_is_that_part_of_the_object(store: Store, start: int, end: int) -> None:
    data = bytes(number % 251 for number in range(1000))
    store.put("shard", data)
    assert store.get_range("shard", start, end) == data[start:end]


@pytest.mark.parametrize(("start", "end"), [(1000, 1001), (5000, 6000), (-1, 3), (7, 5)])
def test_a_range_outside_the_object_is_an_error_and_not_waited_for(store: Store, start: int, end: int) -> None:
    store.put("shard", bytes(1000))
    with pytest.raises(ValueError, match=rf"range {start} to {end} is outside object shard"):
        store.get_range("shard", start, end)


def test_large_objects_travel_in_pieces_and_arrive_whole(store: Store, tmp_path: Path) -> None:
    source, target = tmp_path / "model.safetensors", tmp_path / "copy"
    block = hashlib.sha256(b"block").digest() * 32768  # 1 MiB
    with source.open("wb") as file:
        for number in range(41):
            file.write(block[number:] + block[:number])
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    store.put_file("models/base/model.safetensors", source)
    assert store.sha256("models/base/model.safetensors") == (digest, 41 << 20)
    store.get_to_file("models/base/model.safetensors", target)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
    pieces = list(store.stream("models/base/model.safetensors"))
    assert hashlib.sha256(b"".join(pieces)).hexdigest() == digest
    assert max(map(len, pieces)) < 2 * CHUNK_BYTES
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["copy", "model.safetensors"]


def test_a_file_that_is_replaced_by_a_download_is_whole_or_the_old_one(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    target.write_bytes(b"old")
    with pytest.raises(NotFound):
        store.get_to_file("none", target)
    assert target.read_bytes() == b"old"
    store.put("config.json", b"new")
    store.get_to_file("config.json", target)
    assert target.read_bytes() == b"new"


def test_a_local_file_that_is_missing_is_said_to_be_so(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        store.put_file("a", tmp_path / "no-such-file")


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_a_key_that_no_contract_makes_is_refused_by_every_operation(store: Store, tmp_path: Path, key: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    for name, operation in {**READS, **WRITES}.items():
        if name == "list" and key.rstrip("/") == "a":
            continue  # a folder is listed with or without its slash
        with pytest.raises(BadKey, match="is not of the form name/name"):
            operation(store, key, source)
    if key.rstrip("/") != "a":
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(BadKey):
        store.copy_if_absent("fine", key)


def test_many_threads_share_one_store(store: Store) -> None:
    def work(number: int) -> bool:
        store.put(f"t/{number}", b"%d" % number)
        return store.get(f"t/{number}") == b"%d" % number

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(200)))
    assert len(store.list("t/")) == 200
