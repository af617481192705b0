"""The store of a recorded run: its ledger verifies, says what it said when it was recorded, and shows each changed byte."""

import shutil
from pathlib import Path

import pytest
from recorded_ledger import COMMANDS, RECORDED, told

from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.run import Prepared, RunConfig
from shoal.evaluation.versions import VersionEvaluation

COPY = RECORDED / "copy"
SIGNED = [
    path.relative_to(RECORDED)
    for kind in (keys.LEDGER, keys.VERDICTS)
    for path in sorted((COPY / kind).rglob("*.json"))
]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_ledger_verifies_and_says_what_it_said(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(RECORDED)
    code, out, err = told(*COMMANDS[name])
    assert (code, err) == (0, "")
    assert out == Path(f"{name}.txt").read_text()


def test_an_accept_an_eviction_and_an_evaluation_are_recorded() -> None:
    shown = (RECORDED / "show.txt").read_text()
    assert all(kind in shown for kind in ("accepted", "rejected", "node-evicted"))
    assert list((COPY / keys.OPINIONS).rglob("*.json"))


def test_the_evaluations_and_the_configuration_are_read_and_written_again() -> None:
    best = COPY / keys.BEST_VERSION
    records = sorted((COPY / keys.EVALUATIONS).glob("v*/*.json"))
    assert len(records) == 3
    assert all(VersionEvaluation.from_json(path.read_bytes()).complete for path in records)
    kept: list[tuple[type[Contract], Path]] = [
        (BestVersion, best),
        (Prepared, COPY / keys.PREPARED),
        (RunConfig, RECORDED / "run.json"),
        *((VersionEvaluation, path) for path in records),
    ]
    for kind, path in kept:
        assert kind.from_json(path.read_bytes()).to_json() == path.read_bytes()


@pytest.mark.parametrize("changed", SIGNED, ids=lambda path: path.stem[-12:])
def test_a_flipped_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "store")
    monkeypatch.chdir(tmp_path / "store")
    data = bytearray(changed.read_bytes())
    place = data.index(b'"run":"tiny"') + len(b'"run":"')
    data[place] ^= 1
    changed.write_bytes(data)
    code, _, err = told(*COMMANDS["verify"])
    assert code == 1
    assert err
