"""Checkpoints and segments as orchestrators write them: regular, agreed between several writers, and never trusted over the entries."""

from pathlib import Path

import pytest

from ledger_samples import altered, fact
from samples import ROSTER
from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.crypto.keys import PrivateKey
from shoal.ledger import chain, checkpoints
from shoal.ledger.chain import BrokenChain, entry_leaf, pack_segment, unpack_segment
from shoal.ledger.checkpoints import CHECKPOINT_SECONDS, Checkpoints
from shoal.ledger.entries import CHECKPOINT_ENTRIES, SEGMENT_ENTRIES, LedgerCheckpoint, LedgerEntry
from shoal.ledger.merkle import consistency_path, continues, root_of
from shoal.ledger.writer import LedgerWriter
from shoal.storage import Store
from shoal.storage.store import open_folder

NODE = "7" * 64


class CountingStore:
    """A store that counts what is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return self._store.get(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.fixture
def writer(tmp_path: Path) -> LedgerWriter:
    (tmp_path / "store").mkdir()
    return LedgerWriter(
        open_folder(tmp_path / "store", "shoal/tiny", deadline_seconds=5), "tiny", PrivateKey.generate()
    )


def another(writer: LedgerWriter, store: object = None) -> LedgerWriter:
    """The same orchestrator, started anew."""
    return LedgerWriter(store or writer.store, "tiny", writer.key)


def fill(writer: LedgerWriter, size: int) -> None:
    while writer.view.next_number < size:
        writer.append(fact("node-dead", node=NODE))


def write(writer: LedgerWriter, now: float = 0.0, *, complete: bool = False) -> int:
    return Checkpoints(writer, ROSTER).write_due(now, complete=complete)


def stored(writer: LedgerWriter) -> list[LedgerCheckpoint]:
    return [
        Signed[LedgerCheckpoint].from_json(writer.store.get(info.key)).verified(writer.key.public)
        for info in writer.store.list(keys.CHECKPOINTS)
    ]


def leaves(writer: LedgerWriter) -> list[bytes]:
    return [
        entry_leaf(Signed[LedgerEntry].from_json(writer.store.get(info.key)).document)
        for info in writer.store.list(keys.LEDGER)
    ]


def test_a_checkpoint_is_written_at_every_multiple_and_covers_exactly_these_entries(writer: LedgerWriter) -> None:
    fill(writer, 2 * CHECKPOINT_ENTRIES + 3)
    assert write(writer) == 2
    hashes = leaves(writer)
    assert [each.size for each in stored(writer)] == [CHECKPOINT_ENTRIES, 2 * CHECKPOINT_ENTRIES]
    for checkpoint in stored(writer):
        assert checkpoint.root == root_of(hashes[: checkpoint.size]).hex()
    first, second = stored(writer)
    path = consistency_path(hashes[: second.size], first.size)
    assert continues(first.size, bytes.fromhex(first.root), second.size, bytes.fromhex(second.root), path)


def test_what_was_added_since_is_covered_after_a_minute_and_at_once_when_the_run_is_complete(
    writer: LedgerWriter,
) -> None:
    checkpoints = Checkpoints(writer, ROSTER)
    fill(writer, 2)
    assert checkpoints.write_due(0.0, complete=False) == 0
    assert checkpoints.write_due(CHECKPOINT_SECONDS - 1, complete=False) == 0
    assert checkpoints.write_due(CHECKPOINT_SECONDS, complete=False) == 1
    assert checkpoints.write_due(9 * CHECKPOINT_SECONDS, complete=True) == 0, "nothing new"
    fill(writer, 3)
    assert checkpoints.write_due(9 * CHECKPOINT_SECONDS + 1, complete=True) == 1
    assert [each.size for each in stored(writer)] == [2, 3]


def test_an_empty_ledger_has_no_checkpoint(writer: LedgerWriter) -> None:
    assert write(writer, complete=True) == 0
    assert stored(writer) == []


def test_the_roster_is_published_beside_the_ledger(writer: LedgerWriter) -> None:
    write(writer)
    assert writer.store.get(keys.ROSTER) == ROSTER.to_json()


def test_two_writers_of_one_history_write_the_same_bytes(writer: LedgerWriter) -> None:
    fill(writer, CHECKPOINT_ENTRIES + 1)
    other = another(writer)
    other.load()
    assert write(writer, complete=True) == 2
    before = {info.key: writer.store.get(info.key) for info in writer.store.list(keys.CHECKPOINTS)}
    write(other, complete=True)
    assert {info.key: writer.store.get(info.key) for info in writer.store.list(keys.CHECKPOINTS)} == before


def test_a_checkpoint_of_another_history_is_reported_and_stays_as_it_is(writer: LedgerWriter) -> None:
    fill(writer, 3)
    foreign = sign(LedgerCheckpoint(run="tiny", size=3, root="a" * 64, head="b" * 64, unix=1.0), writer.key).to_json()
    writer.store.put(keys.ledger_checkpoint(3), foreign)
    checkpoints = Checkpoints(writer, ROSTER)
    for _ in range(2):
        with pytest.raises(BrokenChain, match=r"checkpoints/0+3\.json has another history than our 3 entries"):
            checkpoints.write_due(0.0, complete=True)
    assert writer.store.get(keys.ledger_checkpoint(3)) == foreign


def test_a_start_after_a_segment_reads_few_objects_and_finds_the_same(writer: LedgerWriter) -> None:
    fill(writer, SEGMENT_ENTRIES + 5)
    write(writer)
    assert [info.key for info in writer.store.list(keys.SEGMENTS)] == [keys.ledger_segment(0)]
    counting = CountingStore(writer.store)
    again = another(writer, counting)
    again.load()
    assert counting.reads == 1 + 1 + 5, "a segment, its checkpoint, and the entries after it"
    assert (again.view.next_number, again.view.head) == (writer.view.next_number, writer.view.head)
    assert again.view.chain.checkpoint() == writer.view.chain.checkpoint()
    again.append(fact("node-dead", node=NODE))
    assert write(again, complete=True) == 2, "the newest regular one is compared, and what is new is written"


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint every 4 entries and a segment every 16, so that few entries make a long ledger."""
    monkeypatch.setattr(chain, "CHECKPOINT_ENTRIES", 4)
    monkeypatch.setattr(checkpoints, "SEGMENT_ENTRIES", 16)


