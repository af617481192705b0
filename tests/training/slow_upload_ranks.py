"""Two ranks that save a state, one of them through a line that is slower than a collective may be. Run by `test_state` as a program of its own."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from forked_ranks import fork_ranks
from tiny_run import make_store

from samples import RUN
from shoal.storage import Store
from shoal.training.parallel import start_ranks
from shoal.training.stability import History
from shoal.training.state import States

DEADLINE_SECONDS = 5.0


class Slow(Store):
    """A folder store whose large objects take longer than one rank waits for another in a collective."""

    def __init__(self, root: Path) -> None:
        plain = make_store(root)
        super().__init__(plain._backend, plain._prefix, root=root)

    def put_chunks(self, key: str, chunks: Callable[[], Iterable[bytes | bytearray]], size: int) -> None:
        time.sleep(DEADLINE_SECONDS + 2.0)
        super().put_chunks(key, chunks, size)


def save(root: Path, rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHOAL_BIND": "127.0.0.1"}
    ranks = start_ranks("cpu", deadline_seconds=DEADLINE_SECONDS)
    store = Slow(root) if rank == 1 else make_store(root)
    tensors = {f"random/cpu/{rank:05d}": torch.arange(8, dtype=torch.uint8)}
    States(store, RUN, root / "scratch", ranks).save(1, tensors, 0, None, History())
    ranks.close()


if __name__ == "__main__":
    fork_ranks(2, partial(save, Path(sys.argv[1])))
