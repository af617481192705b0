"""`shoal report` of a run of which only the store is known: a copy, a bucket, and a real Prometheus that scraped its parts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from run_documents import NODE, RunFolder, step_metrics, verdict
from typer.testing import CliRunner

from ledger_samples import fact
from servers import Minio
from shoal.cli.main import app
from shoal.contracts import keys
from shoal.errors import InputWrong
from shoal.ledger.entries import EntryKind
from shoal.ledger.writer import LedgerWriter
from shoal.report.prometheus import NoReadings, read_prometheus
from shoal.storage.store import open_folder

STEPS = 4


class StoredRun(RunFolder):
    """A run with trained steps, verdicts and a ledger; its store alone is looked at."""

    def __init__(self, runs_dir: Path) -> None:
        super().__init__(runs_dir, steps_total=10)
        self.store.put(keys.ROSTER, self.config.roster.to_json())
        writer = LedgerWriter(self.store, "demo", self.role_keys["orchestrator"])
        kind: EntryKind = "node-joined"
        writer.append(fact(kind, node=NODE, detail="0" * 32))
        for step in range(STEPS):
            self.add_step(step_metrics(step, task_reward=step / 10))
        self.add_verdict(verdict(1, "accept"))
        self.add_verdict(verdict(2, "reject", "sampling"))

    @property
    def copy(self) -> Path:
        return self.home / "store" / "shoal" / "demo"


def report(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_copy_of_a_store_is_reported_without_the_runs_folder(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    said = report(run.copy, "--output", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (data["steps"], data["steps_total"], data["files_accepted"], data["files_rejected"]) == (STEPS, None, 1, 1)
    assert (data["reward_start"], data["reward_end"]) == (pytest.approx(0.05), pytest.approx(0.25))
    assert data["wall_seconds"] is None
    assert any("give --prometheus URL" in note for note in data["notes"])
    assert "4 steps trained" in (tmp_path / "out" / "report.html").read_text()
    assert "4 steps" in said


def test_a_version_of_a_changed_trainer_key_is_reported_by_a_configuration_from_before(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.store.put(keys.ROSTER, run.keys.change("trainer", 1000.0).to_json())
    run.add_version(1, {"config.json": b"{}", "model.safetensors": b"weights"})
    report(run.copy, "--join", run.home / "config" / "run.json", "--output", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["model_version"] == 1, data["notes"]


def test_a_run_in_a_bucket_is_reported(tmp_path: Path, minio_server: Minio, monkeypatch: pytest.MonkeyPatch) -> None:
    from minio import Minio as Client

    run = StoredRun(tmp_path)
    client = Client(
        minio_server.endpoint.removeprefix("http://"), minio_server.access_key, minio_server.secret_key, secure=False,
        region="us-east-1",
    )  # fmt: skip
    for path in sorted(run.copy.rglob("*")):
        if path.is_file():
            client.fput_object(minio_server.bucket, f"elsewhere/demo/{path.relative_to(run.copy)}", str(path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio_server.secret_key)
    url = f"s3://{minio_server.bucket}/elsewhere/demo"
    report(url, "--endpoint", minio_server.endpoint, "--run-key", run.config.run_key, "--output", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (data["store"], data["steps"], data["ledger"]) == ("s3", STEPS, {"node-joined": 1})


def test_a_store_of_another_run_key_is_refused(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    with pytest.raises(InputWrong, match="not the roster of the run with that key"):
        report(run.copy, "--run-key", "ab" * 32, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_without_a_step_says_that_there_is_nothing_to_report(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.store.put(keys.ROSTER, run.config.roster.to_json())
    writer = LedgerWriter(run.store, "demo", run.role_keys["orchestrator"])
    writer.append(fact("node-joined", node=NODE, detail="0" * 32))
    with pytest.raises(InputWrong, match="nothing to report"):
        report(run.home / "store" / "shoal" / "demo")


ANSWERS: dict[str, object] = {}


class _Prometheus(BaseHTTPRequestHandler):
    """Answers range queries as Prometheus does, from `ANSWERS`: so that what it says can be wrong too."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWERS["body"]).encode()
        self.send_response(int(str(ANSWERS.get("status", 200))))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def answering() -> str:
    ANSWERS.clear()
    server = HTTPServer(("127.0.0.1", 0), _Prometheus)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _matrix(*namespaces: str, values: list[list[object]] | None = None) -> dict[str, object]:
    points = values or [[1000, "1"], [1015, "4"], [1030, "2"]]
    result = [
        {"metric": {"namespace": each, "run": "demo", "pod": "demo-pool-0", "container": "worker", "phase": "generate"}, "values": points}
        for each in namespaces
    ]  # fmt: skip
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_readings_of_prometheus_give_the_figures_of_the_sampler(tmp_path: Path, answering: str) -> None:
    ANSWERS["body"] = _matrix("research")
    run = StoredRun(tmp_path)
    report(run.copy, "--prometheus", answering, "--output", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["wall_seconds"] == 30.0
    assert data["phase_seconds"] == {"worker": {"generate": 6.0}}  # 1, 3 more, then 2 of a process that began anew
    assert data["busy_seconds"] == {"worker": 6.0}
    assert data["steps_total"] == 2


def test_runs_of_one_name_in_two_namespaces_are_not_mixed(answering: str) -> None:
    ANSWERS["body"] = _matrix("research", "play")
    with pytest.raises(NoReadings, match="play, research: say which with --namespace"):
        read_prometheus(answering, "demo", 0, 100)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"status": "error"}, 200, "not Prometheus's JSON"), ([], 200, "not Prometheus's JSON"),
        ({"data": {"resultType": "vector", "result": []}}, 200, "not Prometheus's JSON"), ({}, 503, "answered 503"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_said_in_words(answering: str, body: object, status: int, words: str) -> None:
    ANSWERS.update(body=body, status=status)
    with pytest.raises(NoReadings, match=words):
        read_prometheus(answering, "demo", 0, 100)


def test_values_that_are_not_finite_are_left_out(answering: str) -> None:
    ANSWERS["body"] = _matrix("research", values=[[1000, "NaN"], [1015, "+Inf"], [1030, "x"]])
    assert read_prometheus(answering, "demo", 0, 100).records == ()


@pytest.mark.parametrize("name", ['demo"} or up{', "", "dé"])
def test_a_name_that_would_change_the_query_is_refused(name: str) -> None:
    with pytest.raises(NoReadings, match="not a name of a run"):
        read_prometheus("http://127.0.0.1:9", name, 0, 100)


def test_a_store_that_was_read_is_not_opened_for_writing(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    before = {info.key: info.modified_unix for info in open_folder(run.copy, "", deadline_seconds=1).list("ledger/")}
    report(run.copy, "--output", tmp_path / "out")
    assert before == {
        info.key: info.modified_unix for info in open_folder(run.copy, "", deadline_seconds=1).list("ledger/")
    }
