"""Each step's batch made again, as the orchestrator seals it and the trainer reads it; and the scores of versions. No weights are needed.

In: `Evidence`. Out: findings in words. A batch follows from the ledger's order, the verdicts and the beacon: its files, their order and their groups.
The trainer's own code plans what is learnt from it (rows, advantages, packing, order), which is compared with the trainer's report. One step's rows
are in memory at a time, as in the trainer.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.routes import RouteShape
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.trust import HeldKeys
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import FIRST_PART_NUMBER, EvaluationSlice
from shoal.evaluation.versions import AnsweredSlice, VersionEvaluation, best_version, record
from shoal.ledger.audit import first_line
from shoal.ledger.entries import Accepted
from shoal.ledger.reading import Progress, read_all
from shoal.orchestrator.work.schedule import told_apart
from shoal.orchestrator.work.step_counter import AcceptedFile, counting, select_batch
from shoal.recompute.evidence import CannotCheck, Evidence, WrongEvidence, span
from shoal.storage import Store
from shoal.text import Say
from shoal.training.batches import StepPlan, plan_of_run
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.enabled import recipe_extensions
from shoal.training.prefetch import Reader
from shoal.training.rollouts import BadBatch, RowLimits, StepRows

SHOWN = 4
"""Places that a note names; it counts all."""
TOLERANCE = 1e-9
"""Of means in a report, which are sums of the same float64 numbers in the same order."""


def check_step(evidence: Evidence, step: int, rows_of: "RowReader | None") -> list[str]:
    """What is wrong with a sealed step's batch and with the trainer's report on it. Raises `CannotCheck` when something that it takes is missing.

    `rows_of`: reads the batch's rows as the trainer does; None in modes that train on no rollouts.
    """
    try:
        sealed = evidence.batch(step)
    except WrongEvidence as error:
        return [str(error)]
    made, problems = rebuilt(evidence, step)
    if problems:
        return problems
    if made is None:
        known = {file.fact.file for file in evidence.accepted.get(step, [])}
        strange = [file.sha256[:16] for file in sealed.files if file.sha256 not in known]
        which = f": batch.json has {', '.join(strange[:3])}, which no entry accepts" if strange else ""
        return [f"it was sealed before enough groups with signal were accepted{which}"]
    if made != sealed:
        return difference(sealed, made)
    return [] if rows_of is None else report_problems(evidence, sealed, rows_of)


def rebuilt(evidence: Evidence, step: int) -> tuple[StepBatch | None, list[str]]:
    """The batch that follows from the ledger's order and the verdicts, or what keeps it from following."""
    work = evidence.work(step)
    beacon = evidence.beacon(work)
    files: list[AcceptedFile] = []
    problems: list[str] = []
    first: dict[tuple[str, int], int] = {}
    for file in evidence.accepted.get(step, []):
        before = first.setdefault((file.fact.node, file.fact.submission), file.number)
        if before != file.number:
            problems.append(
                f"entry {file.number} accepts a second file for submission {file.fact.submission} of node {file.fact.node[:16]}...; entry {before}"
                " accepts the first"
            )
            continue
        if file.number > evidence.sealed[step].number:
            continue  # of no batch; see `notes`
        try:
            verdict = evidence.verdict(file.fact)
            prompts = evidence.prompts(work, beacon, verdict)
            told = told_apart(evidence.schedule, work, verdict, prompts)
        except (WrongEvidence, ValueError) as error:
            problems.append(f"entry {file.number}: {first_line(error)}")
            continue
        signal = len(told.signal_prompts)
        groups = signal + told.dropped_groups
        assert isinstance(file.fact, Accepted)
        if file.fact.groups != groups or file.fact.signal_groups not in (signal, None):
            problems.append(
                f"entry {file.number}: it has {file.fact.signal_groups} of {file.fact.groups} groups with signal, by the verdict there are"
                f" {signal} of {groups}"
            )
        files.append(told)
    if problems:
        return None, problems
    counted = counting(files, work.shape.groups)
    return select_batch(evidence.config.run, step, beacon.hex(), evidence.schedule.needed_groups, counted), []


def notes(evidence: Evidence, say: Say) -> list[str]:
    """What of sealed steps is unusual and proves nothing against anybody, in words."""
    sealed = [file for file in evidence.files if file.fact.step in evidence.sealed]
    late = [
        file.number
        for file in sealed
        if isinstance(file.fact, Accepted) and file.number > evidence.sealed[file.fact.step].number
    ]
    found = []
    if late:
        found.append(
            f"files accepted after the seal of their step, which are paid and in no batch: {len(late)}, by entries {span(late)}"
        )
    told: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for file in sealed:
        if file.fact.submission < FIRST_PART_NUMBER:
            told[file.fact.node, file.fact.step].add(file.fact.submission)
    gapped = {node for (node, _), numbers in told.items() if _passed_over(numbers)}
    for node, step, submission in _expired(evidence, gapped, say):
        if (node, step) in told and submission <= max(told[node, step]):
            told[node, step].add(submission)
    passed = {pair: over for pair, numbers in told.items() if (over := _passed_over(numbers))}
    if passed:
        shown = ", ".join(
            f"{over} of node {node[:16]}... in step {step}" for (node, step), over in sorted(passed.items())[:SHOWN]
        )
        found.append(
            f"submission numbers without a verdict below one with a verdict, as leases leave that bring no file: {sum(passed.values())}; {shown}"
        )
    return found


