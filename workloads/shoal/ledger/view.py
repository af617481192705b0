"""What the ledger says, as a fold over its entries: who joined, what was accepted, which steps are sealed. Pure, no I/O.

`LedgerView.apply` takes entries in order and refuses one that does not chain. `identity` names what may be recorded only once, which makes appending
idempotent whoever wrote first. Kept by `ledger_writer`; read by everything that decides.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice

from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed
from shoal.contracts.work import WorkKind, kind_of
from shoal.ledger.chain import Chain, identity
from shoal.ledger.entries import (
    Accepted,
    BatchSealed,
    BeaconCommitted,
    BeaconRevealed,
    DatasetPublished,
    DeclaredTerms,
    KeysChanged,
    LedgerEntry,
    MalformedFact,
    NodeBanned,
    NodeDead,
    NodeEvicted,
    NodeInvited,
    NodeJoined,
    NodeUnbanned,
    Rejected,
    RunDeclared,
    TermsChanged,
    VersionPublished,
)

SEALED_STEPS = 8
"""Of this many steps, those sealed last, the accepted files are held for the estimate of how many groups will count: a long run has millions."""
UNUSED_SECONDS = 86_400.0
MOST_UNUSED = 1000
"""Of invites that nobody came with, the ledger takes this many in a day, and one of a node: keys are free, and a ledger is forever. What is left out
is written when the node joins, so that nobody has to wait and every member's invite is there."""


@dataclass
class Files:
    """How many files of a node were judged, and how; of the accepted ones, tokens looked at and rows that were left out."""

    accepted: int = 0
    rejected: int = 0
    looked_at: int = 0
    left_out: int = 0


