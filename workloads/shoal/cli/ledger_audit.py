"""`shoal ledger audit`: from what a person typed to an audit (`recompute`), with its work folder, its seed and its log.

Called by `ledger`. A process of its own kind: one thread for torch, as the run's trainer and validators have it, since other numbers of threads round
otherwise; nothing is asked of a network.
"""

import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from shoal.contracts.run import RunConfig
from shoal.errors import InputWrong
from shoal.ledger.audit import Audit
from shoal.ledger.entries import LedgerEntry
from shoal.ledger.source import LedgerSource
from shoal.recompute.record import STAGES, AuditTerms, Stage, read_record
from shoal.telemetry.logs import STEPS
from shoal.text import plain

if TYPE_CHECKING:
    from shoal.recompute.audit import AuditResult  # imports torch

SWITCHABLE = tuple(stage for stage in STAGES if stage != "ledger")
DEFAULT_WORK = Path("audits")


def stages_of(only: str | None) -> list[Stage]:
    """The stages that `--only` names; raises `InputWrong`."""
    if only is None:
        return list(SWITCHABLE)
    named = [name.strip() for name in only.split(",")]
    unknown = [name for name in named if name not in STAGES]
    if unknown:
        raise InputWrong(f"--only names {plain(unknown[0])!r}; allowed: {','.join(SWITCHABLE)}, with commas between")
    return [stage for stage in SWITCHABLE if stage in named]


def steps_of(given: str | None) -> tuple[int, int] | None:
    """First and last step of `A-B`; raises `InputWrong`."""
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", given)
    if found is None or int(found[1]) > int(found[2]):
        raise InputWrong(f"--train-steps is {plain(given)!r}; allowed: A-B, such as 0-69, steps counted from 0")
    return int(found[1]), int(found[2])


def run_audit(
    source: LedgerSource,
    config: RunConfig,
    ledger: Audit,
    entries: Sequence[LedgerEntry],
    stages: list[Stage],
    steps: tuple[int, int] | None,
    rows: float,
    files: float,
    seed: str | None,
    jobs: int,
    work: Path | None,
    say: Callable[[str], None],
) -> "AuditResult":
    """Run it. Raises `InputWrong`."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.utils.logging import disable_progress_bar

    from shoal.recompute.audit import AuditPlan, RunAudit  # imports torch, which reads the environment
    from shoal.recompute.evidence import Evidence

    disable_progress_bar()
    folder = (work or DEFAULT_WORK / config.run).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "log.jsonl").open("a", buffering=1)
    except OSError as error:
        raise InputWrong(f"--work {plain(folder, 200)}: {error.strerror}; give a folder that can be written") from None
    structlog.configure(
        processors=[*STEPS, structlog.processors.JSONRenderer()], logger_factory=structlog.WriteLoggerFactory(log)
    )
    before = read_record(folder / "record.json")
    seed = seed or (before.terms.seed if before is not None else secrets.token_hex(8))
    terms = AuditTerms(run=config.run, run_key=source.trust.run_key, seed=seed, rows=rows, files=files)
    evidence = Evidence(source.store, config, ledger, entries)
    say(f"seed {plain(seed)}; record and log in {plain(folder, 200)}")
    return RunAudit(evidence, ledger, AuditPlan(terms, stages, steps, jobs), folder, say).run()