def _passed_over(numbers: set[int]) -> int:
    """How many numbers below the highest are missing."""
    return max(numbers) + 1 - len(numbers)


def _expired(evidence: Evidence, nodes: Collection[str], say: Say) -> Iterator[tuple[str, int, int]]:
    """Node, step and number of these nodes' files that came too late. The ledger has none of them, so their verdicts are read."""
    settled = {(file.fact.node, file.fact.file) for file in evidence.files}
    left = [
        (node, info.key)
        for node in sorted(nodes)
        for info in evidence.store.list(f"{keys.VERDICTS}{node}/")
        if (node, info.key.rpartition("/")[2].removesuffix(".json")) not in settled
    ]
    progress = Progress(say, len(left), "verdicts of no entry")
    for (node, _), data in zip(left, read_all(evidence.store, [key for _, key in left]), strict=True):
        progress.step()
        try:
            verdict = Signed[Verdict].from_json(data or b"").document
        except (ValueError, KeyError):
            continue
        if verdict.node == node and verdict.outcome == "expired":
            yield node, verdict.step, verdict.submission


def difference(sealed: StepBatch, made: StepBatch) -> list[str]:
    """How a sealed batch is other than the one that follows from the ledger."""
    names = [file.sha256 for file in sealed.files], [file.sha256 for file in made.files]
    if len(set(names[0])) < len(names[0]):
        twice = next(name for name in names[0] if names[0].count(name) > 1)
        return [f"batch.json has file {twice[:16]}... more than once"]
    missing = [name[:16] for name in names[1] if name not in names[0]]
    surplus = [name[:16] for name in names[0] if name not in names[1]]
    if missing or surplus:
        return [
            f"batch.json was made of other files than the ledger's order gives: it lacks {', '.join(missing) or 'none'}, it should not have"
            f" {', '.join(surplus) or 'any'}"
        ]
    if names[0] != names[1]:
        place = next(index for index, pair in enumerate(zip(*names, strict=True)) if pair[0] != pair[1])
        return [
            f"batch.json has its files in another order: place {place} is {names[0][place][:16]}..., by the ledger it is {names[1][place][:16]}..."
        ]
    for ours, theirs in zip(made.files, sealed.files, strict=True):
        if ours != theirs:
            fields = [name for name in type(ours).model_fields if getattr(ours, name) != getattr(theirs, name)]
            return [
                f"batch.json, file {ours.sha256[:16]}...: {name} is {_shown(getattr(theirs, name))}, must be {_shown(getattr(ours, name))}"
                for name in fields
            ]
    fields = [name for name in type(made).model_fields if getattr(made, name) != getattr(sealed, name)]
    return [f"batch.json: {name} is {getattr(sealed, name)}, must be {getattr(made, name)}" for name in fields]


def _shown(value: object) -> str:
    return span(value) if isinstance(value, list) else str(value)


class RowReader:
    """Rows and plans of a run's batches, read and made as the trainer does."""

    def __init__(self, evidence: Evidence, store: Store, vocabulary: int, routes: RouteShape | None = None) -> None:
        """`store`: the run's, to be read. `routes`: those that its rows have."""
        config = evidence.config
        self._config = config
        self._extensions = Extensions(*recipe_extensions(config.recipe))
        limits = RowLimits(
            vocabulary,
            config.recipe.max_sequence_length,
            self._extensions.continuations,
            routes,
            config.recipe.credit == "Turn",
        )
        self._reader = Reader(config, store, limits, HeldKeys(evidence.roster, "validator"))

    def plan(self, batch: StepBatch) -> tuple[StepRows, StepPlan | None]:
        """Raises `BadBatch`."""
        rows = self._extensions.keep_rows(self._reader.rows(batch))
        return rows, plan_of_run(self._config, rows.groups, batch.step, self._extensions.advantages, 0, 1)


