"""Files that are meant to hurt whoever reads them. Each is made of an honest one and must end as a reject, with the reader alive.

A Parquet file can say that a few bytes are gigabytes (run lengths, dictionaries, compression), nest without end, name other files, and
carry objects that a careless reader unpickles.
"""

import io
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.contracts.verdicts import RejectReason

MANY_ROWS = 400_000
LONG_TEXT_BYTES = 48 << 20
DEPTH = 200
MANY_COLUMNS = 3000
MARKER = Path(tempfile.gettempdir()) / "shoal-test-unpickled"
"""A file that a reader makes if it runs what is pickled in its input."""


@dataclass(frozen=True)
class Bomb:
    """One hostile file. `evidence` is a pattern in the verdict's evidence."""

    name: str
    does: str
    reason: RejectReason
    evidence: str
    build: Callable[[bytes], bytes]


class Payload:
    """Makes the marker when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (MARKER,)


def table_of(honest: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(honest))


def file_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **({"compression": "zstd"} | options))
    return sink.getvalue()


def with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, pa.field(name, values.type, nullable=False), values)


def huge_row_group(honest: bytes) -> bytes:
    """One row as many times as make gigabytes of objects, in a few kilobytes."""
    table = table_of(honest)
    return file_of(table.take([0] * MANY_ROWS), row_group_size=MANY_ROWS)


def dictionary_bomb(honest: bytes) -> bytes:
    """One text of a mebibyte in a dictionary, which every row refers to: each reader makes as many copies."""
    table = table_of(honest)
    text = "a" * (LONG_TEXT_BYTES // table.num_rows)
    column = pa.array([text] * table.num_rows)
    return file_of(with_column(table, "problem_id", column))


def long_list(honest: bytes) -> bytes:
    """One completion of forty million equal tokens."""
    table = table_of(honest)
    lengths = [40_000_000] + [1] * (table.num_rows - 1)
    values = pa.chunked_array([pa.array([7] * 1_000_000, pa.int32())] * 40).combine_chunks()
    values = pa.concat_arrays([values, pa.array([7] * (table.num_rows - 1), pa.int32())])
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return file_of(
        with_column(table, "completion_tokens", pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))
    )


def fat_proofs(honest: bytes) -> bytes:
    """Proofs of three mebibytes of zeros in one row: what its reader sends is cut off, so that no reader has a last word."""
    table = table_of(honest)
    proofs = [bytes(3 << 20), *table["proofs"].to_pylist()[1:]]
    return file_of(with_column(table, "proofs", pa.array(proofs, pa.binary())))


def deep_nesting(honest: bytes) -> bytes:
    """Lists in lists, two hundred deep."""
    table = table_of(honest)
    column: pa.Array = pa.array([7] * table.num_rows, pa.int32())
    offsets = pa.array(range(table.num_rows + 1), pa.int32())
    for _ in range(DEPTH):
        column = pa.ListArray.from_arrays(offsets, column)
    return file_of(with_column(table, "completion_tokens", column))


def wrong_types(honest: bytes) -> bytes:
    """Tokens as 64-bit integers."""
    table = table_of(honest)
    return file_of(with_column(table, "completion_tokens", table["completion_tokens"].cast(pa.list_(pa.int64()))))


def nulls(honest: bytes) -> bytes:
    """A seed that is not there."""
    table = table_of(honest)
    values = table["seed"].to_pylist()
    column = pa.array([None, *values[1:]], pa.int64())
    place = table.schema.get_field_index("seed")
    return file_of(table.set_column(place, pa.field("seed", pa.int64()), column))


def many_columns(honest: bytes) -> bytes:
    """Three thousand columns more than there should be."""
    table = table_of(honest)
    column = pa.array([0] * table.num_rows, pa.int8())
    names = [f"extra{number}" for number in range(MANY_COLUMNS)]
    fields = [*table.schema, *(pa.field(name, pa.int8()) for name in names)]
    return file_of(
        pa.table([*table.columns, *[column] * MANY_COLUMNS], schema=pa.schema(fields, table.schema.metadata))
    )


def path_as_column(honest: bytes) -> bytes:
    """A column with the name of a file."""
    table = table_of(honest)
    names = ["../../../etc/passwd" if name == "run" else name for name in table.schema.names]
    return file_of(table.rename_columns(names).replace_schema_metadata(table.schema.metadata))


def path_as_node(honest: bytes) -> bytes:
    """A path where the node's name belongs."""
    table = table_of(honest)
    return file_of(with_column(table, "node", pa.array(["../../../../tmp/x"] * table.num_rows)))


