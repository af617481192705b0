"""What recovery reads after a million files: `python -m benchmarks.recovery [--entries N]`, some seven minutes.

The ledger has N accepted files of the paper's shape (40 a step) and is folded as an orchestrator folds it; their objects are not written, and a store
that counts would show every folder of all files with N names more. Five steps are open, each with 40 leases: a fifth has a file that waits, half are
accepted, the rest are under way. Redis is empty and real; the store is a folder. Writes `recovery_gets_at_1e6` and the figures beside it to
benchmarks/results/size.json. `repair_gets_at_1e6` is what an error costs that left one waiting file in doubt. `start_gets` adds what loading the
ledger reads: its segments, and at most as many entries as a segment has.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from protocol_stack import GROUP_SIZE, GROUPS, RUN, sha
from read_counter import ReadCounter
from run_states import Orchestrator
from servers import Loopback, redis
from shoal.contracts import keys
from shoal.contracts.protocol import Lease
from shoal.contracts.recipe import Recipe
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.crypto.keys import PrivateKey
from shoal.ledger.entries import SEGMENT_ENTRIES, Accepted, BatchSealed, LedgerEntry, VersionPublished
from shoal.orchestrator import recovery
from shoal.orchestrator.doubts import FileInDoubt
from shoal.orchestrator.work.records import LeaseRecord, SubmissionRecord

RESULT = ROOT / "benchmarks" / "results" / "size.json"
ENTRIES = 1_000_000
NODES, FILES_A_STEP, OPEN_STEPS = 300, 40, 5
MOST_GETS = 1000


def fold(run: Orchestrator, nodes: list[str], entries: int) -> int:
    """Apply `entries` facts of closed steps to the ledger's view, unsigned; the first open step."""
    view = run.state.view

    def take(fact: Accepted | BatchSealed | VersionPublished) -> None:
        view.apply(LedgerEntry(number=view.next_number, previous=view.head, run=RUN, fact=fact, unix=run.clock()))

    step = 0
    while view.next_number < entries:
        for number in range(FILES_A_STEP):
            take(_accepted(nodes, step, number))
        take(BatchSealed(step=step, batch=sha(f"batch {step}".encode()), groups=GROUPS))
        step += 1
        take(VersionPublished(version=step, weights=sha(f"weights {step}".encode())))
    for number in range(OPEN_STEPS * FILES_A_STEP // 2):
        take(_accepted(nodes, step + number % OPEN_STEPS, number // OPEN_STEPS))
    return step


def _accepted(nodes: list[str], step: int, number: int) -> Accepted:
    node = nodes[(step * FILES_A_STEP + number) % NODES]
    return Accepted(
        node=node, step=step, submission=number, file=sha(f"{node} {step} {number}".encode()), tokens=1, groups=GROUPS, signal_groups=0
    )  # fmt: skip


def write_open_work(run: Orchestrator, nodes: list[str], first: int) -> int:
    """Leases of the open steps, the verdicts of accepted files and what waits; how many files wait."""
    waiting = 0
    for step in range(first, first + OPEN_STEPS):
        for number in range(FILES_A_STEP):
            fact = _accepted(nodes, step, number)
            lease = Lease(
                lease=sha(f"lease {step} {number}".encode())[:32], node=fact.node, step=step, submission=number,
                expires_unix=run.clock() + 600,
            )  # fmt: skip
            run.store.put(keys.lease(step, fact.node, number), LeaseRecord(lease=lease, groups=GROUPS).to_json())
            if number >= FILES_A_STEP * 7 // 10:
                continue
            record = SubmissionRecord(
                run=RUN, node=fact.node, lease=lease.lease, step=step, submission=number, sha256=fact.file, size=1,
                groups=GROUPS, received_unix=run.clock(),
            )  # fmt: skip
            run.store.put(keys.lease_file(lease.lease), record.to_json())
            run.store.put(keys.submission(fact.node, fact.file), record.to_json())
            if number >= FILES_A_STEP // 2:
                run.store.put(keys.waiting(step, fact.node, fact.file), record.to_json())
                waiting += 1
                continue
            rows = [RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)] * (GROUPS * GROUP_SIZE)
            verdict = Verdict(
                run=RUN, node=fact.node, lease=lease.lease, step=step, submission=number, sha256=fact.file,
                policy_version=first, outcome="accept", rewards=rows, rows=len(rows), completion_tokens=1,
            )  # fmt: skip
            run.store.put(keys.verdict(fact.node, fact.file), sign(verdict, run.role_keys["validator"]).to_json())
    return waiting


def measure(folder: Path, redis_url: str, entries: int) -> dict[str, Any]:
    """The figures of one recovery."""
    recipe = Recipe(prompts_per_step=GROUPS * FILES_A_STEP, group_size=GROUP_SIZE, max_sequence_length=128)
    run = Orchestrator(
        folder, redis_url, steps=entries // FILES_A_STEP + OPEN_STEPS + 1, async_level=OPEN_STEPS - 1, recipe=recipe
    )  # fmt: skip
    nodes = [PrivateKey.generate().public for _ in range(NODES)]
    first = fold(run, nodes, entries)
    run.store.put(keys.INDEXED, b"{}")
    waiting = write_open_work(run, nodes, first)
    store = ReadCounter(folder / "store")
    store.closed = entries
    run.state.store = run.state.leases._store = run.state.ledger.store = store
    run.redis.flushall()
    began = time.perf_counter()
    recovery.rebuild(run.state)
    seconds = time.perf_counter() - began
    if run.state.queue.size() != waiting or len(run.state.leases.all()) != OPEN_STEPS * FILES_A_STEP:
        sys.exit("recovery did not restore what is open: no figure is written")
    rebuilt, listings = store.reads, store.listings
    record = run.state.queue.all()[0].record
    run.state.doubts.add([FileInDoubt(record.step, record.node, record.sha256)])
    recovery.repair(run.state)
    return {
        "recovery_gets_at_1e6": rebuilt,
        "repair_gets_at_1e6": store.reads - rebuilt,
        "recovery_conditions": {
            "ledger_entries": entries,
            "names_listed_of_closed_files": store.listed_closed,
            "listings": listings,
            "listings_of_repair": store.listings - listings,
            "open_steps": OPEN_STEPS,
            "leases_of_open_steps": OPEN_STEPS * FILES_A_STEP,
            "files_waiting": waiting,
            "seconds_folder_store": round(seconds, 2),
            "start_gets_at_most": rebuilt + entries // SEGMENT_ENTRIES + 1 + SEGMENT_ENTRIES,
            "not_written": "the objects of closed files: recovery asks for none of them",
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=str(__doc__).splitlines()[0])
    parser.add_argument("--entries", type=int, default=ENTRIES, metavar="N", help="entries of the ledger")
    entries = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as folder:
        server = redis(Loopback().address(), Path(folder))
        server.start()
        try:
            found = measure(Path(folder), server.url, entries)
        finally:
            server.stop()
    print(json.dumps(found, indent=2))
    if entries == ENTRIES:
        RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | found, indent=2) + "\n")
    if found["recovery_gets_at_1e6"] > MOST_GETS:
        sys.exit(f"recovery read {found['recovery_gets_at_1e6']} objects; allowed: {MOST_GETS}")


if __name__ == "__main__":
    main()