def report_problems(evidence: Evidence, batch: StepBatch, rows_of: RowReader) -> list[str]:
    """What the trainer's report says other than what follows from the batch. Raises `CannotCheck` when its files are gone as the manifest has it."""
    evidence.require_files(batch)
    try:
        rows, plan = rows_of.plan(batch)
    except (BadBatch, ValueError) as error:
        return [f"the trainer cannot have read it: {first_line(error)}"]
    key = keys.step_metrics(batch.step)
    try:
        report = StepMetrics.from_json(evidence.read(key))
    except CannotCheck:
        return []  # not trained yet
    except ValidationError as error:
        return [f"{key}: {first_line(error)}"]
    if report.rolled_back_to is not None:
        return []
    samples = [sample for group in rows.groups for sample in group.samples] if plan is not None else []
    means = {name: _mean([getattr(s, name) for s in samples]) for name in ("reward", "task_reward", "length_penalty")}
    follows: dict[str, object] = {
        "data_digest": plan.digest if plan is not None and report.data_digest is not None else None,
        "rows": len(samples),
        "completion_tokens": plan.token_count if plan is not None else 0,
        "packing_density": plan.packing_density if plan is not None else 0.0,
        "rows_left_out": rows.left_out,
        **means,
    }
    return [
        f"{key}: {name} is {said}, by the batch it is {value}"
        for name, value in follows.items()
        if not _same(said := getattr(report, name), value)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _same(said: object, follows: object) -> bool:
    if isinstance(said, float) and isinstance(follows, float):
        return abs(said - follows) <= TOLERANCE * max(1.0, abs(follows))
    return said == follows


def evaluations_there(evidence: Evidence) -> list[tuple[int, str]]:
    """Versions and benchmarks that the store has records of, ascending."""
    found = []
    for info in evidence.store.list(keys.EVALUATIONS):
        folder, _, name = info.key.removeprefix(keys.EVALUATIONS).partition("/")
        version = keys.parse_version(folder)
        if version is not None and name.endswith(".json"):
            found.append((version, name.removesuffix(".json")))
    return found


def check_evaluation(evidence: Evidence, version: int, benchmark: str) -> list[str]:
    """What is wrong with the record of one version's scores. Raises `CannotCheck` as `check_step` does."""
    key = keys.evaluation(version, benchmark)
    try:
        stored = VersionEvaluation.from_json(evidence.read(key))
        terms = next(each for each in evidence.prepared.benchmarks if each.name == benchmark)
        numbers = evidence.codec.numbers(version, benchmark)
        tasks = read_tasks(evidence.read(keys.task_table(terms.tasks_digest)))
    except (ValidationError, ValueError, StopIteration, KeyError) as error:
        return [f"{key} is of no benchmark of this run, or not readable: {first_line(error)}"]
    if tasks_digest(tasks) != terms.tasks_digest:
        return [f"{keys.task_table(terms.tasks_digest)} has other tasks than its name says"]
    answered = []
    for number in numbers:
        for file in evidence.accepted.get(number, [])[:1]:
            work = evidence.work(number)
            assert isinstance(work, EvaluationSlice)
            try:
                verdict = evidence.verdict(file.fact)
            except WrongEvidence as error:
                return [str(error)]
            prompts = evidence.prompts(work, evidence.beacon(work), verdict)
            answered.append(AnsweredSlice(verdict, prompts, work.own, file.unix))
    try:
        made = record(evidence.config.run, version, terms, [task.problem_id for task in tasks], answered)
    except (ValueError, IndexError) as error:
        made = record(evidence.config.run, version, terms, [], [])
        if made != stored:
            return [f"{key} does not follow from its verdicts: {first_line(error)}"]
    if made == stored:
        return []
    return [
        f"{key}: {name} is not what follows from its verdicts"
        + (f": avg@k is {_score(stored)}, must be {_score(made)}" if name == "scores" else "")
        for name in type(made).model_fields
        if getattr(made, name) != getattr(stored, name)
    ]


def check_best(evidence: Evidence) -> list[str]:
    """Whether the best version is the one by the records."""
    settings = evidence.config.evaluation
    if settings is None:
        return []
    complete = {}
    try:
        best = BestVersion.from_json(evidence.read(keys.BEST_VERSION))
        for version, name in evaluations_there(evidence):
            short = VersionEvaluation.from_json(evidence.read(keys.evaluation(version, name))).short
            if name == settings.primary and short.complete and short.avg_at_k is not None:
                complete[version] = short.avg_at_k
    except CannotCheck:
        return []
    except ValidationError as error:
        return [f"{keys.BEST_VERSION} or a record of scores is not readable: {first_line(error)}"]
    follows = best_version(complete, settings.primary)
    return [] if follows == best else [f"{keys.BEST_VERSION} is {best}, by the records it is {follows}"]


def _score(evaluation: VersionEvaluation) -> str:
    found = evaluation.short.avg_at_k
    return "none" if found is None else f"{found:.6g}"


def steps_of(evidence: Evidence) -> list[int]:
    """Sealed steps, ascending."""
    return sorted(evidence.sealed)
