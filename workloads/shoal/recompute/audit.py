"""An audit: the stages in their order, each switchable, the record of what was done, and the result.

In: the checked ledger, the store, the configuration, what is to be looked at. Out: `AuditResult`. Called by `shoal ledger audit`. The order is: the
ledger itself (`ledger.reading`), then batches, then version by version: the step that makes it, then the files that it fed. So a version that was
made again serves the proofs of its files, and is removed; the store need not have it any more.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.proof_profile import outliers_in_force
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Verdict
from shoal.errors import InputWrong
from shoal.ledger.audit import Audit, first_line
from shoal.ledger.entries import Accepted
from shoal.ledger.reading import Progress, read_all
from shoal.ledger.terms import terms_of_run
from shoal.recompute import batches
from shoal.recompute.evidence import CannotCheck, Evidence, LedgerFile, WrongEvidence
from shoal.recompute.files import Looks, check_file
from shoal.recompute.progress import Ticker
from shoal.recompute.record import OF_FILES, STAGES, AuditFinding, AuditTerms, Recorder, Stage
from shoal.recompute.steps import Remaking, RepeatedVersion, compare
from shoal.recompute.weights import Weights
from shoal.sampling.tails import too_many
from shoal.storage import StoreUnavailable
from shoal.telemetry import Liveness
from shoal.text import Say, plain
from shoal.training.parallel import Ranks
from shoal.validation.facts import Facts
from shoal.validation.setup import WrongSetupError, read_facts

LIVENESS_SECONDS = 3600.0
NO_VERSION = -1
"""Files whose verdict names no version, or is not readable."""
SCORES = 1_000_000
BEST = 999_999_999
"""Numbers in the record of batches: of the scores of a version, and of the best version; steps are below."""


@dataclass(frozen=True)
class AuditPlan:
    """What is to be looked at. `steps`: first and last step to be repeated; None: all that were trained. `jobs`: files checked at a time."""

    terms: AuditTerms
    stages: Collection[Stage]
    steps: tuple[int, int] | None = None
    jobs: int = 1


@dataclass
class StageTotals:
    """What became of one stage's checks; `unchecked` counts the reasons of those that could not be made."""

    done: int = 0
    of: int = 0
    unchecked: Counter[str] = field(default_factory=Counter)


@dataclass
class AuditResult:
    """All that an audit found, with what earlier calls of it did."""

    terms: AuditTerms
    stages: dict[Stage, StageTotals]
    findings: list[AuditFinding]
    resumed: int
    steps_equal: int = 0
    notes: list[str] = field(default_factory=list)
    """What is unusual and no finding; of this call."""

    @property
    def good(self) -> bool:
        return not self.findings