class LedgerView:
    """The state that follows from all entries so far. One thread applies; readers take copies of what they iterate."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.chain = Chain(run)
        self.identities: set[Hashable] = set()
        self.terms: DeclaredTerms | None = None  # the last that were declared
        self.keys: Signed[Roster] | None = None  # the last that an entry brought
        self.unused_invites: dict[
            str, float
        ] = {}  # node -> when its invite was noted, oldest first, of a day; until it joins
        self.joined: dict[str, int] = {}  # node -> number of the entry of its first admission
        self.invite_nonces: dict[str, str] = {}  # used nonce -> node
        self.dead: set[str] = set()
        self.slashed: set[str] = set()
        self.banned: set[str] = set()
        self.evicted: set[str] = set()  # slashed or banned: excluded either way
        self.committed: dict[int, str] = {}
        self.revealed: dict[int, int] = {}  # step -> number of the entry
        self.versions: dict[int, str] = {}  # version -> weights digest
        self.version_unix: dict[int, float] = {}  # version -> when it was announced
        self.datasets: dict[str, str] = {}  # name -> SHA-256 of card.json
        self.sealed: dict[int, str] = {}  # step -> SHA-256 of batch.json
        self.accepted: defaultdict[int, list[Accepted]] = defaultdict(list)  # of open steps, and the last few sealed
        self.evaluated: dict[int, Accepted] = {}  # number of a slice -> the file that counts
        self.evaluated_unix: dict[int, float] = {}  # number of a slice -> when that file was accepted
        self.settled: dict[tuple[str, str], str] = {}  # (node, file) -> "accepted" or "rejected"
        self.to_evict: set[str] = set()  # nodes of which a file was rejected while the terms said Evict
        self.files_of: defaultdict[str, Files] = defaultdict(Files)  # node -> what became of its files
        self.accepted_in_a_row: Counter[str] = Counter()  # node -> files accepted since its last rejected one
        self.accepted_unix: dict[
            str, float
        ] = {}  # node -> when its last file was accepted, unless one was rejected since
        self.reject_reasons: Counter[str] = Counter()
        self.files_accepted = 0
        self.files_rejected = 0
        self.tokens_accepted = 0
        self.groups_judged = 0
        self.groups_with_signal = 0

    @property
    def next_number(self) -> int:
        return self.chain.next_number

    @property
    def head(self) -> str:
        return self.chain.head

    @property
    def latest_version(self) -> int | None:
        return max(self.versions, default=None)

    def has_room_for_invite(self, node: str, now_unix: float) -> bool:
        """Whether an invite to this node may be noted before anybody comes with it."""
        old = now_unix - UNUSED_SECONDS
        if self.unused_invites.get(node, old) > old:
            return False
        return (
            len(self.unused_invites) < MOST_UNUSED
            or sum(unix > old for unix in list(self.unused_invites.values())) < MOST_UNUSED
        )

    def has_invite(self, node: str, nonce: str) -> bool:
        """Whether this invite was noted."""
        return ("node-invited", node, nonce) in self.identities

    def apply(self, entry: LedgerEntry) -> None:
        """Fold one entry in; raises `BrokenChain` when it is not the next one of this run."""
        self.chain.follow(entry)
        name = identity(entry.fact)
        repeated = name is not None and name in self.identities
        if repeated:
            return  # a second record of the same fact changes nothing
        if name is not None:
            self.identities.add(name)
        self._fold(entry)

    def _fold(self, entry: LedgerEntry) -> None:
        match entry.fact:
            case RunDeclared(roster=roster, terms=terms) | TermsChanged(roster=roster, terms=terms):
                self.terms = DeclaredTerms(entry.number, entry.unix, roster, terms)
            case KeysChanged(keys=changed):
                self.keys = changed
            case NodeInvited(node=node):
                self._note_invite(node, entry.unix)
            case BeaconCommitted(step=step, commitment=commitment):
                self.committed[step] = commitment
            case BeaconRevealed(step=step):
                self.revealed[step] = entry.number
            case NodeJoined(node=node, nonce=nonce):
                self.joined.setdefault(node, entry.number)
                self.invite_nonces[nonce] = node
                self.unused_invites.pop(node, None)
                self.dead.discard(node)
            case NodeDead(node=node):
                self.dead.add(node)
            case NodeEvicted(node=node):
                self.slashed.add(node)
                self.evicted.add(node)
            case NodeBanned(node=node):
                self.banned.add(node)
                self.evicted.add(node)
            case NodeUnbanned(node=node):
                self.banned.discard(node)
                if node not in self.slashed:
                    self.evicted.discard(node)
            case VersionPublished(version=version, weights=weights):
                self.versions[version] = weights
                self.version_unix[version] = entry.unix
            case DatasetPublished(name=name, card=card):
                self.datasets[name] = card
            case BatchSealed(step=step, batch=batch):
                self.sealed[step] = batch
                self._forget_files()
            case Accepted() as file:
                self._count_accepted(file, entry.unix)
            case Rejected(node=node) as file:
                self.settled[node, file.file] = "rejected"
                if self.terms is not None and self.terms.terms.slashing == "Evict":
                    self.to_evict.add(node)
                self.accepted_in_a_row[node] = 0
                self.accepted_unix.pop(node, None)
                self.files_of[node].rejected += 1
                self.files_rejected += 1
                self.reject_reasons[file.reason] += 1
            case MalformedFact():
                pass  # it counts for nothing, as in the audit

    def _count_accepted(self, file: Accepted, unix: float) -> None:
        node, step = file.node, file.step
        match kind_of(step):
            case WorkKind.EVALUATION:
                if step not in self.evaluated:
                    self.evaluated[step], self.evaluated_unix[step] = file, unix
            case WorkKind.STEP:
                if step in self.accepted or step not in self.sealed:
                    self.accepted[step].append(file)
                self.groups_judged += file.groups
                self.groups_with_signal += file.counted_groups
        self.settled[node, file.file] = "accepted"
        if file.part is None or not file.part.left:  # a lease counts once, in however many parts
            self.accepted_in_a_row[node] += 1
            self.accepted_unix[node] = unix
        files = self.files_of[node]
        files.accepted += 1
        files.looked_at += file.tokens if file.looked_at is None else file.looked_at
        files.left_out += len(file.left_out or ())
        self.files_accepted += 1
        self.tokens_accepted += file.tokens

    def _note_invite(self, node: str, unix: float) -> None:
        self.unused_invites.pop(node, None)
        while (oldest := next(iter(self.unused_invites), None)) is not None:
            if self.unused_invites[oldest] > unix - UNUSED_SECONDS:
                break
            del self.unused_invites[oldest]
        self.unused_invites[node] = unix

    def _forget_files(self) -> None:
        """Leave off the files of the step that is no longer among the last few sealed."""
        older = next(islice(reversed(self.sealed), SEALED_STEPS, None), None)
        if older is not None:
            self.accepted.pop(older, None)
