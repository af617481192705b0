"""A run of supervised fine-tuning in the common loop: its versions, reports and result; bit-equal after any stop; and what it refuses."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sft_rows import put_rows, sft_config, sft_rows, sft_store
from test_loop import DyingStore, Killed
from tiny_run import VOCABULARY, Home, Orchestrator, kill_all, make_store, make_trainer, write_base
from transformers import AutoModelForCausalLM

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.sft_data import SftRow, write_sft_rows
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.storage import Store
from shoal.training.loop import Trainer
from shoal.training.sft.order import BadSchedule
from shoal.training.sft.rows import BadRows
from shoal.training.state import WrongState

STEPS = 3


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = STEPS
    yield server
    server.close()


def require_same(store: Store, undisturbed: Store) -> None:
    """Every step once; and bit for bit, unless a stop came between a version and its state."""
    found, wanted = outcome(store), outcome(undisturbed)
    assert found.keys() | {"state"} == wanted.keys()
    if all(report(store, step).moments_of is None for step in range(STEPS)):
        assert found | {"state": wanted["state"]} == wanted


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def trainer(folder: Path, base: Path, store: Any, orchestrator: Orchestrator, **changes: Any) -> Trainer:
    return make_trainer(folder, base, store, orchestrator, sft_config(orchestrator.url, STEPS, **changes))


def report(store: Store, step: int) -> StepMetrics:
    return StepMetrics.from_json(store.get(keys.step_metrics(step)))


def outcome(store: Store) -> dict[str, Any]:
    """What a run leaves, without its clock times."""
    found: dict[str, Any] = {"files": FinalModel.from_json(store.get(keys.FINAL_SEAL)).files}
    if store.exists(state := keys.trainer_state(STEPS) + "rank-00000.tensors"):
        found["state"] = hashlib.sha256(store.get(state)).hexdigest()
    for step in range(STEPS):
        found[f"step {step}"] = report(store, step).model_dump(
            exclude={"started_unix", "finished_unix", "phase_seconds"}
        )
    return found


@pytest.fixture
def undisturbed(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> Store:
    store = sft_store(tmp_path / "undisturbed" / "store")
    trainer(tmp_path / "undisturbed", base, store, orchestrator).run()
    return store


def test_each_step_makes_a_version_and_a_report_and_the_loss_falls(
    tmp_path: Path, orchestrator: Orchestrator, undisturbed: Store
) -> None:
    reports = [report(undisturbed, step) for step in range(STEPS)]
    assert [each.policy_version for each in reports] == [1, 2, 3]
    assert reports[0].loss > reports[1].loss > reports[2].loss > 0
    losses = [each.held_out_loss or 0.0 for each in reports]
    assert losses[0] > losses[2] > 0
    assert [each.epoch for each in reports] == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert [each.rows for each in reports] == [8, 8, 8]  # two epochs of twelve rows, four an update
    assert sum(each.completion_tokens for each in reports) == 2 * sum(
        len(row.completion_tokens) for row in sft_rows()[:12]
    )
    assert all(each.gradient_norm_max >= each.gradient_norm > 0 for each in reports)
    assert all(0 < each.packing_density <= 1 for each in reports)
    assert reports[2].learning_rate < reports[0].learning_rate
    assert (tmp_path / "undisturbed" / "outbox" / "v000003" / "model.safetensors").is_file()
    phases = {said.phase for said in orchestrator.told if said.step == 2}
    assert {"update", "held_out", "save"} <= phases


def test_the_result_is_the_last_version_as_a_checkpoint(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: Store
) -> None:
    seal = FinalModel.from_json(undisturbed.get(keys.FINAL_SEAL))
    assert (seal.run, seal.version) == ("arithmetic", STEPS)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(seal.files)
    published = tmp_path / "undisturbed" / "outbox" / "v000003"
    for name, sha in seal.files.items():
        data = undisturbed.get(keys.FINAL_MODEL + name)
        assert hashlib.sha256(data).hexdigest() == sha
        assert data == (published / name).read_bytes()
    folder = undisturbed.local_path(keys.FINAL_MODEL + "config.json").parent
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == VOCABULARY
    before = [(info.key, info.modified_unix) for info in undisturbed.list("models/")]
    trainer(tmp_path / "undisturbed", base, undisturbed, orchestrator).run()  # there is nothing left to do
    assert [(info.key, info.modified_unix) for info in undisturbed.list("models/")] == before


def test_a_run_that_was_given_more_steps_replaces_its_result(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: Store
) -> None:
    longer = sft_config(orchestrator.url, STEPS + 1)
    orchestrator.latest_version = STEPS + 1
    try:
        make_trainer(tmp_path / "undisturbed", base, undisturbed, orchestrator, longer).run()
    finally:
        orchestrator.latest_version = STEPS
    assert FinalModel.from_json(undisturbed.get(keys.FINAL_SEAL)).version == STEPS + 1


def test_a_stop_before_any_write_changes_nothing_of_the_outcome(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: Store
) -> None:
    store = sft_store(tmp_path / "store")
    stops = 0
    while True:
        try:
            trainer(tmp_path, base, DyingStore(store, at=2 + stops % 4), orchestrator).run()
            break
        except Killed:
            stops += 1
            assert stops < 60
    assert stops >= 5
    require_same(store, undisturbed)


def test_a_process_that_is_killed_and_started_again_ends_as_if_nothing_had_been(
    tmp_path: Path, base: Path, loopback: Loopback, orchestrator: Orchestrator, deadline: Callable[..., object], undisturbed: Store
) -> None:  # fmt: skip
    home = Home(tmp_path / "home", base, loopback.address(), orchestrator.url, STEPS)
    home.configure(sft_config(orchestrator.url, STEPS))
    rows = sft_rows()
    put_rows(home.store, rows[:12], rows[12:])
    process = home.start()
    try:
        deadline("state 1 to be sealed", lambda: home.has_state(1) or process.poll() is not None, seconds=120)
    finally:
        kill_all(process)
    last = home.start()
    try:
        assert last.wait(timeout=150) == 0, home.log.read_text()[-4000:]
    finally:
        kill_all(last)
    require_same(home.store, undisturbed)


@pytest.mark.timeout(600)  # of waits on a busy machine
def test_two_processes_that_are_killed_resume_as_one_and_learn_the_same(
    tmp_path: Path, base: Path, loopback: Loopback, orchestrator: Orchestrator, deadline: Callable[..., object], undisturbed: Store
) -> None:  # fmt: skip
    home = Home(tmp_path / "home", base, loopback.address(), orchestrator.url, STEPS)
    home.configure(sft_config(orchestrator.url, STEPS))
    rows = sft_rows()
    put_rows(home.store, rows[:12], rows[12:])
    process = home.start(processes=2)
    try:
        deadline("state 1 to be sealed", lambda: home.has_state(1) or process.poll() is not None, seconds=150)
    finally:
        kill_all(process)
    last = home.start()  # alone: any number of processes takes up what any other has left
    try:
        assert last.wait(timeout=150) == 0, home.log.read_text()[-4000:]
    finally:
        kill_all(last)
    exact = True
    for step in range(STEPS):
        ours, alone = report(home.store, step), report(undisturbed, step)
        exact = exact and ours.moments_of is None  # else a stop came between a version and its state
        assert ours.completion_tokens == alone.completion_tokens
        assert ours.loss == pytest.approx(alone.loss, rel=1e-4 if exact else 0.02)
        assert ours.held_out_loss == pytest.approx(alone.held_out_loss, rel=1e-4 if exact else 0.02)
    assert FinalModel.from_json(home.store.get(keys.FINAL_SEAL)).version == STEPS


def test_adapters_are_trained_alone_and_merged_into_the_result(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store = sft_store(tmp_path / "store")
    run = sft_config(orchestrator.url, STEPS).model_copy(update={"trainer": TrainerSettings(lora=Lora(rank=4))})
    make_trainer(tmp_path, base, store, orchestrator, run).run()
    assert report(store, 2).loss < report(store, 0).loss
    folder = store.local_path(keys.FINAL_MODEL + "config.json").parent
    trained, first = (AutoModelForCausalLM.from_pretrained(where).state_dict() for where in (folder, base))
    changed = {name for name in first if not trained[name].equal(first[name])}
    assert changed == {name for name in first if "_proj" in name}


def test_without_held_out_rows_nothing_is_said_about_them(
    tmp_path: Path, base: Path, orchestrator: Orchestrator
) -> None:
    store = make_store(tmp_path / "store")
    put_rows(store, sft_rows())
    trainer(tmp_path, base, store, orchestrator).run()
    assert report(store, 2).held_out_loss is None


def test_data_that_changed_between_two_starts_are_refused(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, undisturbed: Store
) -> None:
    put_rows(undisturbed, sft_rows()[:11])
    with pytest.raises(WrongState, match=r"was trained on data [0-9a-f]{64}, those of this run are now [0-9a-f]{64}"):
        trainer(tmp_path / "undisturbed", base, undisturbed, orchestrator).run()


def refused(tmp_path: Path, base: Path, orchestrator: Orchestrator, change: Callable[[Store], None]) -> str:
    store = sft_store(tmp_path / "store")
    change(store)
    with pytest.raises(BadRows) as error:
        trainer(tmp_path, base, store, orchestrator)
    return str(error.value)


def test_a_shard_with_other_bytes_is_refused(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    def change(store: Store) -> None:
        store.put(keys.sft_shard("learnt-00001.parquet"), write_sft_rows(sft_rows()[:5]))

    said = refused(tmp_path, base, orchestrator, change)
    assert "sft/learnt-00001.parquet has SHA-256" in said
    assert said.endswith("the data has changed")


def test_a_shard_that_is_not_there_is_named(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    said = refused(tmp_path, base, orchestrator, lambda store: store.delete(keys.sft_shard("learnt-00001.parquet")))
    assert said == "no object 'sft/learnt-00001.parquet' in the store, but sft/manifest.json lists it"


def test_a_run_without_rows_is_refused(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    said = refused(tmp_path, base, orchestrator, lambda store: store.delete(keys.SFT_MANIFEST))
    assert said == "no object 'sft/manifest.json' in the store; prepare writes it for a run of mode SFT"

    def only_held_out(store: Store) -> None:
        manifest = put_rows(store, sft_rows()[:1], sft_rows()[1:])
        shards = [shard for shard in manifest.shards if shard.held_out]
        store.put(keys.SFT_MANIFEST, manifest.model_copy(update={"shards": shards}).to_json())

    assert "has no rows to learn" in refused(tmp_path / "2", base, orchestrator, only_held_out)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (SftRow("odd", [3, 4], [VOCABULARY]), f"row odd: token {VOCABULARY}; allowed: 0 to {VOCABULARY - 1}, the vocabulary"),
        (SftRow("odd", [3, -1], [5]), f"row odd: token -1; allowed: 0 to {VOCABULARY - 1}, the vocabulary"),
        (SftRow("odd", [3] * 30, [5] * 11), "row odd: 41 tokens; allowed: 40. Samples are never truncated"),
        (SftRow("odd", [3], []), "row odd has there are no completion tokens to learn"),
        (SftRow("odd", [], [5]), "row odd has no prompt tokens to answer"),
    ],
    ids=["outside of the vocabulary", "below 0", "too long", "without a completion", "without a prompt"],
)  # fmt: skip
def test_a_row_that_would_poison_an_update_is_refused_by_name(
    tmp_path: Path, base: Path, orchestrator: Orchestrator, row: SftRow, said: str
) -> None:
    def change(store: Store) -> None:
        put_rows(store, [*sft_rows()[:5], row])

    assert refused(tmp_path, base, orchestrator, change) == f"sft/learnt-00001.parquet {said}"


def test_a_file_that_is_no_shard_is_refused(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    def change(store: Store) -> None:
        data = b"not Parquet"
        store.put(keys.sft_shard("learnt-00000.parquet"), data)
        manifest = json.loads(store.get(keys.SFT_MANIFEST))
        manifest["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()
        store.put(keys.SFT_MANIFEST, json.dumps(manifest).encode())

    assert "sft/learnt-00000.parquet: not a Parquet file" in refused(tmp_path, base, orchestrator, change)


def test_rows_of_another_run_are_refused(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    said = refused(tmp_path, base, orchestrator, lambda store: put_rows(store, sft_rows(), run="other") and None)
    assert said == "sft/manifest.json is of run 'other'; wanted: 'arithmetic'"


def test_too_few_rows_for_the_steps_are_refused(tmp_path: Path, base: Path, orchestrator: Orchestrator) -> None:
    store = sft_store(tmp_path / "store")
    with pytest.raises(BadSchedule, match=r"12 rows in updates of 12 make 2 updates in 2 epochs"):
        trainer(tmp_path, base, store, orchestrator, batch_rows=12)
