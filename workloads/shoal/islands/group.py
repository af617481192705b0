"""The islands of one meeting, connected: torchft's gloo group, made again for each meeting, so that whoever has left is not in it.

In: bytes. Out: everybody's bytes, or `Unreachable` when somebody is gone or too slow; the group is useless then and the next meeting has another. One
group a rank: rank `i` of an island speaks to rank `i` of the others. Called by `island`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.distributed import Work
from torch.distributed.distributed_c10d import AllgatherOptions

POLL_SECONDS = 0.05
LONGEST_MESSAGE = 1 << 26
"""Bytes sent in one piece: between two of them a stop is heard, and no length comes near gloo's limits."""


class Unreachable(RuntimeError):
    """Another island is gone, or did not answer in time."""


class RejoinableGroup:
    """A group that can be joined again and again. `connect_seconds` bounds the joining, `transfer_seconds` every exchange of bytes."""

    def __init__(self, connect_seconds: float, transfer_seconds: float, beat: Callable[[], None]) -> None:
        # Not there on every machine (`library`), and a trainer without islands starts without it.
        from torchft.process_group import ProcessGroupGloo

        self._transfer_seconds = transfer_seconds
        self._beat = beat
        self._group = ProcessGroupGloo(timeout=timedelta(seconds=connect_seconds))
        self.sent_bytes = 0
        self.alone()

    def join(self, store: str, meeting: str, rank: int, island: str, index: int, count: int) -> None:
        """Meet the same rank of the other islands at `store`. Raises Unreachable."""
        self._count = count
        try:
            self._group.configure(f"{store}/{meeting}/{rank}", island, index, count)
        except (RuntimeError, TimeoutError, OSError) as error:
            raise Unreachable(f"joining meeting {meeting}: {_first_line(error)}") from error

    def alone(self) -> None:
        """Nobody else came."""
        self._count = 1

    def gather(
        self, mine: UInt8[Tensor, " bytes"], what: str, seconds: float | None = None
    ) -> list[UInt8[Tensor, " bytes"]]:
        """Everybody's bytes, all of one length, in the order of the islands; all of them within `seconds`, or the transfer's."""
        if self._count == 1:
            return [mine]
        found = [torch.empty_like(mine) for _ in range(self._count)]
        limit = _Limit(what, self._transfer_seconds if seconds is None else seconds)
        pieces = zip(mine.split(LONGEST_MESSAGE), *(one.split(LONGEST_MESSAGE) for one in found), strict=True)
        for piece, *others in pieces:

            def gather(piece: Tensor = piece, others: list[Tensor] = others) -> Work:
                options = AllgatherOptions()
                options.timeout = timedelta(seconds=max(limit.left, 0.1))
                return self._group.allgather([others], [piece], options)

            self._finish(gather, limit)
        self.sent_bytes += len(mine) * (self._count - 1)  # a ring: everything but the last part passes through everyone
        return found

    def send(self, tensors: Sequence[Tensor], to: int, what: str, seconds: float | None = None) -> None:
        """Send vectors, one after the other; all of them within `seconds`, or the transfer's."""
        limit = _Limit(what, self._transfer_seconds if seconds is None else seconds)
        for tensor in tensors:
            for piece in tensor.view(torch.uint8).split(LONGEST_MESSAGE):
                self._finish(partial(self._group.send, [piece], to, 0), limit)
            self.sent_bytes += tensor.numel() * tensor.element_size()

    def receive(self, tensors: Sequence[Tensor], sender: int, what: str, seconds: float | None = None) -> None:
        """Fill vectors, in the order in which they are sent; all of them within `seconds`, or the transfer's."""
        limit = _Limit(what, self._transfer_seconds if seconds is None else seconds)
        for tensor in tensors:
            for piece in tensor.view(torch.uint8).split(LONGEST_MESSAGE):
                self._finish(partial(self._group.recv, [piece], sender, 0), limit)

    def leave(self) -> None:
        """Drop the connections: whoever still waits for this island learns it at once."""
        self._group.abort(errored=False)

    def _finish(self, start: Callable[[], Work], limit: "_Limit") -> None:
        """Run one operation. It waits in a thread of its own, in native code, so that this one receives signals and keeps its deadline."""
        done, errors = threading.Event(), list[Exception]()

        def wait() -> None:
            try:
                start().wait(timedelta(seconds=max(limit.left, 0.1)))
            except Exception as error:  # judged below
                errors.append(error)
            finally:
                done.set()

        if limit.left > 0:
            threading.Thread(target=wait, name="island-transfer", daemon=True).start()
        while not done.wait(POLL_SECONDS):
            self._beat()
            if limit.left < 0:
                self.leave()
                raise Unreachable(f"{limit.what}: not done within {limit.seconds:.0f} s")
        if errors:
            self.leave()
            if not isinstance(errors[0], RuntimeError | TimeoutError | OSError):
                raise errors[0]
            raise Unreachable(f"{limit.what}: {_first_line(errors[0])}") from errors[0]


class _Limit:
    """When all pieces of one transfer must be through."""

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
