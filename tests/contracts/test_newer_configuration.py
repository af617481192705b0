"""Configuration and answers of releases N and N-1, both ways: recorded ones are read, and what a later release adds is left out with one line."""

import copy
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from servers import ROOT
from shoal.contracts.base import Contract
from shoal.contracts.newer import MOST_UNKNOWN, _say, from_newer_json
from shoal.contracts.protocol import (
    HeartbeatReply,
    Lease,
    Registered,
    RunProgress,
    StepInfo,
    SubmissionReceipt,
    UploadGrant,
    ValidationJob,
)
from shoal.contracts.relays import RelayConfig
from shoal.contracts.run import JoinOffer, NodeConfig, PublicRun, RunConfig, load_node_config, load_run_config
from shoal.installed import installed_release
from shoal.report.progress import ProgressReader
from shoal.transport import LaterReleaseError, SignedClient, Unavailable

RECORDED = ROOT / "tests" / "recorded"
DOCUMENTS: dict[str, tuple[type[Contract], Path]] = {
    "run.json": (RunConfig, RECORDED / "store" / "run.json"),
    "node.json": (NodeConfig, RECORDED / "contracts" / "node-config-full.json"),
    "relay.json": (RelayConfig, RECORDED / "contracts" / "relay-config.json"),
}


@pytest.fixture(autouse=True)
def unsaid() -> None:
    _say.cache_clear()


def with_one(document: dict[str, Any], *path: str) -> bytes:
    inner = document
    for part in path:
        inner = inner[part]
    inner["of_a_later_release"] = 1
    return json.dumps(document).encode()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_an_earlier_release_recorded_is_read_without_a_word(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, path = DOCUMENTS[name]
    assert from_newer_json(model, path.read_bytes()) == model.from_json(path.read_bytes())
    assert caplog.records == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_key_of_a_later_release_is_left_out_and_named_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, path = DOCUMENTS[name]
    data = with_one(json.loads(path.read_bytes()))
    with pytest.raises(ValidationError):
        model.from_json(data)
    for _ in range(3):
        assert from_newer_json(model, data) == model.from_json(path.read_bytes())
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage() == f"{model.__name__} is of a later release; not known here: of_a_later_release"


@pytest.mark.parametrize("part", ["addresses", "trainer", "validation", "recipe", "storage"])
def test_so_is_one_in_a_part(part: str) -> None:
    model, path = DOCUMENTS["run.json"]
    assert from_newer_json(model, with_one(json.loads(path.read_bytes()), part)) == model.from_json(path.read_bytes())


@pytest.mark.parametrize("part", [("roster",), ("roster", "document")])
def test_a_key_in_a_signed_document_is_refused(part: tuple[str, ...]) -> None:
    model, path = DOCUMENTS["run.json"]
    with pytest.raises(ValidationError, match="of_a_later_release"):
        from_newer_json(model, with_one(json.loads(path.read_bytes()), *part))


@pytest.mark.parametrize("wrong", [{"run": "Not A Name"}, {"addresses": {}}, {"roster": 1}])
def test_all_else_that_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    model, path = DOCUMENTS["run.json"]
    with pytest.raises(ValidationError):
        from_newer_json(model, json.dumps(json.loads(path.read_bytes()) | wrong | {"of_a_later_release": 1}))


def test_parts_start_with_the_files_of_a_later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").mkdir()
    for name, (_, path) in DOCUMENTS.items():
        (tmp_path / "config" / name).write_bytes(with_one(json.loads(path.read_bytes())))
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    assert load_run_config().trusted_roster().run == load_run_config().run
    assert load_node_config().run


def test_what_a_hostile_author_adds_fills_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    model, path = DOCUMENTS["node.json"]
    document = json.loads(path.read_bytes())

    def said(keys: int, length: int = 10) -> str:
        added = {f"{number:x}".rjust(length, "x"): 1 for number in range(keys)}
        from_newer_json(model, json.dumps(document | added))
        return caplog.records[-1].getMessage()

    assert len(said(20, 100_000)) < 1000
    assert said(MOST_UNKNOWN).endswith(" and 990 more")
    with pytest.raises(ValidationError):
        said(MOST_UNKNOWN + 1)


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """`answering(body)` is the URL of a server that answers everything with it."""
    body = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body[0])))
            self.end_headers()
            self.wfile.write(body[0])

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def answers(said: bytes) -> str:
        body[0] = said
        return f"http://127.0.0.1:{server.server_port}"

    yield answers
    server.shutdown()
    server.server_close()


