"""Reads a ledger from a store and puts it through `contracts.ledger_audit`: many reads at once, progress for whoever waits. Writes nothing.

Comes in: `LedgerSource`. Goes out: the audit with its report. Bytes of a store are foreign: objects that are too large are not read, names
that no ledger has are reported; the first entry that cannot be believed ends the reading.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from shoal.contracts import keys
from shoal.contracts.roster import Roster, is_newer, verified_roster
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Verdict
from shoal.errors import InputWrong
from shoal.ledger.audit import Audit, BadLedger, read_checkpoint, trusted_roster
from shoal.ledger.chain import entry_leaf
from shoal.ledger.documents import document_key, document_problem, findings_problem, rejects_to_repeat
from shoal.ledger.entries import BatchSealed, EntryKind, LedgerCheckpoint, LedgerEntry
from shoal.ledger.source import LedgerSource, Trust
from shoal.storage import BadKey, NotFound, Store, StoreUnavailable
from shoal.storage.parallel import READERS
from shoal.text import Say, count, plain

CHUNK = 512
"""Entries asked for ahead: enough for the readers, and little memory."""
LARGEST_ENTRY_BYTES = (
    64 << 10
)  # 4,000 characters of detail, each escaped to 12 bytes at most, and some hundred bytes beside
LARGEST_DOCUMENT_BYTES = 64 << 20
LARGEST_OPINION_BYTES = 128 << 10  # a reject has no rewards: 4,000 characters of evidence, and little beside
MOST_OPINIONS = 256
"""Read of one file: 16 votes at most (`slashVotes`), for each of a dozen reasons."""
PROGRESS_SECONDS = 2.0
WITH_DOCUMENT: tuple[EntryKind, ...] = ("accepted", "rejected", "batch-sealed", "version-published")
"""Kinds for which `document_key` has a key."""


def read_ledger(
    source: LedgerSource,
    say: Say,
    *,
    kept: Sequence[LedgerCheckpoint] = (),
    documents: bool = False,
    each: Callable[[LedgerEntry], object] | None = None,
) -> Audit:
    """Read and check everything, and give every checked entry to `each`. What is wrong is in the report.

    No entry is held: a leaf and a digest of each stay, and before that their listing, hundreds of bytes an entry. Raises `InputWrong` when there is
    nothing to read, or the store is away.
    """
    try:
        return _read(source, say, kept, documents, each)
    except StoreUnavailable as error:
        raise InputWrong(plain(error, 400)) from None


def _read(
    source: LedgerSource,
    say: Say,
    kept: Sequence[LedgerCheckpoint],
    documents: bool,
    each: Callable[[LedgerEntry], object] | None,
) -> Audit:
    store, trust = source.store, source.trust
    try:
        signed, roster = newest_roster(store, trust)
    except BadLedger as error:
        audit = Audit(trust.roster.document, {})
        audit.report.problems.append(str(error))
        return audit
    checkpoints, problems = stored_checkpoints(store, roster)
    for checkpoint in kept:
        checkpoints.setdefault(checkpoint.size, []).append(checkpoint)
    # After the checkpoints: a ledger that is being written is then never behind them.
    listed = store.list(keys.LEDGER)
    if not listed and not checkpoints:
        raise InputWrong("there is no entry under ledger/: the run has not begun, or this is not its folder")
    audit = Audit(roster, checkpoints, roster.run_keys(signed.signer)[0])
    audit.report.problems += problems
    there, whole = 0, True
    for info in listed:
        number = keys.parse_ledger_entry(info.key)
        if number is None or info.size > LARGEST_ENTRY_BYTES:
            what = "has another content" if number is None else "is too large for one"
            audit.report.problems.append(f"entry {there} is not there: {plain(info.key)} {what}")
            whole = False
            break
        there = (
            number + 1
        )  # a folder's list may lack what is written meanwhile, and have what follows: entries are read by number
    del listed
    progress = Progress(say, there, "entries")
    try:
        for data in read_all(store, map(keys.ledger_entry, range(there))):
            if data is None:
                raise BadLedger(f"entry {audit.report.entries} is not there")
            entry = audit.take(data)
            if each is not None:
                each(entry)
            progress.step()
        if documents:
            _compare_documents(source, audit, say)
    except BadLedger as error:
        audit.report.problems.append(str(error))
    else:
        if whole:
            audit.finish()
    return audit


def newest_roster(store: Store, trust: Trust) -> tuple[Signed[Roster], Roster]:
    """The reader's roster, or that beside the ledger where keys changed since; raises `BadLedger` when neither can be believed."""
    roster = trusted_roster(trust.roster, trust.run_key)
    try:
        stored = Signed[Roster].from_json(store.get_range(keys.ROSTER, 0, LARGEST_ENTRY_BYTES))
        beside = verified_roster(stored, trust.run_key)
        if is_newer(beside, roster):
            return stored, beside
    except (NotFound, BadKey, ValueError):  # what is not the run's changes nothing: the reader's own stands
        pass
    return trust.roster, roster


