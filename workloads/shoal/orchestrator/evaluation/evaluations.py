"""The orchestrator's side of the evaluation of versions: which slice a node gets, and the record at the end of a version's evaluation.

Slices are handed out while their version is served, and only this many that training does not starve: while a training step needs
work, a slice takes of the credit that training leases earn (`credit`); only `share` of the nodes work on evaluations at a
time. Accepted files are in the ledger; when all of a benchmark's slices are, or none will come any more,
`evaluations/<version>/<benchmark>.json` is written, once. Whatever is in Redis here may be lost at any time. What goes wrong with one
version's record is logged and holds up neither the others nor the run. Called by `work`, `recovery` and the background work.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from shoal.contracts import keys
from shoal.contracts.evaluation import BenchmarkTerms, BestVersion, EvaluationProgress
from shoal.contracts.node_states import MEMBERS
from shoal.contracts.signed import Signed
from shoal.contracts.task_table import read_tasks
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import EvaluationSlice, WorkKind, kind_of
from shoal.evaluation.versions import (
    AnsweredSlice,
    ScoredVersion,
    Standing,
    VersionEvaluation,
    best_version,
    record,
    standing,
)
from shoal.orchestrator import completeness
from shoal.orchestrator.evaluation.credit import credit
from shoal.orchestrator.evaluation.plan import open_leases_allowed
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work import allocation
from shoal.orchestrator.work.beacons import drawn_prompts
from shoal.orchestrator.work.leases import is_open
from shoal.orchestrator.work.load import pending_groups
from shoal.storage import NotFound, find
from shoal.storage.parallel import in_parallel
from shoal.telemetry import get_logger

SHOWN = 64
"""Newest evaluations that `GET /v1/run` tells of."""


def open_slices(state: RunState) -> list[EvaluationSlice]:
    """Slices without an accepted file of versions that are served, oldest version first."""
    latest = state.view.latest_version
    if latest is None or state.config.evaluation is None or completeness.complete(state):
        return []
    plan, evaluated = state.plan, state.view.evaluated
    versions = [version for version in plan.due(state.view.versions) if plan.is_served(version, latest)]
    return [
        state.codec.slice(number)
        for version in versions
        for each in plan.benchmarks
        if (version, each.name) not in state.evaluations
        for number in state.codec.numbers(version, each.name)
        if number not in evaluated
    ]


def offer(
    state: RunState, node: str, holds: Collection[int], good: Collection[str], *, training_needs_work: bool
) -> list[EvaluationSlice]:
    """Slices that a node with these versions may be given now, the one to take first; empty: none. `good`: nodes in good standing."""
    slices = open_slices(state)
    if not slices or not _has_room(state, training_needs_work):
        return []
    pending, turns = pending_groups(state), _EvaluationTurns(state, node, good)
    return [each for each in slices if not pending[each.number] and each.version in holds and turns.is_for(each)]


def is_offered(
    state: RunState, node: str, work: EvaluationSlice, good: Collection[str], *, training_needs_work: bool
) -> bool:
    """Whether this node may be given a lease for this slice now. The caller holds `lease_lock`."""
    return (
        work in open_slices(state)
        and not pending_groups(state)[work.number]
        and _has_room(state, training_needs_work)
        and _EvaluationTurns(state, node, good).is_for(work)
    )


def _tried(state: RunState) -> Mapping[int, set[str]]:
    """By number, the nodes whose leases for a piece of work are over: for an open slice, they submitted no file that counts."""
    now = state.clock()
    tried: defaultdict[int, set[str]] = defaultdict(set)
    for found in state.leases.all():
        if not is_open(found, now):
            tried[found.lease.step].add(found.lease.node)
    return tried


class _EvaluationTurns:
    """Which slices a node may be given: those that it has not tried yet, or that all others who may serve them have tried too. Else one node could
    keep a slice until its version is gone.

    Where any node is in good standing, slices go to these alone (`handout`), so that a newcomer's turn is not waited for.
    """

    def __init__(self, state: RunState, node: str, good: Collection[str]) -> None:
        joined = state.view.joined
        self._node = node
        self._tried = _tried(state)
        self._revealed = state.view.revealed
        live = {r.node: joined[r.node] for r in state.nodes.all() if r.state in MEMBERS and r.node in joined}
        self._joined = list(live.values())
        self._waited_for = {other: number for other, number in live.items() if not good or other in good}

    def is_for(self, work: EvaluationSlice) -> bool:
        """Whether it is this node's turn."""
        before = self._tried.get(work.number, set())
        if self._node not in before:
            return True
        revealed = self._revealed.get(work.beacon_number)
        return all(
            other in before or not allocation.may_serve(number, revealed, self._joined)
            for other, number in self._waited_for.items()
        )


