"""A process of the product with places where a test can hold it: `python held_process.py worker|agent|orchestrator`.

A place is held while `hold/<place>` exists in the process's home: whoever comes there first moves that file to `at/<place>`, writes the name of its
lease into it, and waits until it is gone. Everything else is the product's own, except for two things. The worker's engine only has a clock
(`benchmarks.workers.clock_engine`). And leases live for seconds, or a test of those that run out would wait for minutes.
"""

import runpy
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

LEASE_SECONDS, UPLOAD_SECONDS = 6.0, 3.0
"""In place of `BASE_SECONDS` of a lease, and of the life of a grant beyond the transfer."""
PART_SECONDS = 0.3
"""In place of the 10 s that a manifest may ask for at least."""
DEAD_SECONDS = 90.0
"""In place of the 30 s of silence after which a node is dead: one that stands still on a busy machine must come back alive."""
DROP_WAIT_SECONDS = 0.2
"""In place of the first wait after a dropped lease. The same machine drops one in nearly each case."""
STEP_SECONDS = 0.03


def reach(place: str, lease: str = "") -> None:
    """Stay here while the test holds this place."""
    from shoal.contracts.run import home

    wanted, here = home() / "hold" / place, home() / "at" / place
    if not wanted.exists():
        return
    wanted.write_text(lease)
    try:
        wanted.rename(here)
    except FileNotFoundError:  # another thread was first
        return
    while here.exists():
        time.sleep(0.01)


def short_leases() -> None:
    from shoal.contracts import work

    work.BASE_SECONDS = LEASE_SECONDS


def as_orchestrator() -> None:
    from shoal.contracts import node_states
    from shoal.orchestrator.work import leases, standing

    short_leases()
    node_states.SILENT_SECONDS = DEAD_SECONDS
    leases.UPLOAD_SECONDS = UPLOAD_SECONDS
    standing.FIRST_WAIT_SECONDS = DROP_WAIT_SECONDS


def as_agent() -> None:
    """Held in the middle of an upload, and between the orchestrator's receipt and the worker. What was promised is written down first."""
    from shoal.agent import hand_in, socket_routes
    from shoal.contracts.run import home

    post, whole = hand_in.post_form, hand_in.hand_in

    class InHalves:
        """A file of which the first half is read, then the rest."""

        def __init__(self, file: IO[bytes], lease: str) -> None:
            self._file, self._lease, self._half = file, lease, True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def read(self, most: int = -1) -> bytes:
            if not self._half:
                reach("uploading", self._lease)
                return self._file.read(most)
            self._half = False
            size = self._file.seek(0, 2)
            self._file.seek(0)
            return self._file.read(size // 2)

    def in_halves(grant: Any, file: IO[bytes], *about: Any) -> None:
        staged: Any = InHalves(file, grant.fields["key"].rpartition("/")[2])
        post(grant, staged, *about)

    def noted(client: Any, node: str, folder: Path, submission: Any, *about: Any) -> Any:
        receipt = whole(client, node, folder, submission, *about)
        with (home() / "promised").open("a") as promised:
            promised.write(f"{node} {receipt.lease} {receipt.sha256} {receipt.status}\n")
        reach("submitted", submission.lease)
        return receipt

    hand_in.post_form = in_halves
    patched: Any = socket_routes
    patched.hand_in = noted


def as_worker() -> None:
    from benchmarks.workers.clock_engine import ClockEngine

    short_leases()

    class PacedEngine(ClockEngine):
        """The clock's engine in real time, made as the product's is. A row goes on where its prefix ends."""

        def __init__(self, checkpoint: Any, **_: Any) -> None:
            super().__init__(sequences=4, means=(24.0,), stride=1, limit=64)
            self._prompts: dict[int, int] = {}
            self._seeds: dict[str, int] = {}

        def start(self, request: Any, pauses: Callable[[Sequence[int]], bool] | None = None) -> str:
            name = super().start(request, pauses)
            row = self.rows[name]
            row.done = row.had = len(request.prompt_tokens) - self._prompts.setdefault(
                request.seed, len(request.prompt_tokens)
            )
            row.length = max(row.length, row.had + 1)
            return name

        def step(self) -> Any:
            time.sleep(STEP_SECONDS)
            if any(row.done > 4 for row in self.rows.values()):
                reach("generating")
            return [(name, told(made)) for name, made in super().step()]

        def cut(self) -> Any:
            return [(name, told(made)) for name, made in super().cut()]

        def check(self, folder: Any, sealed: Any, progress: Any) -> None:
            pass

        def swap(self, checkpoint: Any, sealed: Any, beat: Any) -> None:
            pass

        def close(self) -> None:
            pass

    def told(made: Any) -> Any:
        return replace(made, logprobs=[-0.5] * len(made.tokens), proofs=b"clock")

    stand_in: Any = types.ModuleType("shoal.inference.engine")
    stand_in.Engine = PacedEngine
    sys.modules["shoal.inference.engine"] = stand_in

    from shoal.inference import generation
    from shoal.inference import worker as module

    generation.PART_LOOK_SECONDS = 0.05
    patched: Any = module.Worker
    plan, swap, submit = patched._plan, patched._swap, patched._submit

    def planned(self: Any, step: Any, lease: Any, policy: Any) -> Any:
        reach("leased", lease.lease)
        return replace(plan(self, step, lease, policy), part_seconds=PART_SECONDS)

    def swapped(self: Any, policy: Any) -> None:
        reach("swap")
        swap(self, policy)

    def submitted(self: Any, lease: Any, rows: Any) -> None:
        reach("part" if lease.keeps_rest else "writing", lease.holder.given.lease.lease)
        submit(self, lease, rows)

    patched._plan, patched._swap, patched._submit = planned, swapped, submitted


if __name__ == "__main__":
    role = sys.argv.pop(1)
    {"worker": as_worker, "agent": as_agent, "orchestrator": as_orchestrator}[role]()
    runpy.run_module({"worker": "shoal.inference"}.get(role, f"shoal.{role}"), run_name="__main__", alter_sys=True)
