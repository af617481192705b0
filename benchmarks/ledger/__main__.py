"""Seconds and memory of `shoal ledger verify` over a million entries: `python -m benchmarks.ledger [--entries N] [--keep DIR]`, some half an hour.

The orchestrator's own writer makes the ledger in a folder store: signed entries, regular checkpoints, segments, the roster. It is that of 300 steps
and 300 nodes: declaration, invites, nodes that join, die and come again, beacons, files, a reject and an eviction now and then, batches, versions. A
process of its own verifies it with the run's public key, from the command line. Writes `ledger_verify_seconds_1e6` and the figures beside it to
benchmarks/results/size.json. Files of a ledger that `--keep` wrote before are verified again and not written.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal.contracts.compute import compute_of
from shoal.contracts.protocol import Hardware
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.signed import sign
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.entries import (
    CHECKPOINT_ENTRIES,
    SEGMENT_ENTRIES,
    Accepted,
    BatchSealed,
    BeaconCommitted,
    BeaconRevealed,
    Fact,
    NodeDead,
    NodeEvicted,
    NodeInvited,
    NodeJoined,
    Rejected,
    RunDeclared,
    VersionPublished,
)
from shoal.ledger.facts import DeclaredPool, InvitedNode, RunTerms
from shoal.ledger.writer import LedgerWriter
from shoal.storage.store import open_folder

RESULT = Path(__file__).parents[1] / "results" / "size.json"
ENTRIES, STEPS, NODES, RUN = 1_000_000, 300, 300, "million"
GROUPS, TOKENS, PARAMETERS, PROMPT_TOKENS = 1, 144_000, 32_763_876_352, 256
"""A file of one group: sixteen rows of 9,000 tokens on average, of a 32B model."""
DEAD_EVERY, REJECTED_EVERY = 97, 1_499
"""Files between two nodes that fall silent and come again, and between two that are found out."""
FIRST_UNIX, STEP_SECONDS = 1_800_000_000.0, 22 * 60.0
HARDWARE = Hardware(cpus=16, memory_bytes=128 << 30, disk_free_bytes=512 << 30)


def digest(*words: object) -> str:
    """A digest that stands for a file's or a document's."""
    return sha256(repr(words).encode()).hexdigest()


class Members:
    """The nodes of the run, each under a key of its own; an evicted one comes back under another."""

    def __init__(self) -> None:
        self.nodes = [PrivateKey.generate().public for _ in range(NODES)]
        self._nonces = 0

    def come(self, node: str) -> Iterator[Fact]:
        """A node's invite, and that it joined with it."""
        self._nonces += 1
        nonce = f"{self._nonces:032x}"
        invited = InvitedNode(
            pool="strangers", expires_unix=int(FIRST_UNIX) + 600, registered_unix=FIRST_UNIX, software_version="0.3.0", hardware=HARDWARE
        )  # fmt: skip
        yield NodeInvited(node=node, nonce=nonce, invited=invited, registration=digest("registration", nonce))
        yield NodeJoined(node=node, nonce=nonce)

    def file(self, step: int, number: int) -> Iterator[Fact]:
        """What the ledger says of one file, and of its node beside it."""
        place = (step * 7 + number) % NODES
        node, file = self.nodes[place], digest("file", step, number)
        if number % REJECTED_EVERY == REJECTED_EVERY - 1:
            yield Rejected(
                node=node, step=step, submission=number, file=file, finding="proofs: row 3, chunk 17: 61 mismatches"
            )
            yield NodeEvicted(node=node, reason=f"file {file} was rejected")
            self.nodes[place] = PrivateKey.generate().public
            yield from self.come(self.nodes[place])
            return
        if number % DEAD_EVERY == DEAD_EVERY - 1:
            yield NodeDead(node=node)
            yield from self.come(node)
        yield Accepted(
            node=node, step=step, submission=number, file=file, tokens=TOKENS, groups=GROUPS, signal_groups=number % 2,
            compute=compute_of(PARAMETERS, PROMPT_TOKENS, TOKENS),
        )  # fmt: skip