def path_as_model(honest: bytes) -> bytes:
    """A path where the model's name belongs, in the metadata."""
    table = table_of(honest)
    metadata = dict(table.schema.metadata) | {b"shoal.model": b"../../../../var/lib/secrets/key"}
    return file_of(table.replace_schema_metadata(metadata))


def columns_in_another_file(honest: bytes) -> bytes:
    """A footer whose columns lie in another file, as a `_metadata` file's do."""
    footer = pq.ParquetFile(pa.BufferReader(honest)).metadata
    footer.set_file_path("../../../../../etc/passwd")
    sink = io.BytesIO()
    footer.write_metadata_file(sink)
    return sink.getvalue()


def pickled_type(honest: bytes) -> bytes:
    """A column of an extension type that is described by a pickle."""
    table = table_of(honest)
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload()),
    }
    place = table.schema.get_field_index("run")
    field = pa.field("run", pa.binary(), nullable=False, metadata=extension)
    return file_of(table.set_column(place, field, table["run"].cast(pa.binary())))


def encrypted_footer(honest: bytes) -> bytes:
    """The magic number of an encrypted file."""
    return b"PARE" + honest[4:-4] + b"PARE"


def endless_footer(honest: bytes) -> bytes:
    """A footer that says to be four gigabytes long."""
    return honest[:-8] + b"\xff\xff\xff\xff" + honest[-4:]


def without_end(honest: bytes) -> bytes:
    """Half a file."""
    return honest[: len(honest) // 2]


def no_parquet(honest: bytes) -> bytes:
    """Something else altogether."""
    return b"PK\x03\x04" + bytes(1000)


def several_row_groups(honest: bytes) -> bytes:
    """A row group for each row."""
    return file_of(table_of(honest), row_group_size=1)


TOO_MUCH = "it needs more than|needs more than .* bytes of memory|took more than|rows|tokens|MemoryError|malloc|realloc|[Mm]emory"
UNREADABLE = "not a readable Parquet file|reading the file failed"

BOMBS = [
    Bomb("huge-row-group", "repeats a row 400,000 times", "format", TOO_MUCH, huge_row_group),
    Bomb(
        "dictionary-bomb",
        "refers 48 times to one long text",
        "format",
        "a row has [0-9]+ bytes of problem_id; at most",
        dictionary_bomb,
    ),
    Bomb("long-list", "writes a completion of forty million tokens", "format", TOO_MUCH, long_list),
    Bomb(
        "fat-proofs", "writes three mebibytes of proofs for one completion", "unread", "it needs more than", fat_proofs
    ),
    Bomb("deep-nesting", "nests lists 200 deep", "format", "completion_tokens|" + UNREADABLE, deep_nesting),
    Bomb("wrong-types", "writes tokens as 64-bit integers", "format", "completion_tokens has type", wrong_types),
    Bomb("null-seed", "leaves a seed out", "format", "seed is null", nulls),
    Bomb("many-columns", "adds 3,000 columns", "format", "columns do not match", many_columns),
    Bomb(
        "several-row-groups",
        "makes a row group of each row",
        "format",
        "row groups; exactly one is allowed",
        several_row_groups,
    ),
    Bomb("path-as-column", "names a column like a file", "format", "columns do not match", path_as_column),
    Bomb("path-as-node", "names a file as the node", "identity", "node is", path_as_node),
    Bomb("path-as-model", "names a file as the model", "identity", "model is", path_as_model),
    Bomb("columns-elsewhere", "points at another file", "format", UNREADABLE, columns_in_another_file),
    Bomb("pickled-type", "describes a type by a pickle", "format", "column run has type", pickled_type),
    Bomb("encrypted-footer", "says it is encrypted", "format", UNREADABLE, encrypted_footer),
    Bomb("endless-footer", "says its footer has 4 GiB", "format", UNREADABLE, endless_footer),
    Bomb("half-a-file", "ends in the middle", "format", UNREADABLE, without_end),
    Bomb("no-parquet", "is no Parquet file", "format", UNREADABLE, no_parquet),
]
