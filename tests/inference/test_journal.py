"""A journal's format, and its files: what is torn, wrong or of something else is as if it were not there."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
from test_generation import rows_of

from servers import wait_until
from shoal.contracts.protocol import Lease, rest_of
from shoal.contracts.run import PublicRun
from shoal.contracts.vine import VineSettings
from shoal.environments.episodes import EpisodeTools
from shoal.inference import journal_files
from shoal.inference.batch import Batch, PlannedLease, Row, RunningLease
from shoal.inference.completions import Completion
from shoal.inference.journal import Heading, heading_line, lease_of, recover, row_line, tried_line
from shoal.inference.journal_files import Journal, why_not
from shoal.installed import installed
from shoal.toploc.codec import PROOF_BYTES

HEADING = Heading("0f" * 16, tiny_policy.STEP, 3, "ab" * 32, "0.2.0")
SEED = 2**62 + 5


def part(tokens: int, start: int = 0, ends: Any = "cut") -> Completion:
    """Tokens that count on from `start`, with proofs that say of which 32 they are."""
    chunks = range(start // 32, -(-(start + tokens) // 32))
    proofs = b"".join(bytes([chunk]) * PROOF_BYTES for chunk in chunks)
    numbers = list(range(start, start + tokens))
    return Completion(numbers, [-0.5 * number for number in numbers], ends, proofs)


WHOLE = heading_line(HEADING) + row_line(SEED, 0, part(64)) + row_line(SEED, 64, part(40, 64, "stop"))


def test_a_row_is_joined_from_its_parts() -> None:
    found = recover(WHOLE)
    assert found is not None
    assert found.heading == HEADING
    assert found.rows == {SEED: part(104, 0, "stop")}
    assert not found.tried


def test_a_torn_tail_is_as_if_it_were_not_there_and_what_is_written_behind_it_counts() -> None:
    last = row_line(SEED, 64, part(40, 64, "stop"))
    for length in range(0, len(last) - 1, 37):
        torn = WHOLE[: -len(last)] + last[:length]
        found = recover(torn)
        assert found is not None
        assert found.rows == {SEED: part(64)}
        again = recover(torn + row_line(SEED, 64, part(32, 64)))
        assert again is not None
        assert again.rows == {SEED: part(96)}


def test_a_flipped_byte_costs_its_own_line_and_what_needs_it() -> None:
    lines = [heading_line(HEADING), *(row_line(SEED, first, part(32, first)) for first in (0, 32, 64))]
    data, starts = b"".join(lines), [sum(map(len, lines[:number])) for number in range(4)]
    for at in range(0, len(data), 53):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        found = recover(bytes(flipped))
        line = max(number for number in range(4) if starts[number] <= at)
        edge = at - starts[line] in (0, len(lines[line]) - 1)  # a line break: a neighbour may be spoiled, too
        if line == 0 and not edge:
            assert found is None
        elif not edge:
            assert found is not None
            assert found.rows == ({SEED: part(32 * (line - 1))} if line > 1 else {})


def test_a_newer_part_counts_where_both_have_tokens() -> None:
    newer = replace(part(32, 32), tokens=[7] * 32)
    found = recover(heading_line(HEADING) + row_line(SEED, 0, part(96)) + row_line(SEED, 32, newer))
    assert found is not None
    assert found.rows[SEED].tokens == [*range(32), *[7] * 32]
    assert found.rows[SEED].proofs == part(64).proofs


@pytest.mark.parametrize(
    "wrong",
    [
        row_line(SEED, 32, part(32, 32)),  # nothing is before it
        row_line(SEED, 0, part(31)),  # no whole proof
        row_line(SEED, 0, replace(part(32), proofs=b"")),
        row_line(SEED, 0, replace(part(32), logprobs=[])),
        row_line(SEED, 0, replace(part(0, 0, "stop"))),
        row_line(SEED, 0, replace(part(32), finish_reason="unanswered")),
        row_line(SEED, -32, part(32)),
        b"\n00000000 {}\n",
        b"\xff" * 99,
    ],
)
def test_what_is_no_part_of_a_row_is_not_there(wrong: bytes) -> None:
    found = recover(heading_line(HEADING) + wrong)
    assert found is not None
    assert found.rows == {}


def test_without_a_heading_there_is_nothing() -> None:
    assert recover(b"") is None
    assert recover(row_line(SEED, 0, part(32))) is None


def test_rows_of_another_version_or_step_do_not_come_under_a_heading() -> None:
    row = row_line(SEED, 0, part(32))
    for other in (replace(HEADING, version=4), replace(HEADING, weights_digest="cd" * 32)):
        found = recover(heading_line(HEADING) + row + heading_line(other))
        assert found is not None
        assert found.heading == HEADING


def test_a_journal_that_was_tried_says_so_until_something_comes_of_it() -> None:
    found = recover(WHOLE + tried_line())
    assert found is not None
    assert found.tried
    found = recover(WHOLE + tried_line() + row_line(9, 0, part(32)))
    assert found is not None
    assert not found.tried


def leased(name: str) -> Lease:
    lease: Lease = tiny_policy.LEASE.model_copy(update={"lease": name})
    return lease


def test_rows_are_of_a_held_lease_of_their_name_or_of_its_rest() -> None:
    other, own, rest = leased("aa" * 16), leased(HEADING.lease), leased(rest_of(HEADING.lease))
    assert lease_of(HEADING, []) is None
    assert lease_of(HEADING, [other]) is None
    assert lease_of(HEADING, [other, rest]) == rest
    assert lease_of(HEADING, [rest, own]) == own


# The files.


def given(
    public: PublicRun = tiny_policy.PUBLIC, tools: EpisodeTools | None = None, lease: str = "0f" * 16
) -> PlannedLease:
    return PlannedLease(
        leased(lease), tiny_policy.WORK, public, tiny_policy.on_disk(3, Path()), rows_of(1, 1) + rows_of(2, 1),
        tools, given=0.0, ends=1e9, life=1e9, shown=tiny_policy.STEP,
    )  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.settle(5.0)


def begun(journal: Journal, planned: PlannedLease | None = None) -> tuple[RunningLease, list[Row]]:
    lease = Batch(4).begin(planned or given())
    journal.begin(lease)
    return lease, list(lease.waiting)


def written(journal: Journal, folder: Path) -> list[bytes]:
    journal.settle(5.0)
    return [path.read_bytes() for path in sorted(folder.glob("*.journal"))]


def test_what_rows_have_more_is_in_the_file_and_goes_with_the_lease(journal: Journal, tmp_path: Path) -> None:
    lease, rows = begun(journal)
    journal.add(rows[0], part(32))
    journal.add(rows[0], part(32, 32))
    journal.whole(rows[1], part(40, 0, "length"))
    journal.whole(rows[0], part(70, 0, "stop"))
    journal.flush(1.0)
    (data,) = written(journal, tmp_path)
    found = recover(data)
    assert found is not None
    assert found.heading == replace(HEADING, version=3, weights_digest=f"{3:064x}", software=installed().version)
    assert found.rows == {1: part(70, 0, "stop"), 2: part(40, 0, "length")}
    journal.go_on(lease, leased("bb" * 16))
    (data,) = written(journal, tmp_path)
    again = recover(data)
    assert again is not None
    assert again.heading.lease == "bb" * 16
    assert again.rows == found.rows
    journal.end(lease)
    assert written(journal, tmp_path) == []
    journal.add(rows[0], part(32))
    journal.flush(2.0)
    assert written(journal, tmp_path) == []


def test_a_file_is_tried_once_and_then_put_away(journal: Journal, tmp_path: Path) -> None:
    _, rows = begun(journal)
    journal.add(rows[0], part(32))
    journal.flush(1.0)
    journal.settle(5.0)
    (left,) = Journal(tmp_path).left()
    assert left.said.rows == {rows[0].episode.row.request.seed: part(32)}
    assert Journal(tmp_path).left() == []
    assert [path.name for path in tmp_path.iterdir()] == [journal_files.PUT_AWAY]


def test_a_file_that_brought_something_is_tried_again(journal: Journal, tmp_path: Path) -> None:
    _, rows = begun(journal)
    journal.add(rows[0], part(32))
    journal.flush(1.0)
    journal.settle(5.0)
    (left,) = Journal(tmp_path).left()
    following = Journal(tmp_path)
    lease = Batch(4).begin(given(), {0: part(32)})
    following.begin(lease, left.path)
    (row,) = [each for each in lease.waiting if each.index == 0]
    following.add(row, part(32, 32))
    following.flush(1.0)
    following.settle(5.0)
    (left,) = Journal(tmp_path).left()
    assert left.said.rows == {1: part(64)}


def test_what_says_nothing_or_is_of_another_release_is_not_used(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(b"\0" * 1000)
    (tmp_path / "b.journal").write_bytes(heading_line(replace(HEADING, software="0.0.1")) + row_line(1, 0, part(32)))
    (tmp_path / "c.journal").write_bytes(heading_line(replace(HEADING, software=installed().version)))
    assert journal.left() == []
    assert [path.name for path in tmp_path.iterdir()] == [journal_files.PUT_AWAY]


@pytest.mark.parametrize("why", ["full", "bound"])
def test_a_full_disk_ends_the_journal_is_told_once_and_leaves_no_file(
    tmp_path: Path, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, most_bytes=10_000 if why == "bound" else 1 << 30)
    _, rows = begun(journal)
    journal.settle(5.0)
    assert journal.due(1.0)
    if why == "full":  # /dev/full takes no byte
        (tmp_path / f"{'0f' * 16}.journal").unlink()
        (tmp_path / f"{'0f' * 16}.journal").symlink_to("/dev/full")
        monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    for second in range(3):
        journal.add(rows[0], part(640, 640 * second))
        journal.flush(1.0 + second)
        journal.settle(5.0)
    assert not journal.on
    assert not journal.due(9.0)
    assert written(journal, tmp_path) == []
    begun(journal, given(lease="cc" * 16))
    assert written(journal, tmp_path) == []
    assert capsys.readouterr().out.count("rows are not kept") == 1


def test_no_link_is_written_through(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / f"{'0f' * 16}.journal").symlink_to(tmp_path / "target")
    begun(journal)
    journal.settle(5.0)
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert not journal.on


def test_nobody_waits_for_a_slow_disk(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, rows = begun(journal)
    journal.settle(5.0)

    def slowly(path: Path, data: bytes) -> None:
        time.sleep(0.5)

    monkeypatch.setattr(journal_files, "_append", slowly)
    began = time.monotonic()
    journal.add(rows[0], part(32))
    journal.flush(1.0)
    assert not journal.due(99.0), "what is written takes its time: nothing more is asked for meanwhile"
    journal.end(lease)
    assert time.monotonic() - began < 0.3
    wait_until("the disk", lambda: journal._beside.idle)


def test_rows_that_are_more_than_tokens_are_not_kept(journal: Journal, tmp_path: Path) -> None:
    public = tiny_policy.PUBLIC
    tools: Any = object()
    assert why_not(public, False) is None
    assert why_not(public, True) == "rows call tools"
    assert why_not(public.model_copy(update={"several_versions": True}), False) == "rows may be of several versions"
    assert why_not(tiny_policy.PUBLIC_VINE, False) == "rows have continuations"
    assert isinstance(tiny_policy.PUBLIC_VINE.vine, VineSettings)
    assert why_not(public.model_copy(update={"routes": object()}), False) == "rows have routes"
    begun(journal, given(tools=tools))
    begun(journal, given(public=tiny_policy.PUBLIC_VINE))
    assert written(journal, tmp_path) == []
