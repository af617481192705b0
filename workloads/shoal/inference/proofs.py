"""Collects last hidden states on the device while sequences are decoded and turns them into TOPLOC proofs.

In: after each decoding step one row of states for each sampled token (`add`, called by `vllm_hooks`), and the names of
sequences that have ended (`finish`). Out: proof bytes by request (`take_made`). The engine may have begun a step before it learns that a sequence
has ended with the one before: the newest step's rows are kept apart until that is known, and those of ended sequences are dropped.

A step only notes its states, which stay on the device. Every 32 steps, and when sequences end, the notes go into one
buffer there, a slot for each sequence; chunks that are complete are reduced to 128 indices and values, and only these
leave the device, behind the decoding on the same stream. A thread waits for them and interpolates whatever has come
since it last looked, all at once: many polynomials cost little more than one. Decoding waits for none of it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch

from shoal.proofs.reduction import reduce_chunks
from shoal.toploc import codec
from shoal.toploc.top_points import Bool, Int64

CHUNK = codec.CHUNK_TOKENS
SLOT = 2 * CHUNK
"""Rows of a slot: the notes of at most 32 steps complete one chunk of a sequence and begin the next behind it."""
FIRST_SLOTS = 32
"""Slots at the start; twice as many whenever they run out. Sequences that were preempted keep theirs, so that no bound
is known beforehand.
"""

Points = tuple[torch.Tensor, ...]
"""Indices and bit patterns on the host, [chunks, 128] each."""


class LostStatesError(RuntimeError):
    """The rows recorded for a sequence are not those of its tokens: vLLM's steps are not what the hooks take them for."""


@dataclass
class _Recording:
    """One sequence that is being decoded: its slot in the buffer, and how many rows it has had so far."""

    slot: int
    rows: int = 0


@dataclass(frozen=True)
class _Note:
    """One step: row i of `states` is of request i, and of its sampled token `numbers[i]`, from 0; None: nobody says which."""

    requests: Sequence[str]
    states: torch.Tensor
    numbers: Int64 | None


@dataclass(frozen=True)
class _Reduced:
    """One reduction under way: chunk i belongs to request i; `points` waits for it."""

    requests: Sequence[str]
    points: Callable[[], Points]


