"""Evaluation of versions as the orchestrator does it: which slice a node gets, and what is written when a version's evaluation ends.

Slices are handed out while their version is served, and only so many that training does not starve: while a training step needs
work, each training lease earns `share / (1 - share)` of an evaluation lease, and only `share` of the nodes work on evaluations at a
time. Accepted files are in the ledger; when all of a benchmark's slices are, or none will come any more,
`evaluations/<version>/<benchmark>.json` is written, once. Whatever is in Redis here may be lost at any time. Called by `work` and
by the background work.
"""

from collections.abc import Collection

from shoal.contracts import keys
from shoal.contracts.canonical import Signed
from shoal.contracts.evaluation import BestVersion, EvaluationProgress, is_evaluation
from shoal.contracts.tasks import read_tasks
from shoal.contracts.verdicts import Verdict
from shoal.evaluation.versions import AnsweredSlice, VersionEvaluation, best_version, record
from shoal.protocol.evaluation_plan import credit_of_a_lease, open_leases_allowed
from shoal.protocol.leases import is_open
from shoal.protocol.node_states import MEMBERS
from shoal.protocol.run_state import RunState
from shoal.storage import NotFound
from shoal.telemetry import get_logger

MOST_CREDIT = 2.0
"""Evaluation leases that training can have earned ahead: what was earned while nothing was to be evaluated is not spent in one go."""
SHOWN = 64
"""Newest evaluations that `GET /v1/run` tells of."""


def open_numbers(state: RunState) -> list[int]:
    """Slices without an accepted file of versions that are served, oldest version first."""
    latest = state.view.latest_version
    if latest is None or state.config.evaluation is None or state.complete:
        return []
    plan, evaluated = state.plan, state.view.evaluated
    versions = [version for version in plan.due(state.view.versions) if plan.is_served(version, latest)]
    return [
        number
        for version in versions
        for each in plan.benchmarks
        if (version, each.name) not in state.evaluations
        for number in plan.numbers(version, each.name)
        if number not in evaluated
    ]


def offer(state: RunState, holds: Collection[int], *, training_needs_work: bool) -> list[int]:
    """Numbers of slices that a node with these versions may be given now, the one to take first; empty: none."""
    numbers = open_numbers(state)
    if not numbers or not _has_room(state, training_needs_work):
        return []
    pending = state.pending_groups()
    return [number for number in numbers if not pending[number] and state.plan.located(number).version in holds]


def is_offered(state: RunState, number: int, *, training_needs_work: bool) -> bool:
    """Whether a lease for this slice may be given now. The caller holds `lease_lock`."""
    return (
        number in open_numbers(state) and not state.pending_groups()[number] and _has_room(state, training_needs_work)
    )


def _has_room(state: RunState, training_needs_work: bool) -> bool:
    """Whether another evaluation lease leaves training its share."""
    settings = state.config.evaluation
    assert settings is not None
    if state.trained:
        return True
    now = state.clock()
    under_way = sum(is_evaluation(r.lease.step) and is_open(r, now) for r in state.leases.all())
    members = sum(record.state in MEMBERS for record in state.nodes.all())
    if under_way >= open_leases_allowed(settings.share, members):
        return False
    return not training_needs_work or _credit(state) >= 1.0


def _credit(state: RunState) -> float:
    return float(state.redis.get(_credit_key(state)) or 0.0)  # type: ignore[arg-type]


def note_lease(state: RunState, step: int, *, training_needs_work: bool) -> None:
    """Count a lease that was given. The caller holds `lease_lock`."""
    settings = state.config.evaluation
    if settings is None:
        return
    credit = _credit(state)
    if not is_evaluation(step):
        credit = min(MOST_CREDIT, credit + credit_of_a_lease(settings.share))
    elif training_needs_work:
        credit = max(0.0, credit - 1.0)
    state.redis.set(_credit_key(state), repr(credit))


def _credit_key(state: RunState) -> str:
    return f"{state.prefix}:evaluation-credit"


