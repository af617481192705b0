"""What an audit has done so far, and what it found: one small file, so that an audit that was stopped goes on where it was.

In: the result of each check. Out: `AuditRecord`, written by atomic rename. Called by `audit`. At 12,000 files it has about 600 KB.
"""

import threading
import time
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, ValidationError

from shoal.contracts.base import Contract, NodeId, RunName
from shoal.errors import InputWrong
from shoal.text import plain

Stage = Literal["ledger", "batches", "steps", "draws", "rewards", "proofs"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which they are done; the last three go file by file."""
OF_FILES: tuple[Stage, ...] = ("draws", "rewards", "proofs")
WRITE_SECONDS = 5.0
"""Between two writes: what a kill costs."""
WORDS = 600


class AuditFinding(Contract):
    """One thing that is not as it must be: which stage found it, where, and what it is."""

    stage: Stage
    where: str
    what: str


class AuditTerms(Contract):
    """What an audit is of, and how much of it is looked at. A record continues an audit of the same terms only."""

    run: RunName
    run_key: NodeId
    seed: str = Field(description="draws the files and rows that are looked at")
    rows: float = Field(gt=0.0, le=1.0, description="share of a file's rows whose proofs are checked")
    files: float = Field(
        gt=0.0, le=1.0, description="share of the accepted files that are looked at; rejected ones all are"
    )


class AuditRecord(Contract):
    """`checked`: by stage, the entries of the ledger or the steps that were done; the value says why one could not be checked, and is empty else."""

    terms: AuditTerms
    checked: dict[Stage, dict[int, str]] = Field(default_factory=dict)
    findings: list[AuditFinding] = Field(default_factory=list)


class Recorder:
    """A record that grows, and its file. Safe for several threads."""

    def __init__(self, path: Path, terms: AuditTerms) -> None:
        """Continues the record at `path` if there is one; raises `InputWrong` when that one is of another audit."""
        self._path = path
        self._lock = threading.Lock()
        self._written = time.monotonic()
        found = read_record(path)
        if found is not None and found.terms != terms:
            raise InputWrong(
                f"{plain(path, 200)} is of another audit: run {found.terms.run}, seed {plain(found.terms.seed)}, rows {found.terms.rows:g}, files"
                f" {found.terms.files:g}; give the same, another --work, or delete that file to begin again"
            )
        self.terms = terms
        self.checked: dict[Stage, dict[int, str]] = {stage: {} for stage in STAGES}
        self._found: dict[tuple[Stage, str], list[AuditFinding]] = {}
        self.resumed = 0
        if found is not None:
            self.checked |= {stage: dict(each) for stage, each in found.checked.items()}
            for each in found.findings:
                self._found.setdefault((each.stage, each.where), []).append(each)
            self.resumed = sum(map(len, found.checked.values()))

    @property
    def findings(self) -> list[AuditFinding]:
        """Of all stages; those of the place that was noted last come last."""
        return [each for found in self._found.values() for each in found]

    def is_done(self, stage: Stage, number: int) -> bool:
        """Whether this was checked before; what could not be is tried again."""
        return self.checked[stage].get(number) == ""

    def note(self, stage: Stage, number: int, where: str, found: list[str], unchecked: str = "") -> None:
        """The outcome of one check. An earlier one of the same place is replaced."""
        where = plain(where, WORDS)
        with self._lock:
            self.checked[stage][number] = plain(unchecked, WORDS)
            self._found.pop((stage, where), None)
            if found:
                self._found[stage, where] = [
                    AuditFinding(stage=stage, where=where, what=plain(what, WORDS)) for what in found
                ]
            if time.monotonic() - self._written >= WRITE_SECONDS:
                self._write()

    def write(self) -> None:
        """Now, whatever the time."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        record = AuditRecord(terms=self.terms, checked=self.checked, findings=self.findings)
        part = self._path.with_name(self._path.name + ".part")
        part.write_bytes(record.to_json())
        part.replace(self._path)
        self._written = time.monotonic()


def read_record(path: Path) -> AuditRecord | None:
    """The record at `path`; None where there is none. Raises `InputWrong` for a file that is something else."""
    try:
        return AuditRecord.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise InputWrong(
            f"{plain(path, 200)} is not the record of an audit ({plain(reason)}); give another --work, or delete it"
        ) from None
