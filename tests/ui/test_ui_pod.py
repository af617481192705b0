"""The page's pod on a cluster, `python -m shoal.ui`: it starts from what is mounted, wants its token, and shows what the operator says of parts."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from run_documents import progress
from ui_run import HONEST, MARKUP, UiRun

from servers import PLAIN, Loopback, wait_until
from shoal.contracts.run_parts import PartState, RunParts
from shoal.report.snapshot import Part
from shoal.ui import app as service
from shoal.ui.__main__ import PORT
from shoal.ui.access import Access
from shoal.ui.app import make_app
from shoal.ui.parts import part_of, read_parts, snapshots
from shoal.ui.watch import RunWatch
from shoal_operator.children.names import PORTS

TOKEN = "5c" * 32


def state(name: str = "demo-relay", **changes: object) -> PartState:
    values = {
        "component": "RelayServer", "name": name, "ready": True, "pods_ready": 2, "pods_desired": 2, "reason": "PodsReady",
        "message": "2 of 2 pods are ready",
    }  # fmt: skip
    return PartState(**(values | changes))


def tell(home: Path, *parts: PartState, run: str = "demo") -> None:
    """As a kubelet does: the new file takes the old one's place."""
    partial = home / "config" / "parts.partial"
    partial.write_bytes(RunParts(run=run, parts=list(parts)).to_json())
    partial.replace(home / "config" / "parts.json")


def mounted(folder: Path, loopback: Loopback) -> tuple[UiRun, str]:
    """A run whose home is as the pod finds it, and the pod's address; nothing answers where the orchestrator should be."""
    run = UiRun(folder)
    gone = f"http://{loopback.address()}:8080"
    config = run.config.model_copy(update={"addresses": run.config.addresses.model_copy(update={"orchestrator": gone})})
    (run.home / "config" / "run.json").write_bytes(config.to_json())
    (run.home / "secrets").mkdir()
    (run.home / "secrets" / "token").write_text(TOKEN)
    tell(
        run.home,
        state(),
        state(
            "demo-pool", component="InferencePool", ready=False, pods_ready=0, reason="ImagePullBackOff", message=MARKUP
        ),
    )
    return run, loopback.address()


def start(home: Path, address: str, temporary: Path) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(temporary), "TMPDIR": str(temporary)}
    environment |= {"SHOAL_HOME": str(home), "SHOAL_BIND": address, "SHOAL_POD": "demo-ui-0", "SHOAL_ROLE": "ui"}
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "shoal.ui"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture
def pod(tmp_path: Path, loopback: Loopback) -> Iterator[tuple[UiRun, str, subprocess.Popen[str]]]:
    run, address = mounted(tmp_path, loopback)
    with tempfile.TemporaryDirectory() as short:  # as `/shoal/tmp` is: a Unix socket's path has no more than 107 bytes
        process = start(run.home, address, Path(short))
        yield run, f"http://{address}:{PORT}", process
        process.kill()
        process.communicate(timeout=30)


def test_the_page_starts_from_what_is_mounted_answers_who_has_the_token_and_refuses_others(
    pod: tuple[UiRun, str, subprocess.Popen[str]],
) -> None:
    run, url, process = pod
    before = {path: path.stat().st_mtime_ns for path in run.home.rglob("*")}
    with httpx.Client(base_url=url, **PLAIN, timeout=30) as client:

        def ready() -> bool:
            assert process.poll() is None, process.communicate()[0]
            try:
                return client.get("/readyz").status_code == 200
            except httpx.ConnectError:
                return False

        wait_until("the page to be served", ready, 60.0)
        assert client.get("/healthz").status_code == 200
        assert client.get("/").status_code == 200, "the page's own files hold nothing of the run"
        for wrong in ({}, {"Authorization": "Bearer " + "0" * 64}, {"Cookie": "shoal_ui=guess"}):
            for path in ("/api/live", "/api/files", "/api/ledger"):
                assert client.get(path, headers=wrong).status_code == 401
        mine = {"Authorization": f"Bearer {TOKEN}"}
        live = client.get("/api/live", headers=mine).json()
        assert [(part["name"], part["state"]) for part in live["parts"]] == [("relay", "ready"), ("pool", "waiting")]
        assert live["waiting"] == "the orchestrator does not answer"
        assert live["headline"] == "3 of 10 steps trained, version 3", "what the store says holds all the same"
        assert client.get("/api/run", headers=mine).json()["run_key"] == run.config.run_key
        nodes = client.get("/api/nodes", headers=mine).json()
        assert nodes["ledger"]["good"], "checked against the run's own key"
        # A stranger's file is parsed in a child process, with the pod's folder for temporary files.
        row = client.get(f"/api/files/{HONEST}/{run.accepted.sha256}/rows/0", headers=mine).json()
        assert row["prompt"] == "12+34="
        tell(run.home, state(ready=False, pods_ready=1, reason="PodsNotReady"))

        def follows() -> bool:
            return [part["state"] for part in client.get("/api/live", headers=mine).json()["parts"]] == ["starting"]

        wait_until("the page to follow the operator", follows, 30.0)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert TOKEN not in said
    assert "Traceback" not in said
    after = {path: path.stat().st_mtime_ns for path in run.home.rglob("*")}
    changed = {
        path.relative_to(run.home).as_posix()
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }
    assert changed <= {"config", "config/parts.json"}, "it only reads"