class RunAudit:
    """One call of an audit. `work` is a folder of its own, which the next call continues."""

    def __init__(
        self, evidence: Evidence, ledger: Audit, plan: AuditPlan, work: Path, say: Say, ranks: Ranks | None = None
    ) -> None:
        """`ranks`: this process as the only trainer, where it is one already. Raises `InputWrong` for the record of another audit."""
        work.mkdir(parents=True, exist_ok=True)
        self._evidence, self._ledger, self._plan, self._work = evidence, ledger, plan, work
        self._ranks = ranks
        self._recorder = Recorder(work / "record.json", plan.terms)
        self._ticker, self._say = Ticker(say), say
        self._looks = Looks(plan.stages, plan.terms.rows, plan.terms.seed)
        self._of: Counter[Stage] = Counter()
        self._notes: list[str] = []

    def run(self) -> AuditResult:
        """Do what is still to be done. Raises `InputWrong` when the store is away or this installation cannot check the run."""
        try:
            self._check_ledger()
            if "batches" in self._plan.stages:
                self._check_batches()
            self._check_versions()
        except StoreUnavailable as error:
            raise InputWrong(plain(error, 400)) from None
        finally:
            self._recorder.write()
        return self._result()

    def _check_ledger(self) -> None:
        """What `ledger verify --documents` has found, and whether the configuration at hand is the declared one."""
        found = list(self._ledger.report.problems)
        declared = self._ledger.report.in_force
        ours = terms_of_run(self._evidence.config)
        if declared is not None and declared != ours:
            names = [name for name in type(ours).model_fields if getattr(ours, name) != getattr(declared, name)]
            found.append(f"the configuration is not what the ledger declares: {', '.join(names)} differ")
        found += self._too_many_left_out()
        self._of["ledger"] = 1
        self._recorder.note("ledger", 0, "ledger", found)

    def _too_many_left_out(self) -> list[str]:
        """Files that leave out more rows of their nodes than the orchestrator may accept."""
        without = self._ledger.report.without_rows
        if not without:
            return []
        outliers = outliers_in_force(self._evidence.config.validation.thresholds, self._evidence.prepared.proof_profile)
        return [
            f"entry {each.number}: {each.rows} rows of node {each.node[:16]}... were left out of {each.tokens} tokens looked at: too many"
            for each in without
            if outliers is None or too_many(each.rows, outliers * each.tokens)
        ]

    def _check_batches(self) -> None:
        evidence = self._evidence
        work: list[tuple[int, str, Callable[[], list[str]]]] = [
            (step, f"step {step}", partial(batches.check_step, self._evidence, step, self._rows_of))
            for step in batches.steps_of(evidence)
        ]
        for place, (version, name) in enumerate(batches.evaluations_there(evidence)):
            scored = partial(batches.check_evaluation, evidence, version, name)
            work.append((SCORES + place, f"scores of version {version} on {plain(name)}", scored))
        work.append((BEST, "best version", partial(batches.check_best, evidence)))
        self._of["batches"] = len(work)
        left = [each for each in work if not self._recorder.is_done("batches", each[0]) or each[0] >= SCORES]
        self._ticker.expect("batches", len(left))
        for number, where, look in left:
            self._one("batches", number, where, look)
        self._notes = batches.notes(evidence, self._say)

    @cached_property
    def _rows_of(self) -> "batches.RowReader | None":
        if self._evidence.config.mode != "Train":
            return None
        return batches.RowReader(self._evidence, self._evidence.store, self._facts.vocabulary, self._facts.routes)

    def _one(self, stage: Stage, number: int, where: str, look: Callable[[], list[str]]) -> None:
        """One check that is no file's."""
        started, found, unchecked = time.monotonic(), list[str](), ""
        try:
            found = look()
        except WrongEvidence as error:
            found = [str(error)]
        except CannotCheck as error:
            unchecked = str(error)
        except (StoreUnavailable, InputWrong):
            raise
        except Exception as error:  # of the store's making
            found = [f"it cannot be made again: {type(error).__name__}: {first_line(error)}"]
        self._recorder.note(stage, number, where, found, unchecked)
        self._ticker.done(stage, time.monotonic() - started)

    def _check_versions(self) -> None:
        """Steps, and files while the weights of all their versions are at hand.

        Verdicts name the oldest version of a file. A row may go on under newer ones, up to the async level: such files wait until these are made.
        """
        stages = [stage for stage in OF_FILES if stage in self._plan.stages]
        by_version = self._files_by_version(stages) if stages else {}
        self._ticker.expect("files", sum(map(len, by_version.values())))
        config = self._evidence.config
        span = config.async_level if config.several_versions else 0
        weights = Weights(self._evidence, self._work / "policies", self._work / "made", span)
        for version, made in self._versions(by_version):
            needed = any(version - span <= each <= version for each in by_version)
            if made is not None and needed and "proofs" in stages:
                weights.take(made)
            self._check_files(by_version.pop(version if made is None else version - span, []), stages, weights)
            weights.rest()
        weights.close()

    def _versions(self, by_version: dict[int, list[LedgerFile]]) -> Iterator[tuple[int, RepeatedVersion | None]]:
        """Versions in their order, made again where steps are repeated, then those of which only files are checked."""
        if "steps" in self._plan.stages:
            yield from self._repeated(by_version)
        for version in sorted(by_version):
            if version in by_version:
                yield version, None

    def _repeated(self, by_version: dict[int, list[LedgerFile]]) -> Iterator[tuple[int, RepeatedVersion | None]]:
        trained = max(self._evidence.versions, default=0)
        first, last = self._plan.steps or (0, trained - 1)
        last = min(last, trained - 1)
        self._of["steps"] = max(0, last + 1 - first)
        done = [step for step in range(first, last + 1) if self._recorder.is_done("steps", step)]
        self._ticker.expect("steps", max(0, last + 1 - first - len(done)))
        if last < first or (len(done) == last + 1 - first and not by_version):
            return
        with Remaking(self._evidence, self._work / "trainer", self._ranks) as remaking:
            started = time.monotonic()
            version = NO_VERSION
            try:
                for made in remaking.made(last + 1):
                    version = made.version
                    equal = self._note_version(made, first, started)
                    yield version, made if equal else None
                    if not equal:
                        return  # what follows from it follows from other weights
                    started = time.monotonic()
            except WrongEvidence as error:
                step = max(0, version)
                self._recorder.note("steps", step, f"step {step}", [str(error)])
            except CannotCheck as error:
                self._recorder.note("steps", max(0, version), f"step {max(0, version)}", [], str(error))

    def _note_version(self, made: RepeatedVersion, first: int, started: float) -> bool:
        """Whether a version is the published one. That of the base model is noted only where it is not."""
        step = made.version - 1
        where = f"step {step}, version {made.version}" if step >= 0 else "version 0"
        unchecked = ""
        try:
            found = compare(self._evidence, made, self._work / "theirs")
        except CannotCheck as error:
            found, unchecked = [], str(error)
        if step >= first or found:
            self._recorder.note("steps", step, where, found, unchecked)
            self._recorder.write()  # before its state is saved, from which a later call begins
            if step >= first:
                self._ticker.done("steps", time.monotonic() - started)
        return not found and not unchecked

    def _files_by_version(self, stages: list[Stage]) -> dict[int, list[LedgerFile]]:
        """Chosen files that are still to be checked, by the version that their verdicts name."""
        left: list[LedgerFile] = []
        for file in self._evidence.files:
            accepted = isinstance(file.fact, Accepted)
            if accepted and not self._is_chosen(file):
                continue
            for stage in stages:
                self._of[stage] += 1
            if all(self._recorder.is_done(stage, file.number) for stage in stages):
                continue
            left.append(file)
        found: defaultdict[int, list[LedgerFile]] = defaultdict(list)
        names = [keys.verdict(file.fact.node, file.fact.file) for file in left]
        progress = Progress(self._say, len(names), "verdicts")
        for file, data in zip(left, read_all(self._evidence.store, names), strict=True):
            found[_version_of(data)].append(file)
            progress.step()
        return dict(found)

    def _is_chosen(self, file: LedgerFile) -> bool:
        terms = self._plan.terms
        return random.Random(f"{terms.seed} file {file.fact.file}").random() < terms.files

    def _check_files(self, files: list[LedgerFile], stages: list[Stage], weights: Weights) -> None:
        if not files:
            return
        facts = self._facts
        uploads = self._work / "uploads"
        uploads.mkdir(exist_ok=True)

        def check(file: LedgerFile) -> None:
            started = time.monotonic()
            path = uploads / f"{file.number}.parquet"
            outcome = check_file(self._evidence, facts, weights, self._looks, file, path)
            for stage in stages:
                self._recorder.note(
                    stage, file.number, file.name, outcome.found.get(stage, []), outcome.unchecked.get(stage, "")
                )
            self._ticker.done("files", (time.monotonic() - started) / self._plan.jobs)

        with _threads(self._plan.jobs) as workers:
            for _ in workers.map(check, files):
                pass

    @cached_property
    def _facts(self) -> Facts:
        """Raises `InputWrong` where this installation is not the run's."""
        scratch = self._work / "facts"
        scratch.mkdir(exist_ok=True)
        try:
            _ = self._evidence.prepared
            return read_facts(self._evidence.config, self._evidence.store, scratch, Liveness(LIVENESS_SECONDS))
        except (WrongSetupError, WrongEvidence, ValueError, KeyError, OSError) as error:
            raise InputWrong(
                f"this installation cannot check the run's files: {first_line(error)}; install what the run's validators had, or leave out batches,"
                " draws, rewards and proofs with --only ledger,steps"
            ) from None

    def _result(self) -> AuditResult:
        totals: dict[Stage, StageTotals] = {}
        for stage in STAGES:
            if stage != "ledger" and stage not in self._plan.stages:
                continue
            checked = self._recorder.checked[stage]
            unchecked = Counter(why for why in checked.values() if why)
            totals[stage] = StageTotals(len(checked) - unchecked.total(), max(self._of[stage], len(checked)), unchecked)
        findings = [each for each in self._recorder.findings if each.stage in totals]
        wrong = {each.where for each in findings if each.stage == "steps" and each.where.startswith("step")}
        repeated = [step for step, why in self._recorder.checked["steps"].items() if step >= 0 and not why]
        return AuditResult(
            self._plan.terms,
            totals,
            findings,
            self._recorder.resumed,
            max(0, len(repeated) - len(wrong)),
            self._notes,
        )


def _version_of(verdict: bytes | None) -> int:
    """Only to sort by; `files` looks at the signature."""
    try:
        version = Signed[Verdict].from_json(verdict or b"").document.policy_version
    except ValueError:
        return NO_VERSION
    return NO_VERSION if version is None else version


@contextmanager
def _threads(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that drops what it has not begun when it is broken off."""
    pool = ThreadPoolExecutor(jobs, "audit")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
