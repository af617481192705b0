"""The data set in the store: the same files whether it was written in one go or with stops anywhere, and a card that seals them."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from samples import DIGEST, run_config
from shoal.collection.dataset import DatasetWriter, OtherDataset
from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.filtering import ProblemCount
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.sft_data import Trace, read_traces
from shoal.storage.store import Store, open_folder

SLICES = 7
NAME = "traces"


def config(**changes: Any) -> RunConfig:
    return run_config(mode="Generate", steps=0, generate=GenerateSettings(**({"rows_per_part": 4} | changes)))


PREPARED = Prepared(
    run=config().run,
    model_id="tiny",
    environment="arithmetic",
    environment_digest=DIGEST,
    tasks_digest=DIGEST,
    task_count=14,
)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Store]:
    def fresh() -> Iterator[Store]:
        for number in range(100):
            (tmp_path / str(number)).mkdir()
            yield open_folder(tmp_path / str(number), "shoal/run", deadline_seconds=2.0)

    return fresh()


def add(writer: DatasetWriter, step: int) -> None:
    """Slice `step`: two problems, of which the second is solved in every other slice."""
    counts = [ProblemCount(f"a-{step}", 3, 3, 5.0), ProblemCount(f"b-{step}", 3, step % 2, 5.0)]
    traces = [
        Trace(each.problem_id, "math", "?", f"{step} {n}", 1.0, 5)
        for each in counts
        for n in range(min(each.correct, 2))
    ]
    writer.add(
        step, 6, traces, counts, Counter({"is wrong": 3 - step % 2, "its problem has enough completions already": 1})
    )


def files(store: Store) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list(keys.dataset(NAME))}


def write(store: Store, stops: tuple[int, ...] = (), prepared: Prepared = PREPARED) -> str:
    """All slices, with a new process after each of `stops`."""
    writer = DatasetWriter(config(), prepared, store)
    done: set[int] = set()
    while writer.state.next_step < SLICES:
        step = writer.state.next_step
        if step in stops and step not in done:
            done.add(step)
            writer = DatasetWriter(config(), PREPARED, store)  # what was in memory is lost
            continue
        add(writer, step)
    return writer.seal(DIGEST)


def test_stops_anywhere_change_no_byte(stores: Iterator[Store]) -> None:
    whole, broken = next(stores), next(stores)
    assert write(whole) == write(broken, stops=(1, 3, 4, 6))
    assert files(whole) == files(broken)


def test_the_card_names_every_file_and_adds_up(stores: Iterator[Store]) -> None:
    store = next(stores)
    digest = write(store)
    data = store.get(keys.dataset_card(NAME))
    assert hashlib.sha256(data).hexdigest() == digest
    card = DatasetCard.from_json(data)
    listed = {keys.dataset(NAME) + file.name: file.sha256 for file in [*card.parts, *card.problem_files]}
    there = {key: hashlib.sha256(data).hexdigest() for key, data in files(store).items() if key.endswith(".parquet")}
    assert listed == there
    rows = [row for part in card.parts for row in read_traces(store.get(keys.dataset(NAME) + part.name))]
    assert len(rows) == card.rows == sum(part.rows for part in card.parts)
    assert card.rows + sum(card.left_out.values()) == SLICES * 6
    assert (card.problems, card.problems_solved) == (14, 10)
    assert card.correct_histogram[:4] == [4, 3, 0, 7]


def test_parts_are_cut_at_the_slice_that_fills_them(stores: Iterator[Store]) -> None:
    store = next(stores)
    write(store)
    card = DatasetCard.from_json(store.get(keys.dataset_card(NAME)))
    assert [part.rows for part in card.parts] == [5, 5, 5, 2]


def test_the_page_has_metadata_that_hubs_read(stores: Iterator[Store]) -> None:
    store = next(stores)
    write(store)
    _, head, body = store.get(keys.dataset(NAME) + "README.md").decode().split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "unknown"
    assert yaml.safe_load(head)["configs"][0]["data_files"][0]["path"] == "part-*.parquet"
    assert "| problems solved at least once | 10 |" in body


def test_page_and_card_say_whose_rewards_they_are(stores: Iterator[Store]) -> None:
    checked, claimed = next(stores), next(stores)
    write(checked)
    write(claimed, prepared=PREPARED.model_copy(update={"rewards_claimed": True}))
    assert b"rewards_claimed" not in checked.get(keys.dataset_card(NAME))
    assert DatasetCard.from_json(claimed.get(keys.dataset_card(NAME))).rewards_claimed
    alone, page = "by the run's own worker alone", keys.dataset(NAME) + "README.md"
    assert alone not in checked.get(page).decode()
    assert alone in claimed.get(page).decode()


def test_a_data_set_of_other_filters_under_the_same_name_is_refused(stores: Iterator[Store]) -> None:
    store = next(stores)
    writer = DatasetWriter(config(), PREPARED, store)
    add(writer, 0)
    writer.flush()
    with pytest.raises(
        OtherDataset, match=r"with other tasks, filters or samples; set spec\.generate\.dataset to another name"
    ):
        DatasetWriter(config(traces_per_problem=1), PREPARED, store)


def test_a_part_that_was_changed_is_found_at_the_next_start(stores: Iterator[Store]) -> None:
    store = next(stores)
    write(store)
    store.put(keys.dataset_part(NAME, 0), b"other bytes")
    with pytest.raises(OtherDataset, match=r"part-00000.parquet was changed since it was written"):
        list(DatasetWriter(config(), PREPARED, store).written())


def test_slices_come_in_order(stores: Iterator[Store]) -> None:
    writer = DatasetWriter(config(), PREPARED, next(stores))
    with pytest.raises(ValueError, match="slice 1 was added, slice 0 comes next"):
        add(writer, 1)
