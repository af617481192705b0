"""Two ranks that save a state into a bucket, each through a line of its own. Run by `test_state` as a program of its own.

What each has to say when it is done lies in the folder, as `rank-0` and `rank-1`: nothing, or its error.
"""

import os
import sys
from functools import partial
from pathlib import Path

import torch
from forked_ranks import fork_ranks

from samples import RUN
from shoal.contracts.storage import S3Storage
from shoal.storage import StoreUnavailable
from shoal.storage import store as store_module
from shoal.storage.store import open_s3
from shoal.training.parallel import PeerLost, start_ranks
from shoal.training.stability import History
from shoal.training.state import States

COLLECTIVE_SECONDS = 5.0
STORE_SECONDS = 6.0
PART = 5 << 20
PARTS = 4
"""Of each rank, one after the other."""


def save(
    folder: Path, version: int, spec: S3Storage, key: str, secret: str, lines: list[str], rank: int, port: int
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=COLLECTIVE_SECONDS)
    mine = spec.model_copy(update={"endpoint": lines[rank]})
    store = open_s3(mine, RUN, key, secret, deadline_seconds=STORE_SECONDS)
    tensors = {f"random/cpu/{rank:05d}": torch.full((PARTS * PART,), rank, dtype=torch.uint8)}
    said = ""
    try:
        States(store, RUN, ranks).save(version, tensors, 0, None, History())
    except (StoreUnavailable, PeerLost) as error:
        said = f"{type(error).__name__}: {error}"
    (folder / f"rank-{rank}").write_text(said)


if __name__ == "__main__":
    store_module.CHUNK_BYTES, store_module.UPLOADS = PART, 1
    folder, version, spec, key, secret, *lines = sys.argv[1:]
    fork_ranks(2, partial(save, Path(folder), int(version), S3Storage.from_json(spec), key, secret, lines))
