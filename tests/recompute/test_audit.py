"""A run recomputed: an honest one in full, and each of many changes by those who hold all keys named with its place."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tampering import TAMPERINGS, Copy, first
from tiny_world import RUN, STEPS, World

from changed_keys import RunKeys
from shoal.contracts import keys
from shoal.contracts.run import RunConfig
from shoal.contracts.storage import Retention
from shoal.contracts.trust import HeldKeys
from shoal.errors import InputWrong
from shoal.ledger.entries import KeysChanged
from shoal.recompute import files
from shoal.recompute.evidence import CannotCheck, Evidence
from shoal.recompute.progress import Ticker
from shoal.recompute.record import AuditTerms, Recorder
from shoal.recompute.weights import Weights
from shoal.storage import Store
from shoal.storage.versions import materialise, read_sealed_manifest
from shoal.validation.policies import LoadedPolicy, Policies

EVERYTHING = ("batches", "steps", "draws", "rewards", "proofs")


def test_an_honest_run_is_recomputed_bit_for_bit(world: World, tmp_path: Path) -> None:
    result = Copy(world, tmp_path).audit(*EVERYTHING)
    assert result.findings == []
    assert result.steps_equal == STEPS
    assert [stage for stage, totals in result.stages.items() if totals.unchecked] == []
    assert list(result.stages) == ["ledger", *EVERYTHING]
    assert all(totals.done == totals.of > 0 for totals in result.stages.values())


def test_an_honest_run_stays_good_after_the_validators_key_leaked(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    changed = RunKeys(RUN, world.run_key, dict(world.role_keys))
    roster = changed.change("validator", copy.entries()[-1].unix, leaked=True)
    copy.rewrite(lambda facts: [*facts, KeysChanged(keys=roster)])
    copy.store.put(keys.ROSTER, roster.to_json())
    copy.config = RunConfig.model_validate({**world.config.model_dump(), "roster": roster})
    result = copy.audit("batches", "steps", steps=(0, 0))
    assert result.findings == []
    assert result.steps_equal == 1
    assert result.stages["batches"].done == result.stages["batches"].of


@pytest.mark.parametrize(("change", "stages", "stage", "words"), TAMPERINGS, ids=[t[0].__name__ for t in TAMPERINGS])
def test_a_change_is_found_and_named(
    world: World, tmp_path: Path, change: Callable[[Copy], None], stages: tuple[str, ...], stage: str, words: str
) -> None:
    copy = Copy(world, tmp_path)
    change(copy)
    found = copy.audit(*stages).findings
    assert any(stage == each.stage and words in each.what for each in found), found


def test_late_entries_and_passed_over_numbers_are_notes_and_no_findings(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    assert copy.audit("batches").notes == []
    fact = first(copy)
    highest = max(each.submission for each in copy.accepted(1) if each.node == fact.node)
    late = fact.model_copy(update={"file": "ab" * 32, "submission": highest + 3})
    copy.say(copy.verdict(fact).model_copy(update={"sha256": late.file, "submission": late.submission}))
    copy.rewrite(lambda facts: [*facts, late])
    result = copy.audit("batches")
    assert result.findings == []
    after_the_seal, passed_over = result.notes
    assert after_the_seal.startswith("files accepted after the seal of their step, which are paid and in no batch: 1,")
    assert f": 2; 2 of node {fact.node[:16]}... in step 1" in passed_over

    expired = copy.verdict(fact).model_copy(
        update={
            "sha256": "cd" * 32, "submission": highest + 1, "outcome": "expired", "rewards": [], "compute": None,
            "answers": None,
        }
    )  # fmt: skip
    copy.say(expired)
    assert ": 1; 1 of node" in copy.audit("batches").notes[1]


def test_many_verdicts_are_read_at_a_time_and_their_number_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(world, tmp_path)
    fact = first(copy)
    highest = max(each.submission for each in copy.accepted(1) if each.node == fact.node)
    late = fact.model_copy(update={"file": "ab" * 32, "submission": highest + 3})
    verdict = copy.verdict(fact)
    copy.say(verdict.model_copy(update={"sha256": late.file, "submission": late.submission}))
    copy.rewrite(lambda facts: [*facts, late])
    expired = [f"{number}c" * 32 for number in (1, 2)]
    for number, name in enumerate(expired, highest + 1):
        fields = {
            "sha256": name,
            "submission": number,
            "outcome": "expired",
            "rewards": [],
            "compute": None,
            "answers": None,
        }
        copy.say(verdict.model_copy(update=fields))
    ledger, get_range = copy.ledger(), copy.store.get_range
    waiting = {keys.verdict(fact.node, name) for name in expired}
    together = threading.Barrier(2, timeout=20)

    def read(key: str, start: int, end: int) -> bytes:
        if key in waiting:
            together.wait()
            waiting.discard(key)
        return get_range(key, start, end)

    monkeypatch.setattr(copy, "ledger", lambda: ledger)
    monkeypatch.setattr(copy.store, "get_range", read)
    monkeypatch.setattr("shoal.ledger.reading.PROGRESS_SECONDS", 0.0)
    copy.audit("batches")
    assert waiting == set()
    assert "read 2 of 2 verdicts of no entry" in copy.said
    waiting |= {keys.verdict(fact.node, fact.file) for fact in copy.accepted(1)[:2]}
    copy.audit("draws")
    assert waiting == set()
    assert any(re.fullmatch(r"read (\d+) of \1 verdicts", line) for line in copy.said)


def test_files_that_the_manifest_let_go_are_said_to_be_gone_and_are_no_findings(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    for info in copy.store.list(keys.UPLOADS):
        copy.store.delete(info.key)
    assert copy.audit("batches").findings, "files that must be there and are not"
    shutil.rmtree(tmp_path / "audit")
    storage = world.config.storage.model_copy(update={"retention": Retention(keep="Verify")})
    copy.config = world.config.model_copy(update={"storage": storage})
    result = copy.audit("batches", "steps", "draws")
    assert result.findings == []
    assert result.steps_equal == 0
    assert [stage for stage, totals in result.stages.items() if totals.unchecked] == ["batches", "steps", "draws"]


def test_versions_that_the_store_has_no_more_are_made_again_for_their_proofs(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    for info in copy.store.list(keys.VERSIONS):
        if info.key.endswith(".bin"):
            copy.store.delete(info.key)
    alone = copy.audit("proofs")
    assert alone.good
    assert alone.stages["proofs"].done == 1  # the rejected file, whose fault shows without weights
    assert "are not in the store" in next(iter(alone.stages["proofs"].unchecked))
    beside = copy.audit("proofs", "steps")
    assert beside.good
    assert beside.stages["proofs"].done == beside.stages["proofs"].of
    assert beside.steps_equal == STEPS


def test_a_version_that_finds_no_room_is_tried_once_and_not_for_every_file(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(world, tmp_path)
    tried: list[int] = []

    def fetched(store: Store, version: int, *rest: Any) -> Any:
        tried.append(version)
        return materialise(store, version, *rest)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def watched(weights: Weights, version: int) -> LoadedPolicy:
        try:
            return get(weights, version)
        except CannotCheck as error:
            raised.append(error)
            raise

    raised: list[CannotCheck] = []
    get = Weights.get
    monkeypatch.setattr(Weights, "get", watched)
    monkeypatch.setattr("shoal.validation.policies.materialise", fetched)
    with monkeypatch.context() as small:
        small.setattr("shoal.recompute.weights.weights_bytes", lambda *_: 1000)
        told = copy.audit("proofs").stages["proofs"].unchecked
        made_again = copy.audit("proofs", "steps")
    assert sorted(tried) == sorted(set(tried))
    assert len(told) == len(tried) < told.total()
    assert len({id(error) for error in raised}) == len(raised), "a kept error holds the rows of every file"
    assert all("cannot be checked here: " in why and "GB of weights" in why for why in told)
    assert made_again.steps_equal == STEPS
    assert made_again.stages["proofs"].unchecked.total() == told.total()

    tried.clear()
    monkeypatch.setattr("shoal.validation.models.load_model", full)
    told = copy.audit("proofs").stages["proofs"].unchecked
    assert all(why.endswith("cannot be checked here: CUDA out of memory") for why in told)
    assert len(told) == len(tried) < told.total()


def test_no_version_is_asked_for_while_another_thread_may_use_the_one_that_it_is_written_over(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def watched(weights: Weights, version: int) -> LoadedPolicy:
        asked.append(files._ONE_AT_A_TIME.locked())
        return get(weights, version)

    get = Weights.get
    monkeypatch.setattr(Weights, "get", watched)
    copy = Copy(world, tmp_path)
    assert copy.audit("proofs").good
    assert asked
    assert all(asked)


def test_a_digest_is_asked_for_without_its_version(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policies, "get", lambda *_: pytest.fail("a version is loaded"))
    copy = Copy(world, tmp_path)
    evidence = Evidence(copy.store, copy.config, copy.ledger(), copy.entries())
    weights = Weights(evidence, tmp_path / "policies", tmp_path / "made")
    manifest = read_sealed_manifest(copy.store, 0, HeldKeys(evidence.roster, "trainer"))
    assert weights.digest(0) == manifest.sha256
    with pytest.raises(CannotCheck, match="the weights of version 999 are not in the store"):
        weights.digest(999)


def test_weights_are_loaded_for_files_that_wait_for_their_proofs_only(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("weights are loaded")

    copy = Copy(world, tmp_path)
    monkeypatch.setattr("shoal.recompute.weights.load_model", unexpected)
    assert copy.audit("steps", "draws").steps_equal == STEPS


def test_an_audit_that_was_stopped_goes_on_where_it_was(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    assert copy.audit("steps", "draws", steps=(0, 0)).steps_equal == 1
    states = {info.key for info in copy.store.list(keys.TRAINER_STATE)}
    after = copy.audit("steps", "draws")
    assert after.steps_equal == STEPS
    assert after.resumed > 0
    assert {info.key for info in copy.store.list(keys.TRAINER_STATE)} == states  # nothing was written to the run
    with pytest.raises(InputWrong, match="is of another audit"):
        copy.audit("draws", rows=0.5)


def test_documents_that_are_garbage_are_findings_and_no_tracebacks(world: World, tmp_path: Path) -> None:
    pristine = Copy(world, tmp_path / "pristine")
    fact = first(pristine)
    places = [
        keys.verdict(fact.node, fact.file),
        keys.submission(fact.node, fact.file),
        keys.upload(fact.node, fact.file),
        keys.step_batch(1),
        keys.beacon(1),
        keys.step_metrics(1),
        keys.evaluation(STEPS, "sums"),
        keys.version_weights(1),
        keys.version_open(1),
    ]
    copy = Copy(world, tmp_path / "copy")
    for place in places:
        copy.store.put(place, b"\xff{" * 40)
    result = copy.audit(*EVERYTHING)
    named = " ".join(f"{each.where} {each.what}" for each in result.findings)
    for place in (keys.verdict(fact.node, fact.file), keys.step_batch(1), keys.version_weights(1)):
        assert place in named, named
    assert "Traceback" not in named


def test_a_store_without_its_tasks_is_said_in_one_line(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    copy.store.put(keys.PREPARED, b"{}")
    with pytest.raises(InputWrong, match=r"cannot check the run's files: prepared\.json"):
        copy.audit("draws")


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[]")
    with pytest.raises(InputWrong, match="is not the record of an audit"):
        Recorder(tmp_path / "record.json", AuditTerms(run="r", run_key="a" * 64, seed="s", rows=1.0, files=1.0))


def test_a_place_that_is_checked_again_has_its_last_findings_alone(tmp_path: Path) -> None:
    terms = AuditTerms(run="r", run_key="a" * 64, seed="s", rows=1.0, files=1.0)
    recorder = Recorder(tmp_path / "record.json", terms)
    recorder.note("batches", 1, "scores of version 1", ["one", "two"])
    recorder.note("batches", 2, "scores of version 2", ["three"])
    recorder.note("steps", 1, "scores of version 1", ["four"])
    recorder.write()
    again = Recorder(tmp_path / "record.json", terms)
    again.note("batches", 3, "scores of version 1", ["five"])  # a place can have another number in a later call
    again.note("batches", 2, "scores of version 2", [])
    assert [each.what for each in again.findings] == ["four", "five"]


def test_the_rest_is_estimated_from_what_was_done() -> None:
    said: list[str] = []
    now = [0.0]
    ticker = Ticker(said.append, lambda: now[0])
    ticker.expect("files", 10)
    ticker.expect("steps", 2)
    assert ticker.seconds_left() is None
    ticker.done("steps", 30.0)
    now[0] = 6.0
    ticker.done("files", 2.0)
    assert said == ["files 1 of 10, steps 1 of 2; about 48 s left"]


def shoal(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from shoal.cli.main import main; sys.exit(main())", "ledger", "audit"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_verb_needs_the_store_and_the_key_alone(world: World, tmp_path: Path) -> None:
    copy = Copy(world, tmp_path)
    shutil.copytree(copy.folder / "store" / "shoal" / RUN, tmp_path / "download")
    download, key = str(tmp_path / "download"), copy.config.run_key
    done = shoal(download, "--run-key", key, "--only", "batches,steps", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["good"], said["steps_equal"], said["stages"]["batches"]["done"]) == (True, STEPS, STEPS + 3)
    assert "record and log in" in done.stderr

    (tmp_path / "download" / "run.json").unlink()
    without = shoal(download, "--run-key", key, cwd=tmp_path)
    assert (without.returncode, without.stdout) == (2, "")
    assert "give --join run.json" in without.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "draws,luck"], "--only names 'luck'; allowed: batches,steps,draws,rewards,proofs"),
        (["--train-steps", "5-2"], "--train-steps is '5-2'; allowed: A-B, such as 0-69"),
        (["--rows", "0"], "--rows is 0; allowed: above 0, to 1"),
        (["--files", "1.5"], "--files is 1.5; allowed: above 0, to 1"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], words: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from shoal.cli.ledger import app

    result = CliRunner().invoke(app, ["audit", str(tmp_path), *arguments])
    assert words in str(result.exception)