class ProofRecorder:
    """States of running sequences by request id. Used by one decoding thread; the interpolating thread is internal."""

    def __init__(self, masked: Bool | None = None) -> None:
        """`masked`: bool [hidden size], the dimensions that the model's proof profile leaves to the last."""
        self.on = True
        self._masked = masked
        self._masked_on_device: torch.Tensor | None = None
        self._notes: list[_Note] = []
        self._running: dict[str, _Recording] = {}
        self._free: list[int] = []
        self._buffer: torch.Tensor | None = None  # [slots, SLOT, hidden size]
        self._proofs: defaultdict[str, list[bytes]] = defaultdict(list)
        self._reduced: SimpleQueue[_Reduced] = SimpleQueue()
        self._working: list[Future[None]] = []
        self._ended: list[tuple[Future[None] | None, list[str]]] = []  # with the last work for them
        # One thread: proofs keep the order in which their chunks came, and decoding wants the other cores.
        self._interpolator = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toploc")

    def add(self, requests: Sequence[str], states: torch.Tensor, numbers: Int64 | None = None) -> None:
        """Append row i of `states`, [requests, hidden size] of any float type on any device, to request i.

        All are kept and must not change. With `numbers`, those of the tokens drawn from them, a row that is not its request's next one is an
        error: LostStatesError, in a later call.
        """
        if len(requests) != len(states):
            raise ValueError(f"{len(states)} rows of hidden states for {len(requests)} sampled tokens")
        self._notes.append(_Note(requests, states, numbers))
        if len(self._notes) > CHUNK:
            self._store_notes(but=1)

    def finish(self, tokens: Mapping[str, int]) -> None:
        """These sequences have ended with this many sampled tokens; their slots are free. `take_made` gives their proofs once they are there.

        What the newest step has of them behind these is dropped. Raises LostStatesError when their rows are not as many. All that have ended by the
        step before the newest are in it, or were: so what is left of the newest is of sequences that go on.
        """
        if tokens:
            self._store_notes(but=1)
            self._drop_late(tokens)
        self._store_notes()
        ending: defaultdict[int, list[str]] = defaultdict(list)
        for request, count in tokens.items():
            rows = self._running[request].rows if request in self._running else 0
            if rows != count:
                raise LostStatesError(f"request {request}: {rows} rows of hidden states for {count} sampled tokens")
            ending[count % CHUNK].append(request)
        for rows, requests in ending.items():
            if rows:
                self._reduce(requests, rows)
        for request in tokens:
            if request in self._running:
                self._free.append(self._running.pop(request).slot)
        if tokens:
            self._ended.append((self._working[-1] if self._working else None, list(tokens)))

    def take_made(self, *, wait: bool) -> dict[str, bytes]:
        """Proofs of finished requests that were not taken yet; of all that have theirs by now, or with `wait` of all."""
        if wait:
            return self.take([request for _, requests in self._ended for request in requests])
        # One thread makes them in turn: what was begun before a piece of work that is done is done too.
        while self._working and self._working[0].done():
            self._working.pop(0).result()
        made: list[str] = []
        while self._ended and (self._ended[0][0] is None or self._ended[0][0].done()):
            made += self._ended.pop(0)[1]
        return {request: b"".join(self._proofs.pop(request, ())) for request in made}

    def so_far(self, had: Mapping[str, int]) -> dict[str, bytes]:
        """Whole proofs of running requests that are made by now, behind the first `had` of each. They stay here, and nothing is waited for."""
        return {request: b"".join(self._proofs.get(request, [])[count:]) for request, count in had.items()}

    def take(self, requests: Iterable[str]) -> dict[str, bytes]:
        """Proofs of these finished requests, which are then forgotten; waits for the last of them."""
        for work in self._working:
            work.result()
        self._working.clear()
        taken = {request: b"".join(self._proofs.pop(request, ())) for request in requests}
        left = ((None, [each for each in ended if each not in taken]) for _, ended in self._ended)
        self._ended = [(work, ended) for work, ended in left if ended]
        return taken

    def forget(self, requests: Collection[str]) -> None:
        """Drop what is known of these: they were aborted. Waits for what is being made."""
        self._store_notes()
        for request in requests:
            if request in self._running:
                self._free.append(self._running.pop(request).slot)
        self.take(requests)

    def mask(self, masked: Bool | None) -> None:
        """Go on with another model's masked dimensions. Raises RuntimeError while a sequence is being recorded."""
        if self._running or self._notes:
            raise RuntimeError("masked dimensions can only change while no sequence is running")
        self._masked, self._masked_on_device = masked, None

    @torch.inference_mode()
    def _drop_late(self, tokens: Mapping[str, int]) -> None:
        """Take out of the newest step the rows of those of these sequences that have all of theirs."""
        if not self._notes:
            return
        newest = self._notes[-1]
        late = {request for request in newest.requests if self._rows(request) == tokens.get(request)}
        if not late:
            return
        self._notes.pop()
        kept = [row for row, request in enumerate(newest.requests) if request not in late]
        if kept:
            states = newest.states.index_select(0, on_device(np.array(kept), newest.states.device))
            numbers = newest.numbers[kept] if newest.numbers is not None else None
            self._notes.append(_Note([newest.requests[row] for row in kept], states, numbers))

    def _rows(self, request: str) -> int:
        recording = self._running.get(request)
        return recording.rows if recording is not None else 0

    @torch.inference_mode()  # as the states are made
    def _store_notes(self, but: int = 0) -> None:
        """Put the notes into the buffer, steps of the same sequences together, and reduce the chunks that they complete; all `but` the newest."""
        whole = max(0, len(self._notes) - but)
        notes, self._notes = self._notes[:whole], self._notes[whole:]
        completed: list[str] = []
        start = 0
        while start < len(notes):
            end = start + 1
            while end < len(notes) and notes[end].requests == notes[start].requests:
                end += 1
            completed += self._store(notes[start:end])
            start = end
        if completed:
            self._reduce(completed, CHUNK)

    def _store(self, notes: Sequence[_Note]) -> list[str]:
        """Copy the states of steps of the same requests into the slots; returns the requests with a chunk completed."""
        requests, steps = notes[0].requests, len(notes)
        states = torch.stack([note.states for note in notes])
        recordings = [self._running.get(request) or self._start(request, states) for request in requests]
        slots = np.array([recording.slot for recording in recordings])
        rows = np.array([recording.rows for recording in recordings])
        for step, note in enumerate(notes):
            if note.numbers is not None and (wrong := np.flatnonzero(note.numbers != rows + step)).size:
                row = int(wrong[0])
                raise LostStatesError(
                    f"request {requests[row]}: a state is of sampled token {note.numbers[row]}, not of {rows[row] + step}"
                )
        places = slots * SLOT + (rows + np.arange(steps)[:, None]) % SLOT
        assert self._buffer is not None
        flat = self._buffer.view(-1, states.shape[-1])
        flat.index_copy_(0, on_device(places.reshape(-1), states.device), states.flatten(0, 1))
        completed = []
        for request, recording in zip(requests, recordings, strict=True):
            if recording.rows % CHUNK + steps >= CHUNK:
                completed.append(request)
            recording.rows += steps
        return completed

    def _start(self, request: str, states: torch.Tensor) -> _Recording:
        if not self._free:
            self._grow(states)
        recording = self._running[request] = _Recording(self._free.pop())
        return recording

    def _grow(self, states: torch.Tensor) -> None:
        old, self._buffer = self._buffer, None
        had = 0 if old is None else len(old)
        slots = max(FIRST_SLOTS, 2 * had)
        self._buffer = torch.empty((slots, SLOT, states.shape[-1]), dtype=states.dtype, device=states.device)
        if old is not None:
            self._buffer[:had] = old
        self._free += range(slots - 1, had - 1, -1)

    @torch.inference_mode()
    def _reduce(self, requests: Sequence[str], rows: int) -> None:
        """Start the reduction of these requests' newest chunks, each of `rows` rows."""
        assert self._buffer is not None
        recordings = [self._running[request] for request in requests]
        # The newest chunk is the one that the newest row of a partial one, or the last of a complete one, lies in;
        # behind a complete one the next may have begun.
        halves = [2 * r.slot + (r.rows // CHUNK - (1 if rows == CHUNK else 0)) % 2 for r in recordings]
        chunks = self._buffer.view(-1, CHUNK, self._buffer.shape[-1])[:, :rows]
        picked = chunks.index_select(0, on_device(np.array(halves), chunks.device)).flatten(1)
        self._reduced.put(_Reduced(requests, self._start_reduction(picked)))
        self._working.append(self._interpolator.submit(self._interpolate))

    def _start_reduction(self, chunks: torch.Tensor) -> Callable[[], Points]:
        """Reduce `chunks` [chunks, rows * hidden size]; what comes back waits for the result, on the other thread.

        On an accelerator the work is queued at once, behind what decoding has queued. On a CPU it is left to the other
        thread.
        """
        if chunks.device.type == "cpu":
            masked = self._masked
            return lambda: reduce_chunks(chunks, masked)
        if self._masked is not None and self._masked_on_device is None:
            self._masked_on_device = torch.from_numpy(self._masked).to(chunks.device)
        return copied(*reduce_chunks(chunks, self._masked_on_device))

    def _interpolate(self) -> None:
        """Make the proofs of all that is reduced, or will be once waited for."""
        batch: list[_Reduced] = []
        try:
            while True:
                batch.append(self._reduced.get_nowait())
        except Empty:
            pass
        if not batch:
            return
        indices, bits = (torch.cat(parts).numpy() for parts in zip(*(each.points() for each in batch), strict=True))
        joined = codec.prove(indices.astype(np.int64), bits.astype(np.uint16))
        for number, request in enumerate(request for each in batch for request in each.requests):
            self._proofs[request].append(joined[number * codec.PROOF_BYTES : (number + 1) * codec.PROOF_BYTES])


def on_device(values: Int64, device: torch.device) -> torch.Tensor:
    """int64 on `device`; to an accelerator it travels without a wait."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def copied(*parts: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """These tensors on the host, once what comes back is called. From an accelerator they are copied into pinned memory behind the work for them, and
    the call waits for that."""
    if parts[0].device.type == "cpu":
        return lambda: parts
    here = tuple(
        torch.empty(part.shape, dtype=part.dtype, pin_memory=True).copy_(part, non_blocking=True) for part in parts
    )
    done = torch.Event(device=parts[0].device)
    done.record()

    def wait() -> tuple[torch.Tensor, ...]:
        done.synchronize()
        return here

    return wait
