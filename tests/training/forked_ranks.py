"""Ranks of one computation as processes forked from this one, which has imported torch: most of what each would cost. They meet by gloo."""

import os
import socket
from collections.abc import Callable

import torch


def fork_ranks(world: int, run: Callable[[int, int], None]) -> None:
    """Run `run(rank, port)` in a process for each rank and wait for them: each of their waits has a deadline. RuntimeError says which failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # A fork leaves torch's thread pool to be made anew. Two threads that do so at once end the process ("Invalid thread pool!").
                torch.set_num_threads(torch.get_num_threads())
                run(rank, port)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    codes = {rank: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for rank, child in enumerate(children)}
    if failed := {rank: code for rank, code in codes.items() if code != 0}:
        raise RuntimeError(f"of {world} ranks these failed, by exit code: {failed}")