def _has_room(state: RunState, training_needs_work: bool) -> bool:
    """Whether another evaluation lease leaves training its share."""
    settings = state.config.evaluation
    assert settings is not None
    if completeness.trained(state):
        return True
    now = state.clock()
    under_way = sum(kind_of(r.lease.step) is WorkKind.EVALUATION and is_open(r, now) for r in state.leases.all())
    members = sum(record.state in MEMBERS for record in state.nodes.all())
    if under_way >= open_leases_allowed(settings.share, members):
        return False
    return not training_needs_work or credit(state) >= 1.0


def load(state: RunState) -> None:
    """Learn which records are written, those that are not known yet. One that cannot be read is left out, and met again by `fold`."""
    if state.config.evaluation is None:
        return
    known = {keys.BEST_VERSION, *(keys.evaluation(*pair) for pair in list(state.evaluations))}
    unknown = [info.key for info in state.store.list(keys.EVALUATIONS) if info.key not in known]

    def read(key: str) -> tuple[int, str, ScoredVersion] | None:
        try:
            found = VersionEvaluation.from_json(state.store.get(key))
        except Exception as error:
            get_logger().warning("cannot read the record of an evaluation", key=key, problem=_words(error))
            return None
        return found.version, found.benchmark.name, found.short

    for found in in_parallel(read, unknown):
        if found is not None:
            state.evaluations[found[0], found[1]] = found[2]


def fold(state: RunState) -> None:
    """Write the records of evaluations that have ended. Idempotent; each record is created once, so that it decides. Raises nothing for a record."""
    if state.config.evaluation is None:
        return
    ending = _is_ending(state)
    for version in state.plan.due(state.view.versions):  # the last one is written last: with it the run is complete
        for each in state.plan.benchmarks:
            pair = (version, each.name)
            if pair in state.evaluations:
                continue
            try:
                with state.settle_lock:
                    _fold_one(state, version, each, ending)
            except Exception as error:  # the others, and the run, go on
                if pair not in state.evaluation_problems:
                    state.evaluation_problems.add(pair)
                    get_logger().warning(
                        "cannot write an evaluation", version=version, benchmark=each.name, problem=_words(error)
                    )
    if best(state) != state.best_written:
        write_best(state)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _is_ending(state: RunState) -> bool:
    """Whether the run is complete with this round, because its last version is answered or was waited for: then nothing more comes of any other."""
    if not completeness.trained(state):
        return False
    last, evaluated = state.config.steps, state.view.evaluated
    return completeness.final_wait_is_over(state) or all(
        (last, each.name) in state.evaluations
        or all(number in evaluated for number in state.codec.numbers(last, each.name))
        for each in state.plan.benchmarks
    )


def _fold_one(state: RunState, version: int, terms: BenchmarkTerms, ending: bool) -> None:
    latest = state.view.latest_version
    numbers = state.codec.numbers(version, terms.name)
    done = [number for number in numbers if number in state.view.evaluated]
    late = ending or (latest is not None and state.plan.is_over(version, latest))
    if len(done) < len(numbers) and not late:
        return
    try:
        _write(state, version, terms, done)
    except (ValueError, NotFound) as error:  # what is in the store does not fit; a store that is away is asked again
        if not late:
            raise
        get_logger().warning(
            "an evaluation ended without a score", version=version, benchmark=terms.name, problem=_words(error)
        )
        unscored = record(state.config.run, version, terms, [], [])
        state.store.create(keys.evaluation(version, terms.name), unscored.to_json())
        state.evaluations[version, terms.name] = unscored.short


