"""Rows of supervised fine-tuning as Parquet: token ids under `sft/`, listed by `sft/manifest.json` (`contracts/sft.py`). Pure.

Apart from the manifest, which the operator's configuration names and which needs no Parquet. Written by prepare, read by the trainer.
"""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq

SFT_SCHEMA_VERSION = "1"
SFT_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_tokens", pa.list_(pa.int32()), nullable=False),
    ],
    metadata={"shoal.sft.version": SFT_SCHEMA_VERSION},
)


@dataclass(frozen=True)
class SftRow:
    """One example: token ids of a prompt and of the completion to learn, its end-of-sequence token included."""

    row_id: str
    prompt_tokens: list[int]
    completion_tokens: list[int]


class BadSftRows(ValueError):
    """A file of rows that cannot be read; the message says what is wrong."""


def write_sft_rows(rows: Sequence[SftRow]) -> bytes:
    """The Parquet bytes of one shard."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema=SFT_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def read_sft_rows(data: bytes) -> pa.Table:
    """The rows of a shard, with the columns of `SFT_SCHEMA`. Raises BadSftRows."""
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise BadSftRows(f"not a Parquet file: {error}") from error
    version = (table.schema.metadata or {}).get(b"shoal.sft.version", b"none").decode()
    if version != SFT_SCHEMA_VERSION or not table.schema.equals(SFT_SCHEMA):
        raise BadSftRows(
            f"version {version!r} with columns {table.schema.names}; this software reads {SFT_SCHEMA.names}"
        )
    return table