@pytest.mark.usefixtures("short_steps")
def test_a_long_ledger_that_has_no_checkpoint_yet_gets_them_a_few_a_round(writer: LedgerWriter) -> None:
    fill(writer, 4 * 40 + 1)
    checkpoints, rounds = Checkpoints(writer, ROSTER), []
    for now in range(12):
        written = checkpoints.write_due(float(now), complete=True)
        rounds.append((written, len(writer.store.list(keys.SEGMENTS))))
    assert rounds[:3] == [(32, 1), (9, 2), (0, 3)]
    assert rounds[-1] == (0, 10)
    assert [each.size for each in stored(writer)] == [*range(4, 161, 4), 161]


@pytest.mark.usefixtures("short_steps")
def test_a_start_half_way_through_compares_the_newest_and_writes_what_is_missing(writer: LedgerWriter) -> None:
    fill(writer, 4 * 40)
    assert write(writer) == 32
    again = another(writer)
    again.load()
    assert write(again) == 9, "one compared, eight written"
    assert len(stored(writer)) == 40


@pytest.mark.parametrize("damage", ["segment", "checkpoint", "no checkpoint", "foreign", "gap"])
def test_a_segment_that_is_not_vouched_for_is_not_used(writer: LedgerWriter, damage: str) -> None:
    fill(writer, SEGMENT_ENTRIES)
    write(writer)
    segment, checkpoint = keys.ledger_segment(0), keys.ledger_checkpoint(SEGMENT_ENTRIES)
    entries = unpack_segment(writer.store.get(segment), 0)
    match damage:
        case "segment":
            entries[7] = sign(altered(entries[7].document, node="8" * 64), writer.key)
            writer.store.put(segment, pack_segment(entries))
        case "checkpoint":
            data = Signed[LedgerCheckpoint].from_json(writer.store.get(checkpoint)).document
            writer.store.put(checkpoint, sign(data, PrivateKey.generate()).to_json())
        case "no checkpoint":
            writer.store.delete(checkpoint)
        case "foreign":
            writer.store.put(segment, b"\x28\xb5\x2f\xfd no segment")
        case "gap":
            writer.store.put(keys.ledger_segment(2), writer.store.get(segment))
    counting = CountingStore(writer.store)
    again = another(writer, counting)
    again.load()
    assert counting.reads >= SEGMENT_ENTRIES, "every entry was read"
    assert again.view.head == writer.view.head


def test_an_entry_that_is_missing_is_still_found_with_segments(writer: LedgerWriter) -> None:
    fill(writer, SEGMENT_ENTRIES + 3)
    write(writer)
    writer.store.delete(keys.ledger_entry(SEGMENT_ENTRIES + 1))
    with pytest.raises(BrokenChain, match="is not there, and later ones are"):
        another(writer).load()


def test_a_segment_is_made_again_of_signed_entries_only(writer: LedgerWriter) -> None:
    fill(writer, SEGMENT_ENTRIES)
    first = Signed[LedgerEntry].from_json(writer.store.get(keys.ledger_entry(0)))
    writer.store.put(keys.ledger_entry(0), sign(first.document, PrivateKey.generate()).to_json())
    with pytest.raises(BrokenChain, match="ledger entry 0 is not one that this run's orchestrator signed"):
        write(writer)
    assert writer.store.list(keys.SEGMENTS) == []


@pytest.mark.parametrize("data", [b"", b"x", b"\x28\xb5\x2f\xfd\xff" + bytes(30)])
def test_bytes_that_are_no_segment_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(ValueError, match="segment 3 of the ledger is not readable"):
        unpack_segment(data, 3)


def test_a_segment_of_other_entries_is_refused(writer: LedgerWriter) -> None:
    fill(writer, 4)
    entries = [writer.verified(number, writer.store.get(keys.ledger_entry(number))) for number in range(4)]
    with pytest.raises(ValueError, match="segment 0 of the ledger does not hold entries 0 to 1023"):
        unpack_segment(pack_segment(entries), 0)