def load(state: RunState) -> None:
    """Learn which records are written."""
    if state.config.evaluation is None:
        return
    for info in state.store.list(keys.EVALUATIONS):
        if info.key == keys.BEST_VERSION:
            continue
        found = VersionEvaluation.from_json(state.store.get(info.key))
        state.evaluations[found.version, found.benchmark.name] = found


def fold(state: RunState) -> None:
    """Write the records of evaluations that have ended. Idempotent; each record is created once, so that it decides."""
    if state.config.evaluation is None:
        return
    plan, latest = state.plan, state.view.latest_version
    written = False
    for version in plan.due(state.view.versions):
        for each in plan.benchmarks:
            if (version, each.name) in state.evaluations:
                continue
            with state.settle_lock:
                numbers = plan.numbers(version, each.name)
                done = [number for number in numbers if number in state.view.evaluated]
                if len(done) < len(numbers) and not _is_late(state, version, latest):
                    continue
                _write(state, version, each.name, done)
                written = True
    if written:
        write_best(state)


def _is_late(state: RunState, version: int, latest: int | None) -> bool:
    """Whether nothing more will come of a version's evaluation: its weights go, or the run has waited for its last version long enough."""
    settings = state.config.evaluation
    assert settings is not None
    if latest is not None and state.plan.is_over(version, latest):
        return True
    last = state.config.steps
    return (
        state.trained
        and last in state.view.version_unix
        and state.clock() >= state.view.version_unix[last] + settings.final_wait_seconds
    )


def _write(state: RunState, version: int, benchmark: str, done: list[int]) -> None:
    terms = next(each for each in state.plan.benchmarks if each.name == benchmark)
    tasks = read_tasks(state.store.get(keys.task_table(terms.tasks_digest)))
    answered = []
    for number in done:
        entry = state.view.evaluated[number]
        assert entry.node is not None
        assert entry.digest is not None
        verdict = Signed[Verdict].from_json(state.store.get(keys.verdict(entry.node, entry.digest))).document
        prompts = state.drawn_prompts(number, verdict.node, verdict.submission)
        answered.append(AnsweredSlice(verdict, prompts, state.plan.located(number).own, entry.unix))
    made = record(state.config.run, version, terms, [task.problem_id for task in tasks], answered)
    key = keys.evaluation(version, benchmark)
    if not state.store.create(key, made.to_json()):
        made = VersionEvaluation.from_json(state.store.get(key))
    state.evaluations[version, benchmark] = made
    value = made.scores.avg_at_k.value if made.scores is not None and made.scores.avg_at_k is not None else None
    get_logger().info(
        "version evaluated", version=version, benchmark=benchmark, avg_at_k=value, slices=len(done), of=terms.slices
    )


def best(state: RunState) -> BestVersion | None:
    """The best version so far; None while no evaluation on the deciding benchmark is complete."""
    settings = state.config.evaluation
    return best_version(list(state.evaluations.values()), settings.primary) if settings is not None else None


def write_best(state: RunState) -> None:
    """Follows from the records, and is written again when they say something else; retention reads it."""
    found = best(state)
    if found is None:
        return
    try:
        if state.store.get(keys.BEST_VERSION) == found.to_json():
            return
    except NotFound:
        pass
    state.store.put(keys.BEST_VERSION, found.to_json())
    get_logger().info("best version", version=found.version, benchmark=found.benchmark, avg_at_k=found.value)


def progress(state: RunState) -> list[EvaluationProgress]:
    """The newest evaluations, under way or ended, by version."""
    if state.config.evaluation is None:
        return []
    plan, evaluated = state.plan, state.view.evaluated
    found = []
    for version in plan.due(state.view.versions)[-SHOWN:]:
        for each in plan.benchmarks:
            made = state.evaluations.get((version, each.name))
            scored = made.scores.avg_at_k if made is not None and made.complete and made.scores is not None else None
            found.append(
                EvaluationProgress(
                    version=version,
                    benchmark=each.name,
                    slices=each.slices,
                    slices_done=sum(number in evaluated for number in plan.numbers(version, each.name)),
                    avg_at_k=scored.value if scored is not None else None,
                    ended=made is not None,
                )
            )
    return found[-SHOWN:]
