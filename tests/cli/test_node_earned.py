"""`shoal node earned`: what a node's owner reads in the ledger, checked against the run key of the first join, not against what the copy says."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_copies import CHEAT, changed, make_copy

from samples import NODE_KEY, ROSTER, RUN, RUN_KEY, key
from shoal.cli.main import main
from shoal.contracts.run import NodeConfig
from shoal.contracts.signed import sign

Shoal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a machine that joined the run of the copy, as the honest node."""
    home = tmp_path / "node" / RUN
    (home / "config").mkdir(parents=True)
    config = NodeConfig(run=RUN, pool="workers", discovery="https://d.example", roster=ROSTER, run_key=RUN_KEY.public)
    (home / "config" / "node.json").write_bytes(config.to_json())
    (home / "key").mkdir()
    (home / "key" / "node.pem").write_bytes(NODE_KEY.to_pem())
    return tmp_path / "node"


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Shoal:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", "node", "earned", *map(str, arguments), "--folder", str(folder)])
        capsys.readouterr()
        code = main()
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_an_owner_reads_credit_and_share_of_a_ledger_that_is_good(shoal: Shoal, tmp_path: Path) -> None:
    copy = make_copy(tmp_path / "copy")
    code, out, _ = shoal(copy)
    assert code == 0
    assert f"run        {RUN}, run key {RUN_KEY.public}" in out
    assert "files      1 accepted, 0 rejected" in out
    assert "credit     700 tokens, 100.0 % of all" in out
    assert "the ledger is good" in out
    assert CHEAT not in out
    code, out, _ = shoal(copy, "--json")
    found = json.loads(out)
    assert (code, found["credit"], found["share"], found["problems"]) == (0, 700, 1.0, [])


def test_a_ledger_that_was_changed_proves_nothing_and_is_told_with_exit_code_1(shoal: Shoal, tmp_path: Path) -> None:
    copy = make_copy(tmp_path / "copy")
    changed(copy, 5, tokens=7_000_000)
    code, out, err = shoal(copy)
    assert code == 1
    assert "THE LEDGER IS WRONG" in out
    assert "the figures prove nothing" in err


def test_a_ledger_of_another_key_is_no_ledger_of_this_run(shoal: Shoal, tmp_path: Path, folder: Path) -> None:
    """A copy says of itself whose it is: this machine knows better."""
    copy = make_copy(tmp_path / "copy")
    thief = key(99)
    kept = folder / RUN / "config" / "node.json"
    config = NodeConfig.from_json(kept.read_bytes())
    forged = sign(
        config.roster.document.model_copy(update={"keys": {**ROSTER.document.keys, "orchestrator": thief.public}}),
        thief,
    )
    kept.write_bytes(config.model_copy(update={"roster": forged, "run_key": thief.public}).to_json())
    code, out, err = shoal(copy)
    assert code != 0
    assert "the ledger is good" not in out
    assert err


def test_what_is_missing_is_told_in_one_line(shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["shoal", "node", "earned", str(tmp_path), "--folder", str(tmp_path / "empty")])
    assert main() == 2