def facts(entries: int, owner: str, roster: str) -> Iterator[tuple[int, Fact]]:
    """Step and fact of `entries` entries, those of a run of `STEPS` steps."""
    pool = DeclaredPool(name="strangers", open=True, listed=0, codes=0)
    terms = RunTerms(
        owner=owner, domain="reinforcement-learning", model_id="QwQ-32B", probation_files=10, slash_votes=2, slashing="Evict",
        pools=[pool], pool_count=1, pools_digest=digest("pools"),
    )  # fmt: skip
    members = Members()
    yield 0, RunDeclared(roster=roster, terms=terms)
    yield 0, VersionPublished(version=0, weights=digest("weights", 0))
    written = 2
    for node in members.nodes:
        for fact in members.come(node):
            yield 0, fact
            written += 1
    for step in range(STEPS):
        commitment = digest("beacon", step)
        yield step, BeaconCommitted(step=step, commitment=commitment)
        yield step, BeaconRevealed(step=step, commitment=commitment)
        written += 2
        number, last = 0, written + (entries - written) // (STEPS - step) - 2
        while written < last:
            for fact in members.file(step, number):
                yield step, fact
                written += 1
            number += 1
        yield step, BatchSealed(step=step, batch=digest("batch", step), groups=number)
        yield step, VersionPublished(version=step + 1, weights=digest("weights", step + 1))
        written += 2


def write(folder: Path, entries: int) -> str:
    """Write the ledger with the orchestrator's writer; the run's public key."""
    run_key = PrivateKey.generate()
    role_keys = {role: PrivateKey.generate() for role in ROLES}
    roster = sign(Roster(run=RUN, keys={role: key.public for role, key in role_keys.items()}), run_key)
    now = FIRST_UNIX
    writer = LedgerWriter(open_folder(folder, ""), RUN, role_keys["orchestrator"], lambda: now)
    checkpoints = Checkpoints(writer, roster)
    for step, fact in facts(entries, run_key.public, document_digest(roster.document)):
        now = FIRST_UNIX + STEP_SECONDS * step
        writer.append(fact)
        if writer.view.next_number % CHECKPOINT_ENTRIES == 0:
            checkpoints.write_due(now, complete=False)
    checkpoints.write_due(now, complete=True)
    (folder / "run-key").write_text(run_key.public)
    return run_key.public


def verified(folder: Path, run_key: str) -> dict[str, Any]:
    """Seconds, processor seconds and largest memory of `shoal ledger verify`; ends the program where it finds anything wrong."""
    command = [sys.executable, "-m", "shoal.cli.main", "ledger", "verify", str(folder), "--run-key", run_key, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate()
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        sys.exit(f"the ledger is not good: {said[:500]}")
    report = json.loads(said)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "memory_mb": round(after.ru_maxrss / 1e3),
        "entries": report["entries"],
        "checkpoints": report["checkpoints"],
        "kinds": report["kinds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--entries", type=int, default=ENTRIES, metavar="N", help="entries of the ledger, 2,000 at least"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for the ledger, which stays there")
    asked = parser.parse_args()
    if asked.entries < 2_000:
        parser.error(f"--entries {asked.entries}: 2,000 at least, for {STEPS} steps and {NODES} nodes")
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = asked.keep or Path(temporary)
        key = folder / "run-key"
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        run_key = key.read_text() if key.is_file() else write(folder, asked.entries)
        written = time.monotonic() - began
        print(f"written in {written:.0f} s", flush=True)
        figures = verified(folder, run_key)
        # Before the folder goes: to delete its million files takes minutes.
        found = {
            "ledger_verify_seconds_1e6": figures.pop("seconds"),
            "ledger_verify_conditions": figures
            | {
                "store": "a folder, files just written",
                "segment_entries": SEGMENT_ENTRIES,
                "cores": os.cpu_count(),
                "load_1_min": round(os.getloadavg()[0], 1),
            },
        }
        print(json.dumps(found, indent=2))
        if figures["entries"] == ENTRIES:
            RESULT.write_text(json.dumps(json.loads(RESULT.read_text()) | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
