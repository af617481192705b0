"""What a run did to tasks, for its report: the histogram of its offline filter, and the data set that a run of mode Generate wrote.

`read_*` are the edge to the store; `export_dataset` copies the data set into a folder, every file as its card says.
"""

import shutil
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.filtering import FilterReport
from shoal.contracts.tasks import TaskReport
from shoal.files import file_sha256
from shoal.report.access import RunAccess
from shoal.storage import Store, find

PAGES = ("README.md", "card.json")


class DamagedDataset(ValueError):
    """A file of the data set is not what its card says."""


def read_filter(store: Store, notes: list[str]) -> FilterReport | None:
    """`filter.json` of a run; None without an offline filter. One that is not readable is a note."""
    return _read(store, keys.FILTER_REPORT, FilterReport, notes)


def read_task_report(store: Store, notes: list[str]) -> TaskReport | None:
    """`tasks.json` of a run; None where its tasks come from no data set. One that is not readable is a note."""
    return _read(store, keys.TASK_REPORT, TaskReport, notes)


Document = TypeVar("Document", bound=Contract)


def _read(store: Store, key: str, kind: type[Document], notes: list[str]) -> Document | None:
    try:
        return find(store, key, kind.from_json)
    except ValidationError as error:
        notes.append(f"{key} cannot be read and was left out: {error.error_count()} mistakes")
        return None


def read_card(access: RunAccess) -> DatasetCard | None:
    """The card of the run's data set; None while it is not sealed, and of a run that writes none."""
    name = _dataset_name(access)
    return find(access.store, name, DatasetCard.from_json) if name is not None else None


def _dataset_name(access: RunAccess) -> str | None:
    """Key of the card: as configured, or the one that lies in the store."""
    if access.config is not None:
        return keys.dataset_card(access.config.generate.dataset) if access.config.mode == "Generate" else None
    cards = [info.key for info in access.store.list("datasets/") if info.key.endswith("/card.json")]
    return cards[0] if len(cards) == 1 else None


def export_dataset(access: RunAccess, folder: Path) -> DatasetCard | None:
    """Copy the run's data set into `folder`, which appears whole; None while it is not sealed. Raises DamagedDataset."""
    card = read_card(access)
    if card is None:
        return None
    place = keys.dataset(card.name)
    fresh = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in PAGES:
        access.store.get_to_file(place + name, fresh / name)
    for file in [*card.parts, *card.problem_files]:
        access.store.get_to_file(place + file.name, fresh / file.name)
        found = file_sha256(fresh / file.name)
        if found != file.sha256:
            raise DamagedDataset(f"{place}{file.name} has SHA-256 {found}, but card.json says {file.sha256}")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return card
