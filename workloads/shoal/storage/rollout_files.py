"""A rollout file of the store, read for its rows without all of them in memory as rows of Python.

In: a key and the SHA-256 of what was accepted. Out: rows, some at a time. The file lies in the pod's `tmp/` meanwhile and is mapped, so its bytes are
the page cache's. Two things take memory: the unpacked table of all columns, and `BATCH_TOKENS` tokens as rows of Python, some tens of megabytes.
At the paper's size, 64 rows of 32,768 tokens, the table has 42 MB, 20 bytes a token. The bytes had 36 MB and all rows 600. Routes come on top: of 48
layers and 8 experts 384 bytes a token, so 0.8 GB. Of the largest file that is allowed, 1 GiB, the table has 1.3 GB or what its zstd unpacks to.
A caller that keeps rows holds those too: the collector does, and the trainer with algorithm `vineppo`.
Called by the trainer, on each rank, and by the collector; both read one file at a time.
"""

import hashlib
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from shoal.contracts.rollouts import BadRollouts, Rollout, read_batches
from shoal.storage.store import Store


class OtherBytes(ValueError):
    """The store's bytes are not those that were accepted; the message names the key."""


@contextmanager
def rows_of_file(store: Store, key: str, sha256: str, within: Path | None = None) -> Iterator[Iterator[Rollout]]:
    """The rows of the file under `key`, which must have this digest, in their order. `within`: the folder for the file; None: `TMPDIR`.

    Raises `LocalDiskFull` where it has no room, `OtherBytes`, `NotFound`, and `BadRollouts` for what is no rollout file, also in the middle of the
    rows.
    """
    with tempfile.TemporaryDirectory() if within is None else nullcontext(within) as folder:
        path = Path(folder) / f"{secrets.token_hex(8)}.parquet"
        store.get_to_file(key, path)
        with path.open("rb") as file:
            path.unlink()  # what is open or mapped stays until it is let go
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise OtherBytes(f"{key} has SHA-256 {found}; the store's bytes differ from the accepted ones")
            if not os.fstat(file.fileno()).st_size:
                raise BadRollouts("file has no bytes")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _, batches = read_batches(mapped)
        yield (row for batch in batches for row in batch)