def _write(state: RunState, version: int, terms: BenchmarkTerms, done: list[int]) -> None:
    tasks = read_tasks(state.store.get(keys.task_table(terms.tasks_digest)))
    answered = []
    for number in done:
        file = state.view.evaluated[number]
        verdict = Signed[Verdict].from_json(state.store.get(keys.verdict(file.node, file.file))).document
        work = state.codec.slice(number)
        prompts = drawn_prompts(state, work, verdict.node, verdict.submission)
        answered.append(AnsweredSlice(verdict, prompts, work.own, state.view.evaluated_unix[number]))
    made = record(state.config.run, version, terms, [task.problem_id for task in tasks], answered)
    key = keys.evaluation(version, terms.name)
    if not state.store.create(key, made.to_json()):
        made = VersionEvaluation.from_json(state.store.get(key))
    state.evaluations[version, terms.name] = made.short
    get_logger().info(
        "version evaluated",
        version=version,
        benchmark=terms.name,
        avg_at_k=made.short.avg_at_k,
        slices=made.slices_done,
        of=terms.slices,
    )


def best(state: RunState) -> BestVersion | None:
    """The best version so far; None while no evaluation on the deciding benchmark is complete."""
    settings = state.config.evaluation
    if settings is None:
        return None
    complete = {
        version: made.avg_at_k
        for (version, name), made in list(state.evaluations.items())
        if name == settings.primary and made.complete and made.avg_at_k is not None
    }
    return best_version(complete, settings.primary)


def write_best(state: RunState) -> None:
    """Follows from the records, and is written again when they say something else; retention reads it. What fails is tried again by `fold`."""
    found = best(state)
    if found is None:
        return
    try:
        if find(state.store, keys.BEST_VERSION, bytes) != found.to_json():
            state.store.put(keys.BEST_VERSION, found.to_json())
            get_logger().info("best version", version=found.version, benchmark=found.benchmark, avg_at_k=found.value)
        state.best_written = found
    except Exception as error:
        get_logger().warning("could not write the best version; it will be retried", problem=_words(error))


def standings(state: RunState) -> dict[str, Standing]:
    """How the newest scored version stands, by benchmark; benchmarks on which none is fully scored are left out."""
    by_name: defaultdict[str, dict[int, ScoredVersion]] = defaultdict(dict)
    for (version, name), made in list(state.evaluations.items()):
        by_name[name][version] = made
    found = {name: standing(versions) for name, versions in by_name.items()}
    return {name: made for name, made in found.items() if made is not None}


def unfinished(state: RunState) -> dict[str, int]:
    """Evaluations that ended before every task was answered, by benchmark."""
    found = {each.name: 0 for each in state.plan.benchmarks}
    for (_, name), made in list(state.evaluations.items()):
        if name in found:
            found[name] += not made.complete
    return found


def progress(state: RunState) -> list[EvaluationProgress]:
    """The newest evaluations, under way or ended, by version."""
    if state.config.evaluation is None:
        return []
    plan, evaluated = state.plan, state.view.evaluated
    found = []
    for version in plan.due(state.view.versions)[-SHOWN:]:
        for each in plan.benchmarks:
            made = state.evaluations.get((version, each.name))
            scored = made if made is not None and made.complete else None
            low, high = scored.interval if scored is not None and scored.interval is not None else (None, None)
            found.append(
                EvaluationProgress(
                    version=version,
                    benchmark=each.name,
                    slices=each.slices,
                    slices_done=sum(number in evaluated for number in state.codec.numbers(version, each.name)),
                    avg_at_k=scored.avg_at_k if scored is not None else None,
                    low=low,
                    high=high,
                    ended=made is not None,
                )
            )
    return found[-SHOWN:]
