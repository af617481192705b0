"""Branches and tags become commits once, in prepare, wherever the run's configuration names a repository; over a real HTTP server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from samples import run_config
from shoal.contracts import keys
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks, EvaluationSettings
from shoal.contracts.hub import HubCommit
from shoal.contracts.model_source import ModelSource
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.task_source import OfflineFilter, TaskSource
from shoal.environments.hub import HubRefused, commit_of
from shoal.environments.prepare import prepare
from shoal.environments.revisions import Revisions
from shoal.environments.run_checks import CannotPrepare
from shoal.storage.store import open_folder

MODEL_COMMIT, DATA_COMMIT = "a" * 40, "b" * 40


class Hub(ThreadingHTTPServer):
    """The one route of a model hub that says what a revision is; `asked` are the requests."""

    daemon_threads = True
    asked: list[str]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked = []


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Hub)
        if "/revision/" in self.path:  # the client asks for other things of its own, now and then
            self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        found = {
            "/api/models/owner/model/revision/main": {"id": "owner/model", "sha": MODEL_COMMIT},
            "/api/datasets/owner/data/revision/main": {"id": "owner/data", "sha": DATA_COMMIT},
        }.get(path)
        body = json.dumps(found or {"error": "Repository not found"}).encode()
        self.send_response(200 if found else 404)
        if found is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", url)
    yield server
    server.shutdown()
    server.server_close()


def config() -> RunConfig:
    data = DatasetSource(hugging_face="owner/data", revision="main")
    benchmark = Benchmark(name="held-out", tasks=BenchmarkTasks(environment="math", dataset=data))
    return run_config(
        model=ModelSource(hugging_face="owner/model", revision="main"),
        tasks=TaskSource(
            environment="math",
            dataset=data,
            offline_filter=OfflineFilter(model=ModelSource(hugging_face="owner/model", revision="c" * 40)),
        ),
        evaluation=EvaluationSettings(benchmarks=[benchmark]),
    )


def test_every_repository_of_a_run_is_resolved_and_asked_for_once(hub: Hub) -> None:
    revisions = Revisions()
    pinned = revisions.pinned(config())
    assert pinned.model.revision == MODEL_COMMIT
    assert pinned.tasks.dataset is not None
    assert pinned.evaluation is not None
    benchmark = pinned.evaluation.benchmarks[0].tasks.dataset
    assert benchmark is not None
    assert pinned.tasks.dataset.revision == benchmark.revision == DATA_COMMIT
    assert len(hub.asked) == 2
    assert {(each.kind, each.revision, each.commit) for each in revisions.used} == {
        ("model", "main", MODEL_COMMIT),
        ("dataset", "main", DATA_COMMIT),
        ("model", "c" * 40, "c" * 40),
    }


def test_what_another_run_resolved_is_taken_and_not_asked_again(hub: Hub) -> None:
    known = [HubCommit(kind="dataset", repository="owner/data", revision="main", commit="d" * 40)]
    pinned = Revisions(known).pinned(config())
    assert pinned.tasks.dataset is not None
    assert pinned.tasks.dataset.revision == "d" * 40
    assert [path.partition("?")[0] for path in hub.asked] == ["/api/models/owner/model/revision/main"]


def test_a_run_without_a_hub_asks_nobody_and_stays_what_it_is(hub: Hub) -> None:
    found = run_config()
    assert Revisions().pinned(found) is found
    assert hub.asked == []


@pytest.mark.parametrize(("repository", "revision"), [("owner/other", "main"), ("owner/model", "no-such-branch")])
def test_what_the_hub_does_not_have_is_told_in_one_line(hub: Hub, repository: str, revision: str) -> None:
    with pytest.raises(HubRefused) as caught:
        commit_of("model", repository, revision)
    assert f"there is no model {repository} on the hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_prepare_ends_before_it_writes_anything(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_folder(tmp_path / "store", "shoal/arithmetic", deadline_seconds=5.0)
    wrong = config().model_copy(
        update={
            "tasks": TaskSource(environment="arithmetic", count=8),
            "model": ModelSource(hugging_face="owner/other", revision="main"),
        }
    )
    with pytest.raises(CannotPrepare, match="no model owner/other on the hub"):
        prepare(wrong, store, tmp_path / "scratch")
    assert not list((tmp_path / "store").rglob("*.*"))


def test_a_prepared_document_without_commits_is_written_as_before() -> None:
    fields = {
        "run": "arithmetic", "model_id": "m", "environment": "math", "environment_digest": "0" * 64,
        "tasks_digest": "0" * 64, "task_count": 1,
    }  # fmt: skip
    assert b"commits" not in Prepared.model_validate(fields).to_json()
    assert keys.PREPARED == "prepared.json"


def test_what_the_hub_does_not_have_is_told_with_its_field(hub: Hub) -> None:
    found, gone = config(), DatasetSource(hugging_face="owner/gone", revision="main")
    assert found.evaluation is not None
    [benchmark] = found.evaluation.benchmarks
    elsewhere = benchmark.model_copy(update={"tasks": BenchmarkTasks(environment="math", dataset=gone)})
    wrong: dict[str, tuple[str, Any]] = {
        "spec.model: there is no model": ("model", ModelSource(hugging_face="owner/gone", revision="main")),
        "spec.tasks.dataset: there is no data set": ("tasks", found.tasks.model_copy(update={"dataset": gone})),
        "spec.evaluation.benchmarks[1].tasks.dataset: there is no data set": (
            "evaluation",
            found.evaluation.model_copy(update={"benchmarks": [benchmark, elsewhere]}),
        ),
    }
    for said, (part, value) in wrong.items():
        with pytest.raises(HubRefused) as caught:
            Revisions().pinned(found.model_copy(update={part: value}))
        assert str(caught.value).startswith(f"{said} owner/gone on the hub"), part
