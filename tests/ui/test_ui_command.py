"""`shoal ui` as a program: what it prints, what it serves, what it refuses; and that streams and readings cost nothing once nobody looks."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from run_documents import RunFolder, snapshot, step_metrics
from ui_run import UiRun

from servers import PLAIN, Loopback, wait_until
from shoal.cli import ui
from shoal.cli.ui import PageAddress, serve
from shoal.contracts import keys
from shoal.errors import InputWrong
from shoal.report.facts import StoreReader
from shoal.report.run_folders import LIVE_FILE
from shoal.report.snapshot import snapshot_bytes
from shoal.ui import app as service
from shoal.ui import watch as watching
from shoal.ui.watch import RunWatch


def start(run: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """The program, and the address that it prints."""
    program = [sys.executable, "-m", "shoal.cli.main", "ui", str(run), "--port", "0", *options]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"https?://\S+", line)
    assert found, (line, process.communicate(timeout=20))
    return process, found[0]


def test_the_command_serves_a_run_follows_it_and_ends_when_asked(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    process, url = start(run.path)
    try:
        live = httpx.get(f"{url}api/live", **PLAIN, timeout=60).json()
        assert live["headline"] == "3 of 10 steps trained, version 3"
        assert "`shoal up` is not running" in live["waiting"]
        (run.path / LIVE_FILE).write_bytes(snapshot_bytes(snapshot(time.time(), message="makes the base model")))

        def follows() -> bool:
            return "makes the base model" in httpx.get(f"{url}api/live", **PLAIN, timeout=60).json()["waiting"]

        wait_until("the page to follow", follows, 20.0)
    finally:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)


def test_off_loopback_a_token_is_printed_once_and_wanted(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    process, address = start(run.path, "--host", "0.0.0.0")
    try:
        url, token = address.split("#token=")
        assert process.stdout is not None
        assert "unencrypted" in process.stdout.readline()
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}api/live", **PLAIN, timeout=60).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}api/live", **PLAIN, timeout=60, headers=headers).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert token not in said + errors


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (PageAddress("127.0.0.1", 0, certificate=Path("cert.pem")), "need each other"),
        (PageAddress("127.0.0.1", 0, certificate=Path("no.pem"), key=Path("no.pem")), "no.pem is not there"),
        (PageAddress("127.0.0.1", 0, token_file=Path("/nonexistent/token")), "--token-file /nonexistent/token"),
        (PageAddress("no.such.host.invalid", 0), "cannot listen on"),
    ],
)
def test_what_cannot_be_served_is_said_in_words(tmp_path: Path, place: PageAddress, words: str) -> None:
    run = UiRun(tmp_path)
    with pytest.raises(InputWrong, match=re.escape(words)):
        serve(str(run.path), tmp_path, place, lambda _: None)


def test_a_port_in_use_is_said_before_anything_is_read(tmp_path: Path, loopback: Loopback) -> None:
    run = UiRun(tmp_path)
    address = loopback.address()
    with ui._bind(PageAddress(address, 0)) as taken, pytest.raises(InputWrong, match="give another --port"):
        serve(str(run.path), tmp_path, PageAddress(address, taken.getsockname()[1]), lambda _: None)


def test_an_old_snapshot_is_not_shown_as_the_present(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    newest = ui._local(run.path)
    (run.path / LIVE_FILE).write_bytes(snapshot_bytes(snapshot(time.time() - 60)))
    assert newest().unix == 0.0
    (run.path / LIVE_FILE).write_bytes(b"{ torn")
    assert newest().unix == 0.0
    (run.path / LIVE_FILE).write_bytes(snapshot_bytes(snapshot(time.time())))
    assert newest().unix > 0.0


def test_a_stream_that_is_closed_gives_its_place_back(
    ui_run: UiRun, serve_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_STREAMS", 1)
    page = serve_page(ui_run)
    with httpx.Client(**PLAIN) as client:
        for _ in range(3):

            def opens() -> bool:
                with client.stream("GET", f"{page.url}api/events") as stream:
                    if stream.status_code != 200:
                        return False
                    lines = (line for line in stream.iter_lines() if line.startswith("data: "))
                    return bool(json.loads(next(lines)[6:])["run"] == "demo")

            wait_until("the place to be free", opens, 20.0)


def test_nothing_is_read_while_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "UNWATCHED_SECONDS", 0.0)
    monkeypatch.setattr(watching, "SNAPSHOT_SECONDS", 0.01)
    run = UiRun(tmp_path)
    asked: list[int] = []
    watch = RunWatch(run.source, lambda: asked.append(1) or run.snapshot)
    watch.start()
    before = len(asked)
    time.sleep(0.3)
    watch.stop()
    assert len(asked) == before


def test_a_reader_reads_again_what_is_new_or_changed_and_nothing_else(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.add_step(step_metrics(0, reward=0.1))
    reader = StoreReader(run.store)
    assert [each.reward for each in reader.read().steps] == [0.1]
    read: list[str] = []
    get = run.store.get
    run.store.get = lambda key: read.append(key) or get(key)
    assert [each.reward for each in reader.read().steps] == [0.1]
    assert read == []
    run.store.put(keys.step_metrics(0), step_metrics(0, reward=0.25).to_json())
    run.store.put(keys.step_metrics(1), b"{ torn")
    facts = reader.read()
    assert [each.reward for each in facts.steps] == [0.25]
    assert sorted(read) == [keys.step_metrics(0), keys.step_metrics(1)]
    assert facts.notes == reader.read().notes != []
