"""Configuration documents of releases N and N-1, both ways: the recorded ones are read, and what a later release adds is left out with one line."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from servers import ROOT
from shoal.contracts.base import Contract
from shoal.contracts.newer import MOST_UNKNOWN, _say, from_newer_json
from shoal.contracts.relays import RelayConfig
from shoal.contracts.run import NodeConfig, RunConfig, load_node_config, load_run_config

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
