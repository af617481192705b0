"""What must hold of a run at any time, whatever was killed: read from the ledger and the store, which are the truth."""

from collections import Counter

from local_system import SMALL, LocalSystem

from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Verdict
from shoal.storage import NotFound

ASYNC_LEVEL = 2
ROWS_OF_A_STEP = SMALL["recipe"]["promptsPerStep"] * SMALL["recipe"]["groupSize"]


def lost_or_doubled(system: LocalSystem, handed_in: set[tuple[str, str]]) -> int:
    """Of these files, those without an outcome; and of all, those with two, or whose outcome differs between ledger and store."""
    entries = system.ledger()
    settled = Counter((entry.node, entry.digest) for entry in entries if entry.kind in ("accepted", "rejected"))
    doubled = sum(times - 1 for times in settled.values())
    lost = 0
    for node, file in handed_in | set(settled):
        try:
            verdict = Signed[Verdict].from_json(system.store.get(keys.verdict(node, file))).document
        except NotFound:
            lost += 1
            continue
        lost += ((node, file) in settled) == (verdict.outcome == "expired")
    return lost + doubled


def files_handed_in(system: LocalSystem) -> set[tuple[str, str]]:
    """Node and digest of every file that was taken so far."""
    found = [info.key.split("/") for info in system.store.list(keys.SUBMISSIONS)]
    return {(node, name.removesuffix(".json")) for _, node, name in found}


def assert_nothing_lost_or_counted_twice(system: LocalSystem) -> None:
    """The ledger chains, and every sealed step trained once, on whole groups of files that a validator accepted, none used twice."""
    entries = system.ledger()
    settled = Counter((entry.node, entry.digest) for entry in entries if entry.kind in ("accepted", "rejected"))
    assert not [file for file, times in settled.items() if times > 1]
    accepted = {entry.digest for entry in entries if entry.kind == "accepted"}
    used: Counter[tuple[str, int]] = Counter()
    # From the same reading: the run goes on while it is looked at.
    sealed = [entry.step for entry in entries if entry.kind == "batch-sealed" and entry.step is not None]
    assert len(set(sealed)) == len(sealed)
    # Workers may be a step ahead, so a step can be full before the one below it: never by more than the async level.
    assert all(step in sealed for step in range(max(sealed, default=0) - ASYNC_LEVEL))
    for step in sealed:
        batch = system.batch(step)
        for file in batch.files:
            assert file.sha256 in accepted
            used.update((file.sha256, prompt) for prompt in file.prompt_indices)
        assert sum(len(file.prompt_indices) for file in batch.files) == batch.groups
    assert not [group for group, times in used.items() if times > 1]
    trained = system.metrics()
    assert sorted(trained) == list(range(len(trained)))
    for metrics in trained.values():
        assert metrics.rows == ROWS_OF_A_STEP