def test_a_client_that_never_says_its_token_is_not_waited_for(
    ui_run: UiRun, serve_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TOKEN_SECONDS", 0.5)
    page = serve_page(ui_run, Access(TOKEN, frozenset()))
    place = urlsplit(page.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as client:
        client.sendall(b"POST /api/session HTTP/1.1\r\nHost: page\r\nContent-Length: 64\r\n\r\nhalf")
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("token", "words"),
    [(None, "secrets/token cannot be read"), ("short", "a token has 16 to 512 printable ASCII characters")],
    ids=["no token", "a token that can be guessed"],
)
def test_without_a_good_token_the_page_does_not_start(
    tmp_path: Path, loopback: Loopback, token: str | None, words: str
) -> None:
    run, address = mounted(tmp_path, loopback)
    (run.home / "secrets" / "token").unlink()
    if token is not None:
        (run.home / "secrets" / "token").write_text(token)
    process = start(run.home, address, tmp_path)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert words in said


def test_the_port_is_the_one_that_the_operator_opens() -> None:
    assert PORTS["ui"] == PORT


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "ready"),
        ({"pods_ready": 0, "pods_desired": 0}, "done"),
        ({"ready": False, "reason": "PodsNotReady"}, "starting"),
        ({"ready": False, "reason": "NotObserved"}, "starting"),
        ({"ready": False, "reason": "Absent"}, "pending"),
        ({"ready": False, "reason": "Queued"}, "pending"),
        ({"ready": False, "reason": "JobFailed"}, "failed"),
        ({"ready": False, "reason": "CrashLoopBackOff"}, "waiting"),
    ],
)
def test_a_part_is_shown_as_the_operator_sees_it(changes: dict[str, object], shown: str) -> None:
    assert part_of(state(**changes)).state == shown


def test_a_file_that_says_nothing_leaves_the_map_empty_and_the_page_says_why(tmp_path: Path) -> None:
    run, path = UiRun(tmp_path), tmp_path / "parts.json"
    for content in (None, b"{ torn", RunParts(run="other", parts=[state()]).to_json(), b"x" * (2 << 20)):
        if content is not None:
            path.write_bytes(content)
        assert read_parts(path, "demo") is None
        found = snapshots(run.config, path, lambda: progress())()
        assert (found.parts, found.message) == ((), "the operator has not reported the run's parts")
    path.write_bytes(RunParts(run="demo", parts=[state()]).to_json())
    found = snapshots(run.config, path, lambda: progress())()
    assert found.parts == (Part("demo-relay", "", "Running", ready=True, message="2 of 2 pods are ready"),)
    assert (found.message, found.steps_total) == ("", 60)
    assert snapshots(run.config, path, lambda: None)().message == "the orchestrator does not answer"


@pytest.mark.parametrize(("headers", "secure"), [({}, False), ({"X-Forwarded-Proto": "https"}, True)])
def test_behind_a_proxy_with_https_the_cookie_never_travels_unencrypted(
    ui_run: UiRun, headers: dict[str, str], secure: bool
) -> None:
    app = make_app(RunWatch(ui_run.source, lambda: ui_run.snapshot), Access(TOKEN, frozenset()))
    answer = TestClient(app).post("/api/session", content=TOKEN, headers=headers)
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure


def test_a_proxy_is_asked_not_to_hold_the_news_back(ui_run: UiRun, serve_page: Callable[..., Any]) -> None:
    with (
        httpx.Client(**PLAIN, timeout=20) as client,
        client.stream("GET", f"{serve_page(ui_run).url}api/events") as news,
    ):
        assert news.headers["x-accel-buffering"] == "no"
        assert next(news.iter_lines()) == "retry: 2000"


def test_a_page_on_one_machine_has_no_probes(ui_run: UiRun) -> None:
    client = TestClient(make_app(RunWatch(ui_run.source, lambda: ui_run.snapshot), Access(TOKEN, frozenset())))
    assert client.get("/healthz").status_code == 404


def test_a_page_whose_reading_hangs_is_not_alive(ui_run: UiRun) -> None:
    watch = RunWatch(ui_run.source, lambda: ui_run.snapshot)
    client = TestClient(make_app(watch, Access(TOKEN, frozenset()), probed=True))
    assert client.get("/healthz").status_code == 200
    watch.liveness.limit_seconds = 0.0
    assert client.get("/healthz").status_code == 503
    assert client.get("/readyz").status_code == 200
