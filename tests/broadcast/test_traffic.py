"""Counting what nginx served: every line once, across turns, restarts and hours."""

import json
from pathlib import Path

import pytest

from shoal.broadcast.traffic import STATE_FILE, Traffic


def _line(size: int, status: int = 200) -> bytes:
    return json.dumps({"bytes": size, "status": status, "server": "nginx/1.22.1", "node": "a"}).encode() + b"\n"


def _append(folder: Path, data: bytes, hour: str = "2026-11-21T04") -> None:
    with (folder / f"access-{hour}.log").open("ab") as file:
        file.write(data)


def test_bytes_and_requests_are_counted_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    _append(tmp_path, _line(100) + _line(50, 206))
    traffic.count()
    traffic.count()
    _append(tmp_path, _line(7))
    traffic.count()
    assert traffic.totals.sent_bytes == 157
    assert traffic.totals.requests == {"200": 2, "206": 1}


def test_a_line_that_is_still_being_written_is_counted_when_it_is_whole(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    line = _line(100)
    _append(tmp_path, line[:20])
    traffic.count()
    assert traffic.totals.sent_bytes == 0
    _append(tmp_path, line[20:])
    traffic.count()
    assert traffic.totals.sent_bytes == 100


def test_a_new_process_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    _append(tmp_path, _line(100))
    Traffic(tmp_path).count()
    _append(tmp_path, _line(11))
    again = Traffic(tmp_path)
    again.count()
    assert again.totals.sent_bytes == 111
    assert again.totals.requests == {"200": 2}


def test_lines_that_cannot_be_read_are_counted_as_such(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    _append(tmp_path, b"not json\n" + b'{"bytes": "many"}\n' + b"[1]\n" + _line(5))
    traffic.count()
    assert traffic.totals.sent_bytes == 5
    assert traffic.totals.requests == {"unreadable": 3, "200": 1}


def test_counted_files_of_past_hours_are_deleted_and_stay_counted(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for hour in ("2026-11-21T01", "2026-11-21T02", "2026-11-21T03"):
        _append(tmp_path, _line(10), hour)
    traffic.count()
    assert sorted(path.name for path in tmp_path.glob("access-*")) == [
        "access-2026-11-21T02.log",
        "access-2026-11-21T03.log",
    ]
    again = Traffic(tmp_path)
    again.count()
    assert again.totals.sent_bytes == 30


@pytest.mark.parametrize("text", ["", "[]", '{"sent_bytes": 5, "counted_by": "a later release"}'])
def test_counts_that_cannot_be_read_start_from_zero(tmp_path: Path, text: str) -> None:
    """After a power cut the file may be empty: a relay serves all the same."""
    (tmp_path / STATE_FILE).write_text(text)
    traffic = Traffic(tmp_path)
    _append(tmp_path, _line(7))
    traffic.count()
    assert traffic.totals.sent_bytes == 7
    assert Traffic(tmp_path).totals.sent_bytes == 7
