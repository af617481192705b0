"""Logs of many parts, merged by time, whatever each of them writes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.cli.log_lines import LogLine, dated, line_time, said, show, since_unix
from shoal.cli.logs import Tail, fits, log_files, print_logs
from shoal.errors import InputWrong

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC).timestamp()
LOCAL_NOON = datetime(2026, 11, 21, 12, 0, 0).astimezone().timestamp()


def json_line(second: float, event: str, **fields: object) -> str:
    moment = datetime.fromtimestamp(NOON + second, UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"event": event, "level": "info", "timestamp": moment, "role": "r", "pod": "p", **fields})


@pytest.mark.parametrize(
    ("line", "unix"),
    [
        (json_line(1.5, "x"), NOON + 1.5),
        ('{"ts": 1764000000.5, "event": "x"}', 1764000000.5),
        ("2026-11-21T12:00:02+00:00 127.0.0.1 GET /", NOON + 2),
        ("2026/11/21 12:00:03 [error] 12#12: *1 open() failed", LOCAL_NOON + 3),  # nginx
        ("812:M 21 Nov 2026 12:00:04.250 * Ready to accept connections", LOCAL_NOON + 4.25),  # Redis
        ("2026-11-21 12:00:05,125 WARNING urllib3 retrying", LOCAL_NOON + 5.125),  # Python's logging
        ("Traceback (most recent call last):", None),
        ("2026/13/45 99:99:99 nonsense", None),
        ('{"timestamp": {"nested": 1}}', None),
        ("[" * 5000, None),
        ("{" * 5000, None),
        ("", None),
    ],
)
def test_the_time_of_a_line_is_read_in_every_format_that_our_parts_write(line: str, unix: float | None) -> None:
    assert line_time(line) == (unix if unix is None else pytest.approx(unix))


def test_lines_without_a_time_belong_to_the_previous_line() -> None:
    lines = list(dated("p/c", [json_line(5, "boom"), "Traceback:", "  File x", json_line(1, "clock went back")]))
    assert [line.unix for line in lines] == [NOON + 5] * 4


def test_a_structured_line_is_shown_as_event_and_fields() -> None:
    line = LogLine(NOON, "demo-trainer-1/trainer", json_line(0, "step trained", step=3, reward=0.5, note="a b"))
    assert show(line).split(" ", 1)[1] == "demo-trainer-1/trainer  step trained step=3 reward=0.5 note=a b"


def test_a_warning_is_marked() -> None:
    assert "  WARNING store away" in show(LogLine(NOON, "p/c", '{"event": "store away", "level": "warning"}'))


def test_a_traceback_is_shown_below_its_event_and_not_in_one_line() -> None:
    text = json_line(
        0, "broke", run="demo", role="agent", node="9c31", exception="Traceback:\n  in f\x1b\nE: x", error="E: x"
    )
    first, *below = show(LogLine(NOON, "p/c", text)).splitlines()
    assert first.endswith("p/c  broke error=E: x")
    assert below == ["    Traceback:", "      in f\\x1b", "    E: x"]
    assert said(text) == "broke error=E: x"
    assert "node=9c31" in said(json_line(0, "node joined", node="9c31")), "of another's node the line is about it"


def test_a_hostile_line_cannot_move_the_cursor() -> None:
    for text in ("\x1b[2Jowned", json.dumps({"event": "\x1b[2J", "k\x1b": "\x9b1m"})):
        assert not {"\x1b", "\x9b"} & set(show(LogLine(NOON, "p\x1b/c", text)))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, lines in {
        "demo-trainer-1/trainer.log": [json_line(0, "old"), json_line(4, "four"), json_line(8, "eight")],
        "demo-relay-0/nginx.log": ["2026-11-21T12:00:06Z six", "wrapped"],
        "demo-pool-0/worker.log": [json_line(5, "five")],
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))
    return tmp_path


def printed(logs: Path, part: str | None = None, since: float = 0.0) -> list[str]:
    out: list[str] = []
    print_logs(logs, part, since, False, out.append)
    return [line.rsplit(" ", 1)[1] for line in out]


def test_all_parts_are_merged_by_time(logs: Path) -> None:
    assert printed(logs) == ["old", "four", "five", "six", "wrapped", "eight"]


def test_since_leaves_out_what_is_older(logs: Path) -> None:
    assert printed(logs, since=NOON + 5.5) == ["six", "wrapped", "eight"]


@pytest.mark.parametrize(
    "part", ["trainer", "trainer-1", "demo-trainer-1", "demo-trainer-1/trainer", "trainer-1/trainer"]
)
def test_a_part_is_named_by_pod_or_container_or_both(logs: Path, part: str) -> None:
    assert printed(logs, part) == ["old", "four", "eight"]
    assert not fits("demo-relay-0/nginx", part)


def test_an_unknown_part_is_answered_with_the_list_of_parts(logs: Path) -> None:
    with pytest.raises(
        InputWrong, match=r"no log of 'trainr' .*parts: demo-pool-0/worker, demo-relay-0/nginx, demo-trainer-1/trainer"
    ):
        log_files(logs, "trainr")


def test_bytes_that_are_not_text_are_shown_as_escapes(logs: Path) -> None:
    (logs / "demo-pool-0" / "worker.log").write_bytes(b"\xff\xfe raw\n")
    assert any("raw" in line for line in printed(logs, "worker"))


def test_following_shows_each_line_once_even_after_truncation_and_for_new_parts(logs: Path) -> None:
    log = logs / "demo-trainer-1" / "trainer.log"
    out: list[str] = []
    story = iter(["append", "half", "rest", "cut", "after cut", "new part", "end"])

    def go_on() -> bool:
        act = next(story)
        if act == "append":
            _append(log, json_line(9, "nine") + "\n")
        elif act == "half":
            _append(log, json_line(10, "ten")[:20])
        elif act == "rest":
            _append(log, json_line(10, "ten")[20:] + "\n")
        elif act == "cut":
            log.write_text(json_line(10, "ten") + "\n")
        elif act == "after cut":
            _append(log, json_line(11, "eleven") + "\n")
        elif act == "new part":
            (logs / "demo-trainer-2").mkdir()
            _append(logs / "demo-trainer-2" / "trainer.log", json_line(12, "twelve") + "\n")
        return act != "end"

    print_logs(logs, "trainer", NOON + 3, True, out.append, go_on)
    assert [line.rsplit(" ", 1)[1] for line in out] == ["four", "eight", "nine", "ten", "eleven", "twelve"]


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_line_that_is_being_written_while_following_begins_is_not_split(logs: Path) -> None:
    log = logs / "demo-pool-0" / "worker.log"
    _append(log, json_line(6, "unfinished")[:15])
    tail = Tail("p/c", log)
    tail.skip()
    _append(log, json_line(6, "unfinished")[15:] + "\n")
    assert [line.text for line in tail.read(NOON)] == [json_line(6, "unfinished")]


@pytest.mark.parametrize(("text", "unix"), [("90s", 910), ("10m", 400), ("1.5m", 910), ("2026-11-21T12:00:00Z", NOON)])
def test_since_is_an_age_or_a_time(text: str, unix: float) -> None:
    assert since_unix(text, 1000.0) == unix


def test_a_since_that_is_neither_says_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="--since 'yesterday': allowed: 90s, 10m, 2h, 1d, or a time such as"):
        since_unix("yesterday", 0.0)
