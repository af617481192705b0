"""A run's tasks from a data set: Parquet, JSON lines or CSV, on disk, in the object store or on a Hugging Face hub, as a task table with a digest.

In: files and a layout (`layouts`), or the names of columns. Out: `Imported`, whose tasks go through `contracts.tasks.write_tasks` like those of an
environment; the same files and layout give the same digest on every machine. Rows that are no task are counted by reason; a row that its layout
does not allow stops the import with its file and number.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.layouts import LAYOUTS, Columns, detect, mapped
from shoal.environments.rows import BadRow, Row, Skipped
from shoal.storage import NotFound, Store

BATCH_ROWS = 1024
"""Rows in memory at once; one of SYNTHETIC-1 is some 30 kB."""
SUFFIXES = (".parquet", ".jsonl", ".csv")
TWICE = "is there already (the same problem)"


class BadDataset(ValueError):
    """A data set that cannot be imported; the message names file, row and what is allowed."""


@dataclass(frozen=True)
class Imported:
    """Tasks in the order of the files, without repeats; `skipped` counts the other rows by reason."""

    tasks: list[Task]
    layout: str
    skipped: dict[str, int]
    rows: int

    @property
    def digest(self) -> str:
        return tasks_digest(self.tasks)


def import_files(paths: Sequence[Path], layout: str | Columns | None = None, limit: int | None = None) -> Imported:
    """Tasks of some files. `layout`: a name of `LAYOUTS`, columns, or None to tell it from the columns; `limit`: at most so many tasks.

    Raises BadDataset.
    """
    if not paths:
        raise BadDataset(f"there are no files to import; allowed: {' and '.join(SUFFIXES)}")
    tasks: dict[str, Task] = {}
    skipped: Counter[str] = Counter()
    rows, name, read = 0, "", None
    for path in paths:
        for number, row in enumerate(file_rows(path)):
            if read is None:
                name, read = _reader(layout, row, path)
            if limit is not None and len(tasks) >= limit:
                break
            rows += 1
            try:
                found = read(row)
            except BadRow as error:
                raise BadDataset(f"{path.name}, row {number}: {error} (layout {name})") from error
            if isinstance(found, Skipped):
                skipped[found.reason] += 1
            elif found.problem_id in tasks:
                skipped[TWICE] += 1
            else:
                tasks[found.problem_id] = found
    if not tasks:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "they hold no rows"
        raise BadDataset(f"{', '.join(path.name for path in paths)[:200]}: no row is a task: {reasons}")
    return Imported(list(tasks.values()), name, dict(skipped), rows)


def from_store(
    store: Store, keys: Sequence[str], folder: Path, layout: str | Columns | None = None, limit: int | None = None
) -> Imported:
    """The same from objects of the store, copied into `folder` on the way. Raises BadDataset for an object that is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, key in enumerate(keys):
        path = folder / f"{number:05d}-{key.rpartition('/')[2]}"
        try:
            store.get_to_file(key, path)
        except NotFound as error:
            raise BadDataset(f"the store has no object {key}; give the key of a Parquet or JSON lines file") from error
        paths.append(path)
    return import_files(paths, layout, limit)


def from_hub(
    repository: str,
    revision: str,
    split: str,
    folder: Path,
    layout: str | Columns | None = None,
    limit: int | None = None,
) -> Imported:
    """The same from a data set of a Hugging Face hub at a pinned revision. Raises BadDataset when it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(
            repository,
            repo_type="dataset",
            revision=revision,
            local_dir=folder,
            allow_patterns=[f"*{suffix}" for suffix in SUFFIXES],
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise BadDataset(f"cannot get the data set {repository} at revision {revision}: {error}") from error
    return import_files(split_files(folder, split), layout, limit)


def split_files(folder: Path, split: str) -> list[Path]:
    """Files of one split of a data set's folder, in order: `train.parquet`, `data/train-00000-of-00002.parquet`. BadDataset when it has none."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    found = [path for path in files if path.stem == split or path.stem.startswith((f"{split}-", f"{split}_"))]
    if not found:
        there = sorted({path.stem.partition("-")[0] for path in files})
        raise BadDataset(
            f"{folder} has no files of split {split!r}; there is {', '.join(there) or 'no Parquet or JSON lines file'}"
        )
    return found


def _reader(layout: str | Columns | None, row: Row, path: Path) -> tuple[str, Callable[[Row], Task | Skipped]]:
    if isinstance(layout, Columns):
        return "by columns", mapped(layout)
    name = layout or detect(set(row))
    if name is None or name not in LAYOUTS:
        raise BadDataset(
            f"{path.name}: {f'there is no layout {layout!r}' if layout else f'columns {sorted(row)} belong to no layout'};"
            f" allowed: {', '.join(LAYOUTS)}, or the names of the columns"
        )
    return name, LAYOUTS[name]


def file_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of one file, a batch in memory at a time."""
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
    elif path.suffix == ".jsonl":
        yield from _json_rows(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    else:
        raise BadDataset(f"{path.name} is none of {' and '.join(SUFFIXES)}")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            # One thread: see contracts.tasks.
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BadDataset(f"{path.name} cannot be read as Parquet: {str(error)[:200]}") from error


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise BadDataset(f"{path.name}, line {number + 1}: is no JSON object")
                yield row
    except BadDataset:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BadDataset(f"{path.name} cannot be read as JSON lines: {str(error)[:200]}") from error


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file with a header; every value is a text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True)):
                if None in row or None in row.values():
                    raise BadDataset(f"{path.name}, row {number}: has not as many values as the header has names")
                yield row
    except BadDataset:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise BadDataset(f"{path.name} cannot be read as CSV: {str(error)[:200]}") from error