def stored_checkpoints(store: Store, roster: Roster) -> tuple[dict[int, list[LedgerCheckpoint]], list[str]]:
    """Good checkpoints of the store by size, and what is wrong with the others."""
    found: dict[int, list[LedgerCheckpoint]] = {}
    problems: list[str] = []
    listed = [info for info in store.list(keys.CHECKPOINTS) if info.size <= LARGEST_ENTRY_BYTES]
    for info, data in zip(listed, read_all(store, [info.key for info in listed]), strict=True):
        try:
            checkpoint = read_checkpoint(data or b"", roster, plain(info.key))
            if info.key != keys.ledger_checkpoint(checkpoint.size):
                raise BadLedger(f"{plain(info.key)} covers {checkpoint.size} entries, which its name does not say")
            found.setdefault(checkpoint.size, []).append(checkpoint)
        except BadLedger as error:
            problems.append(str(error))
    return found, problems


def _compare_documents(source: LedgerSource, audit: Audit, say: Say) -> None:
    store = source.store
    declared, configured = audit.report.in_force, source.configured_votes
    if declared is not None and configured is not None and configured > declared.slash_votes and not source.slash_votes:
        audit.report.problems.append(
            f"entry {audit.report.terms[-1].number}: by the ledger's terms a reject takes {declared.slash_votes} validators, by the run's"
            f" configuration {configured}: its orchestrator goes by another one, or has not yet taken it up"
        )
    progress = Progress(say, sum(audit.report.kinds[kind] for kind in WITH_DOCUMENT), "documents")
    for entry, data in _with_documents(store, audit):
        commitment = audit.commitment(entry.fact.step) if isinstance(entry.fact, BatchSealed) else None
        problem = document_problem(entry, data, audit.keys, commitment)
        if problem is not None:
            audit.report.problems.append(problem)
        audit.report.documents += 1
        votes = votes_for(source, audit, entry)
        repeated = rejects_to_repeat(entry, data, votes) if problem is None else None
        if repeated is not None:
            verdict = repeated.document
            missing = findings_problem(entry, verdict, stored_opinions(store, verdict), audit.keys, votes)
            audit.report.repeated_rejects += missing is None
            audit.report.problems += [missing] if missing is not None else []
        progress.step()


def _with_documents(store: Store, audit: Audit) -> Iterator[tuple[LedgerEntry, bytes | None]]:
    """Entries that name a document, read again and compared with what was checked, and the document; raises `BadLedger`."""
    again = enumerate(read_all(store, [keys.ledger_entry(number) for number in range(audit.report.entries)]))
    while chunk := list(islice(again, CHUNK)):
        named: list[tuple[LedgerEntry, str]] = []
        for number, data in chunk:
            try:
                entry = Signed[LedgerEntry].from_json(data or b"").document
                same = entry_leaf(entry) == audit.leaves[number]
            except ValueError:
                same = False
            if not same:
                raise BadLedger(f"entry {number} changed while the ledger was read")
            if (key := document_key(entry.fact)) is not None:
                named.append((entry, key))
        found = read_all(store, [key for _, key in named])
        yield from zip((entry for entry, _ in named), found, strict=True)


def votes_for(source: LedgerSource, audit: Audit, entry: LedgerEntry) -> int:
    """Validators that had to agree on a reject: as the reader says, by the ledger's terms of its time, by the configuration, or 1."""
    return source.slash_votes or audit.report.slash_votes_at(entry) or source.configured_votes or 1


def stored_opinions(store: Store, verdict: Verdict) -> list[bytes | None]:
    """The objects under `opinions/` for the file of a verdict, at most `MOST_OPINIONS`."""
    listed = store.list(keys.opinions(verdict.node, verdict.sha256))
    names = [info.key for info in islice(listed, MOST_OPINIONS) if info.size <= LARGEST_OPINION_BYTES]
    return list(read_all(store, names))


def read_all(store: Store, names: Iterable[str]) -> Iterator[bytes | None]:
    """The objects in order, a chunk at a time; None for one that is not there or is too large to be ours."""

    with ThreadPoolExecutor(READERS) as readers:
        left = iter(names)
        while chunk := list(islice(left, CHUNK)):
            yield from readers.map(partial(read_bounded, store), chunk)


def read_bounded(store: Store, name: str) -> bytes | None:
    """One object; None for one that is not there or is too large to be ours."""
    try:
        data = store.get_range(name, 0, LARGEST_DOCUMENT_BYTES)
    except (NotFound, BadKey):
        return None
    except ValueError:  # an object without a byte has no range to read; whoever parses it says that it is nothing
        return b""
    return data if len(data) < LARGEST_DOCUMENT_BYTES else None


class Progress:
    """A line every few seconds while something long is read."""

    def __init__(self, say: Say, total: int, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._total, self._what, self._clock = say, total, what, clock
        self._done = 0
        self._told = clock()

    def step(self) -> None:
        self._done += 1
        if self._clock() - self._told >= PROGRESS_SECONDS:
            self._told = self._clock()
            self._say(f"read {count(self._done)} of {count(self._total)} {self._what}")
