"""Each fault at each point of a lease's life: nothing is lost that was promised, and nothing is counted twice.

One run of real processes goes through all cells, one after another. In each the machine is held at the point, the fault happens there, and everybody
goes on by themselves until another step is full and the machine has handed in a further file. Then the books are compared. `make test` runs some
cells, `make soak` all of them; with `WRITE_RESULTS=1` the figures go into `benchmarks/results/workers.json`.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from one_machine import Run

from servers import Loopback, wait_until

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "workers.json"
POINTS = ("leased", "generating", "part", "writing", "uploading", "submitted", "swap")
"""A part of a lease is handed in; the last file of it is written; half of a file is sent; the orchestrator has answered and the worker has not heard
it; other weights are about to be loaded, in the middle of rows."""
AWAY_SECONDS = 1.5
FULL_SECONDS = 4.0
"""More than rows take: something is written meanwhile, whatever the point."""
FROZEN_SECONDS = 14.0
"""More than a lease lives with its upload, and far less than the silence after which a node is dead (`held_process`)."""


def killed(run: Run) -> None:
    """kill -9 of worker and agent: a machine without power."""
    run.machine.worker.kill()
    run.machine.agent.kill()
    run.machine.release()


def asked_to_end(run: Run) -> None:
    """SIGTERM to worker and agent, as a pod gets it."""
    ending = [each.process for each in (run.machine.worker, run.machine.agent)]
    for process in ending:
        assert process is not None
        process.terminate()
    run.machine.release()
    run.machine.is_kept = False
    for process in ending:
        assert process is not None
        run.go_on_until("the machine to end in order", lambda each=process: each.poll() is not None)
        assert process.returncode == 0
    run.machine.is_kept = True


def frozen(run: Run) -> None:
    """Worker and agent stand still until what they hold is over and others have taken its place; then they go on with it."""
    held = [run.machine.worker, run.machine.agent]
    for each in held:
        each.pause()
    run.machine.release()
    over = time.monotonic() + FROZEN_SECONDS
    run.go_on_until("the time of its leases to be over", lambda: time.monotonic() > over)
    for each in held:
        each.resume()


def disks_full(run: Run) -> None:
    """No byte more on the machine's and on the store's disk, for a moment."""
    disks = (run.machine.disk, run.stack.disk)
    try:
        for disk in disks:
            disk.fill()
        run.machine.release()
        time.sleep(FULL_SECONDS)
    finally:
        for disk in disks:
            disk.free()


def relay_lost(run: Run) -> None:
    """The relay breaks off in the middle of the next version, until a step is full without it."""
    run.relay.lose()
    run.machine.release()
    sealed = run.sealed
    run.go_on_until("a step without the relay", lambda: run.sealed > sealed)
    run.relay.find()


def orchestrator_lost(run: Run) -> None:
    """kill -9 of the orchestrator; Redis forgets all; another one starts over the same store."""
    run.stack.orchestrator.kill()
    run.stack.client().flushall()
    run.machine.release()
    time.sleep(AWAY_SECONDS)
    run.stack.orchestrator.start()
    wait_until("the orchestrator to be ready", run.answers, 60)


FAULTS: dict[str, Callable[[Run], None]] = {
    "kill": killed,
    "term": asked_to_end,
    "frozen": frozen,
    "disk": disks_full,
    "relay": relay_lost,
    "orchestrator": orchestrator_lost,
}
SHORT = [
    ("generating", "frozen"),
    ("part", "kill"),
    ("writing", "disk"),
    ("uploading", "orchestrator"),
    ("swap", "kill"),
    ("swap", "orchestrator"),
]
CELLS = [(point, fault) for point in POINTS for fault in FAULTS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("f"), loopback)
    try:
        made.start()
        made.go_on_until("the first step", lambda: made.sealed > 0)
        yield made
    finally:
        made.close()


SEEN: set[tuple[str, str]] = set()


def go_through(run: Run, point: str, fault: str) -> None:
    """One cell, and the books behind it."""
    run.machine.hold(point)
    run.go_on_until(f"the machine to be held: {point}", lambda: run.machine.reached(point))
    FAULTS[fault](run)
    sealed, promised = run.sealed, run.machine.promised()
    run.go_on_until(
        "another step, with a file of the machine", lambda: run.sealed > sealed and run.machine.promised() > promised
    )
    found = run.books()
    assert found.lost == []
    assert found.doubled == []
    SEEN.add((point, fault))


@pytest.mark.parametrize(("point", "fault"), SHORT)
def test_nothing_is_lost_that_was_promised_and_nothing_counted_twice(run: Run, point: str, fault: str) -> None:
    go_through(run, point, fault)


@pytest.mark.soak
@pytest.mark.parametrize(("point", "fault"), CELLS)
def test_so_it_is_at_every_point(run: Run, point: str, fault: str) -> None:
    go_through(run, point, fault)


@pytest.mark.soak
def test_the_whole_matrix_was_gone_through(run: Run) -> None:
    assert {*CELLS} == SEEN
    found = run.books()
    figures = {
        "lease_fault_cells": len(SEEN),
        "lease_faults_lost": len(found.lost),
        "lease_faults_doubled": len(found.doubled),
    }
    assert figures == {"lease_fault_cells": 42, "lease_faults_lost": 0, "lease_faults_doubled": 0}
    if os.environ.get("WRITE_RESULTS"):
        RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | figures, indent=1) + "\n")
