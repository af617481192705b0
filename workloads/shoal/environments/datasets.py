"""A run's tasks from a data set: Parquet, JSON or CSV, on disk or in the object store, as a task table with a digest. `hub` fetches those of a hub.

In: files, a layout (`layouts`) or the names of columns, and which rows are wanted. Out: `Imported`, whose tasks go through
`task_table.write_tasks` like those of an environment; the same files and settings give the same digest on every machine. Rows that are no task
are counted by reason; a row that its layout does not allow stops the import with its file and number. About 30 us a row of short texts, and the
tasks in memory.
"""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.contracts.datasets import DatasetColumns, RowFilter
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.columns import BadColumns, filtered, mapped
from shoal.environments.layouts import LAYOUTS, SOLVE_RATE, detect
from shoal.environments.rows import BadRow, Row, Skipped, column
from shoal.storage import NotFound, Store

BATCH_ROWS = 1024
BATCH_BYTES = 64 << 20
"""Rows in memory at once, by their mean size: one of SYNTHETIC-1 is about 30 kB, one with traces may be a megabyte."""
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
DESCRIPTIONS = frozenset(
    {"card.json", "dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "config.json"}
)
"""Files beside a data set that hold no rows."""
LARGEST_JSON_BYTES = 1 << 30
"""Of a file that is one JSON list, which is read whole; JSON lines may be as large as they like."""
SPLITS = frozenset({"train", "training", "test", "testing", "eval", "evaluation", "validation", "valid", "val", "dev"})
"""Names by which a hub knows a split; a folder that uses none of them has one split, `train`."""
TWICE = "is a duplicate (the same problem)"
SAME_ID = "has the id of another problem"
FIRST = 5
"""Names that are given for each reason."""


class BadDataset(ValueError):
    """A data set that cannot be imported; the message names file, row and what is allowed."""


@dataclass
class Refusals:
    """Rows and tasks that should have been usable and are not: how many by reason, and the first of each by name."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] += 1
        names = self.first.setdefault(reason, [])
        if len(names) < FIRST:
            names.append(name)

    def __add__(self, other: "Refusals") -> "Refusals":
        names = {
            reason: [*self.first.get(reason, []), *other.first.get(reason, [])]
            for reason in {**self.first, **other.first}
        }
        return Refusals(self.counts + other.counts, {reason: first[:FIRST] for reason, first in names.items()})

    def __str__(self) -> str:
        """`3 the gold answer is not an expression (a, b, c); 1 ...`, the most frequent first."""
        return "; ".join(
            f"{count} {reason} ({', '.join(self.first[reason])}{', ...' if count > FIRST else ''})"
            for reason, count in self.counts.most_common()
        )


@dataclass(frozen=True)
class Selection:
    """Which rows are wanted, and in which order; `solve_rate` names a column that goes into the tasks' metadata."""

    where: Sequence[RowFilter] = ()
    row_limit: int | None = None
    shuffle_seed: int | None = None
    solve_rate: str | None = None


ALL_ROWS = Selection()


@dataclass(frozen=True)
class Imported:
    """Tasks in the order of the files or of a shuffle, without repeats; `skipped` counts rows that are none by reason, `refused` those at fault."""

    tasks: list[Task]
    layout: str
    skipped: dict[str, int]
    rows: int
    refused: Refusals = field(default_factory=Refusals)

    @property
    def digest(self) -> str:
        return tasks_digest(self.tasks)


def import_files(
    paths: Sequence[Path], layout: str | DatasetColumns | None = None, selection: Selection = ALL_ROWS
) -> Imported:
    """Tasks of some files. `layout`: a name of `LAYOUTS`, columns, or None to tell it from the columns.

    Raises BadDataset.
    """
    if not paths:
        raise BadDataset(f"there are no files to import; allowed: {', '.join(SUFFIXES)}")
    tasks: dict[str, Task] = {}
    skipped: Counter[str] = Counter()
    refused = Refusals()
    rows, name, read = 0, "", None
    try:
        left_out = filtered(selection.where)
        for path in paths:
            for number, row in enumerate(file_rows(path)):
                if rows == selection.row_limit:
                    break
                if read is None:
                    name, read = _reader(layout, row, path)
                rows += 1
                try:
                    if (reason := left_out(row)) is not None:
                        skipped[reason] += 1
                        continue
                    found = read(row)
                    if isinstance(found, Task) and selection.solve_rate is not None:
                        found = _with_solve_rate(found, row, selection.solve_rate)
                except BadRow as error:
                    raise BadDataset(f"{path.name}, row {number}: {error} (layout {name})") from error
                if isinstance(found, Skipped):
                    if found.fault:
                        refused.add(found.reason, f"{path.name}, row {number}")
                    else:
                        skipped[found.reason] += 1
                elif (before := tasks.setdefault(found.problem_id, found)) is not found:
                    if before.prompt == found.prompt:
                        skipped[TWICE] += 1
                    else:
                        refused.add(SAME_ID, f"{path.name}, row {number}")
    except BadColumns as error:
        raise BadDataset(str(error)) from error
    if not tasks:
        reasons = [*(f"{count} {reason}" for reason, count in skipped.items()), *filter(None, [str(refused)])]
        raise BadDataset(
            f"{', '.join(path.name for path in paths)[:200]}: no row is a task: {', '.join(reasons) or 'they hold no rows'}"
        )
    return Imported(_ordered(list(tasks.values()), selection.shuffle_seed), name, dict(skipped), rows, refused)


def _ordered(tasks: list[Task], seed: int | None) -> list[Task]:
    """In an order that seed and problem ids alone give: no generator, which changes between releases, and not the order of the files."""
    if seed is None:
        return tasks
    return sorted(tasks, key=lambda task: hashlib.sha256(f"{seed} {task.problem_id}".encode(errors="replace")).digest())


def _with_solve_rate(task: Task, row: Row, name: str) -> Task:
    """The share of right answers that the data set gives; a row without one has none."""
    rate = column(row, name)
    if rate is None:
        return task
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 <= rate <= 1.0:
        raise BadRow(f"column {name!r} is {str(rate)[:40]}, no solve rate; allowed: 0 to 1, or none")
    return task.model_copy(update={"metadata": task.metadata | {SOLVE_RATE: float(rate)}})


def from_store(
    store: Store,
    keys: Sequence[str],
    folder: Path,
    layout: str | DatasetColumns | None = None,
    selection: Selection = ALL_ROWS,
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
    return import_files(paths, layout, selection)


def split_files(folder: Path, split: str, subset: str | None = None) -> list[Path]:
    """Files of one split of a data set's folder, in order: `train.parquet`, `data/train-00000-of-00002.parquet`. BadDataset when it has none."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [folder / name for name in split_names(names, split, subset, str(folder))]


def split_names(names: Sequence[str], split: str, subset: str | None, where: str) -> list[str]:
    """The same by the files' paths in a repository, whose README names no subsets: a subset is a folder then."""
    files = list(filter(holds_rows, names))
    if subset is not None:
        folders = sorted({name.partition("/")[0] for name in files if "/" in name})
        files = [name for name in files if name.startswith(f"{subset}/")]
        if not files:
            raise BadDataset(
                f"{where} has no subset {subset!r}; there is {', '.join(folders) or 'none: leave subset out'}"
            )
    found = [name for name in files if _split_of(name) == split or name.rpartition("/")[2].startswith(f"{split}.")]
    if not found and split == "train" and not any(_split_of(name) in SPLITS for name in files):
        found = files
    if not found:
        there = sorted({_split_of(name) for name in files})
        raise BadDataset(
            f"{where} has no files of split {split!r}; there is {', '.join(there) or 'no Parquet, JSON or CSV file'}"
        )
    folders = sorted({name.partition("/")[0] if name.count("/") else "" for name in found})
    if subset is None and len(folders) > 1:
        raise BadDataset(
            f"{where} has split {split!r} in several folders ({', '.join(filter(None, folders))}); name one as subset"
        )
    return found


def _split_of(name: str) -> str:
    """The split that a file's path names: `data/train-00000-of-00002.parquet`, `default/train/0000.parquet`."""
    *folders, file = name.split("/")
    word = file.partition(".")[0].partition("-")[0].partition("_")[0]
    return folders[-1] if word not in SPLITS and folders and folders[-1] in SPLITS else word


def _reader(layout: str | DatasetColumns | None, row: Row, path: Path) -> tuple[str, Callable[[Row], Task | Skipped]]:
    if isinstance(layout, DatasetColumns):
        return "by columns", mapped(layout)
    name = layout or detect(row)
    if name is None or name not in LAYOUTS:
        raise BadDataset(
            f"{path.name}: {f'there is no layout {layout!r}' if layout else f'columns {sorted(row)} belong to no layout'};"
            f" allowed: {', '.join(LAYOUTS)}, or the names of the columns"
        )
    return name, LAYOUTS[name]


def holds_rows(name: str) -> bool:
    """Whether a file or key is one of rows by its name."""
    return name.endswith(SUFFIXES) and name.rpartition("/")[2] not in DESCRIPTIONS


def file_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of one file, a batch in memory at a time."""
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
    elif path.suffix in (".jsonl", ".json"):
        yield from _json_rows(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    else:
        raise BadDataset(f"{path.name} is none of {', '.join(SUFFIXES)}")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa  # 165 MB, which names of files on a hub need not
    import pyarrow.parquet as pq

    try:
        # Mapped, so that a row group of many GB is paged in as it is read, not loaded at once.
        with pq.ParquetFile(path, memory_map=True) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            mean = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // max(mean, 1)))
            # One thread: see contracts.task_table.
            for batch in file.iter_batches(size, use_threads=False):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BadDataset(f"{path.name} cannot be read as Parquet: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines, or of one list."""
    kind = "JSON lines"
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".json" and file.read(64).lstrip().startswith("["):
                kind = "JSON"
                if (size := path.stat().st_size) > LARGEST_JSON_BYTES:
                    raise BadDataset(
                        f"{path.name} is one JSON list of {size} bytes; at most {LARGEST_JSON_BYTES} are allowed: save it as JSON lines or Parquet"
                    )
                file.seek(0)
                rows: Iterator[tuple[int, Any]] = enumerate(json.load(file))
            else:
                file.seek(0)
                rows = ((number, json.loads(line)) for number, line in enumerate(file) if line.strip())
            for number, row in rows:
                if not isinstance(row, dict):
                    where = "line" if kind == "JSON lines" else "element"
                    raise BadDataset(f"{path.name}, {where} {number + 1}: is not a JSON object")
                yield row
    except BadDataset:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BadDataset(f"{path.name} cannot be read as {kind}: {_one_line(error)}") from error


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file with a header; every value is a text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True)):
                if None in row or None in row.values():
                    raise BadDataset(f"{path.name}, row {number}: has fewer or more values than the header has names")
                yield row
    except BadDataset:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise BadDataset(f"{path.name} cannot be read as CSV: {str(error)[:200]}") from error
