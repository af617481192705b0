"""Everything that a process of ours says is one JSON line an event: also what libraries log or print, and exceptions that nobody caught."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servers import ROOT, structured_lines
from shoal.telemetry.logs import MAX_TEXT, MAX_TRACEBACK, library_formatter, with_traceback

BEGIN = """
import logging, sys, threading, time, warnings
from shoal import telemetry
log = telemetry.start("trainer")
telemetry.every_line(run="tiny", rank=1)
"""
LOGS = """
log.info("step trained", step=3, version=4, run="of its own")
logging.getLogger("some.library").warning("two\\nlines %s", 7)
logging.getLogger("some.library").info("nobody asks")
warnings.warn("old option")
own = logging.getLogger("brings.its.own.handler")
own.addHandler(logging.StreamHandler())
own.propagate = False
own.warning("past the root")
print("half", end="", file=sys.stderr)
print(" a line\\rand another", file=sys.stderr)
thread = threading.Thread(target=lambda: telemetry.get_logger().info("from a thread"))
thread.start()
thread.join()
"""
BREAKS = """
def deep(secret):
    raise ValueError("no such\\nversion")
def fails():
    deep("hunter" + str(2))
thread = threading.Thread(target=fails, name="publisher")
thread.start()
thread.join()
try:
    fails()
except ValueError:
    log.exception("told", step=3)
class Lost:
    def __del__(self):
        raise RuntimeError("in the end")
lost = Lost()
del lost
fails()
"""


def lines_of(program: str, tmp_path: Path, status: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The lines of a process that runs `program` behind `BEGIN`, and its whole output."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=os.environ
        | {"SHOAL_HOME": str(tmp_path), "SHOAL_POD": "tiny-trainer-1", "PYTHONPATH": str(ROOT / "workloads")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert ended.returncode == status, ended.stdout
    return structured_lines(ended.stdout, role="trainer", pod="tiny-trainer-1"), ended.stdout


def test_what_is_logged_printed_or_warned_in_any_thread_is_a_line_with_the_fields_of_its_process(
    tmp_path: Path,
) -> None:
    lines, _ = lines_of(LOGS, tmp_path)
    said = {line["event"]: line for line in lines}
    assert said["step trained"] | {"step": 3, "version": 4, "run": "of its own"} == said["step trained"]
    others = [line for line in lines if line["event"] != "step trained"]
    assert {(line["run"], line["rank"]) for line in others} == {("tiny", 1)}
    assert said["two\nlines 7"]["logger"] == "some.library"
    assert said["two\nlines 7"]["level"] == "warning"
    assert "nobody asks" not in said
    assert {"past the root", "half a line", "and another"} <= {
        line["event"] for line in lines if line.get("logger") == "stderr"
    }
    assert any("old option" in line["event"] for line in lines if line.get("logger") == "py.warnings")
    assert said["from a thread"]["level"] == "info"


def test_an_exception_is_one_line_with_its_traceback_and_without_values(tmp_path: Path) -> None:
    lines, output = lines_of(BREAKS, tmp_path, status=1)
    assert [line["event"] for line in lines] == [
        "an error ends a thread", "told", "an error was ignored", "an error ends the process",
    ]  # fmt: skip
    assert lines[0]["thread"] == "publisher"
    assert lines[1]["step"] == 3
    assert lines[2]["error"] == "RuntimeError: in the end"
    for line in (lines[0], lines[1], lines[3]):
        assert list(line)[-1] == "error", "the end of a line is what a pod's status keeps"
        assert line["error"] == "ValueError: no such\nversion"
        assert "in deep" in line["exception"]
        assert line["level"] == "error"
    assert "hunter2" not in output


def test_the_reason_to_end_is_a_line_and_the_exit_code_stays(tmp_path: Path) -> None:
    [line], _ = lines_of('sys.exit("secrets/role.pem is missing")', tmp_path, status=1)
    assert line["event"] == "secrets/role.pem is missing"


def test_a_long_text_is_told_in_pieces_and_a_deep_traceback_by_its_end(tmp_path: Path) -> None:
    lines, _ = lines_of(f"print('x' * {2 * MAX_TEXT + 5}, file=sys.stderr)", tmp_path)
    assert [len(line["event"]) for line in lines] == [MAX_TEXT, MAX_TEXT, 5]
    try:
        raise ValueError("y" * MAX_TRACEBACK)
    except ValueError as error:
        event = with_traceback(None, "error", {"exc_info": error, "error": "in short"})
    assert len(event["exception"]) == MAX_TRACEBACK
    assert list(event.items())[-1] == ("error", "in short")


CUTS = f"""
token = "hf_" + "abcdefghij" * 3
print("x" * {MAX_TEXT - 10} + token + " and more", file=sys.stderr)
print("y" * {MAX_TEXT - 10} + token + "z" * {MAX_TEXT}, end="", file=sys.stderr)
print(file=sys.stderr)
log.info("cut by a caller", error=("w" * 480 + token)[:500], deep={{"list": [token, ("v " + token)[:20]]}}, other=ValueError(token))
for before in ({MAX_TRACEBACK} - 20, 480):
    try:
        raise ValueError("u" * (before if before == 480 else 0) + token + "u" * (before if before != 480 else 0))
    except ValueError:
        log.exception("fails")
"""


def test_no_part_of_a_secret_is_in_a_line_wherever_a_text_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "abcdefghij" * 3)
    lines, output = lines_of(CUTS, tmp_path)
    assert len(lines) >= 7
    assert "hf_" not in output
    assert "fghij" not in output
    [said] = [line for line in lines if line["event"] == "cut by a caller"]
    assert said["error"] == "w" * 480 + "***"
    assert said["deep"] == {"list": ["***", "v ***"]}
    assert said["other"] == "ValueError('***')"


def test_records_of_a_process_that_a_library_started_say_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.telemetry.logs._of_process", {})
    monkeypatch.setenv("SHOAL_ROLE", "worker")
    monkeypatch.setenv("SHOAL_POD", "tiny-pool-0")
    record = logging.LogRecord("vllm.engine", logging.WARNING, __file__, 1, "slow %s", ("disk",), None)
    [line] = structured_lines(library_formatter().format(record), role="worker", pod="tiny-pool-0")
    assert (line["event"], line["logger"]) == ("slow disk", "vllm.engine")


@pytest.mark.parametrize("text", ["plain\n", "{}\n", json.dumps({"event": "x", "level": "info"}) + "\n"])
def test_a_line_without_the_fields_would_be_found(text: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        structured_lines(text, role="trainer", pod="p")


def test_a_line_that_a_full_disk_does_not_take_is_lost_and_ends_nothing() -> None:
    program = (
        "from shoal import telemetry\ntelemetry.start('agent', open('/dev/full', 'a'))\n"
        "for each in range(1000): telemetry.get_logger().warning('full', disk='x' * 100)\nprint('went on')"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workloads")}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "went on\n", ended.stderr