def recorded_answer(model: type[Contract]) -> dict[str, Any]:
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", model.__name__).lower()
    found: dict[str, Any] = json.loads((RECORDED / "contracts" / f"{name}.json").read_bytes())
    return found


@pytest.mark.parametrize("model", [RunProgress, HeartbeatReply, Registered, SubmissionReceipt])
def test_an_answer_that_only_tells_is_read_without_what_a_later_release_adds(
    model: type[Contract], answering: Callable[[bytes], str]
) -> None:
    document = recorded_answer(model)
    client = SignedClient(answering(with_one(copy.deepcopy(document))))
    assert client.call("GET", "/", reply=model, deadline_seconds=5.0) == model.model_validate(document)
    client.close()


@pytest.mark.parametrize("model", [Lease, ValidationJob, StepInfo, PublicRun, JoinOffer, UploadGrant])
def test_work_and_terms_of_a_later_release_are_refused(
    model: type[Contract], answering: Callable[[bytes], str]
) -> None:
    client = SignedClient(answering(with_one(recorded_answer(model))))
    with pytest.raises(Unavailable, match=f"no {model.__name__}|not a {model.__name__}"):
        client.call("GET", "/", reply=model, deadline_seconds=0.0)
    client.close()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"rounding": "nearest"}, "'rounding' 'nearest' (known here: none)"),
        ({"sampler": "gumbel-9"}, "'sampler' 'gumbel-9' (known here: 'gumbel-murmur3-1' or 'vllm-cpu')"),
        ({"logits": "float64"}, "'logits' 'float64' (known here: 'float32')"),
    ],
)
def test_a_term_of_a_later_release_is_named_with_what_this_one_knows(
    later: dict[str, str], words: str, answering: Callable[[bytes], str]
) -> None:
    client = SignedClient(answering(json.dumps(recorded_answer(PublicRun) | later).encode()))
    with pytest.raises(LaterReleaseError) as refused:
        client.call("GET", "/v1/public", reply=PublicRun, deadline_seconds=0.0)
    assert f"a PublicRun that {installed_release()} knows: {words}; upgrade this machine" in str(refused.value)
    client.close()


def test_an_answer_that_is_wrong_in_another_way_is_not_called_later(answering: Callable[[bytes], str]) -> None:
    client = SignedClient(answering(json.dumps(recorded_answer(PublicRun) | {"steps": 0, "rounding": 1}).encode()))
    with pytest.raises(Unavailable, match="not a PublicRun: 2 validation errors") as refused:
        client.call("GET", "/", reply=PublicRun, deadline_seconds=0.0)
    assert not isinstance(refused.value, LaterReleaseError)
    client.close()


def test_what_a_hostile_answer_adds_is_short_and_printable(answering: Callable[[bytes], str]) -> None:
    added = {f"\x1b[2J{number}".ljust(10_000, "x"): "\r" * 10_000 for number in range(100)}
    client = SignedClient(answering(json.dumps(recorded_answer(PublicRun) | added).encode()))
    with pytest.raises(LaterReleaseError) as refused:
        client.call("GET", "/", reply=PublicRun, deadline_seconds=0.0)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000
    client.close()


def test_the_page_shows_a_run_whose_orchestrator_is_of_a_later_release(answering: Callable[[bytes], str]) -> None:
    document = recorded_answer(RunProgress)
    reader = ProgressReader(lambda: answering(with_one(copy.deepcopy(document))))
    reader.ask_once()
    assert reader.newest() == RunProgress.model_validate(document)
