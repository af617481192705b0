"""How much of the work under way is done and awaited, in groups, from one look at leases, queue and ledger.

What a step needs beyond it is decided by `allocation` and the run's schedule. Called by `handout`, by evaluations and for `GET /v1/run`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.contracts.base import NodeId
from shoal.ledger.entries import Accepted
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.queue import Job
from shoal.orchestrator.work.allocation import StepLoad
from shoal.orchestrator.work.leases import is_open
from shoal.orchestrator.work.open_work import openable_steps
from shoal.orchestrator.work.parts import unbegun
from shoal.orchestrator.work.records import LeaseRecord
from shoal.orchestrator.work.standing import relied_on
from shoal.orchestrator.work.step_counter import counting

RATE_STEPS = 4
"""Steps whose accepted groups tell the share with signal: it drifts as the policy learns, so old steps are left out."""
UNJUDGED_CHECKS = 4
"""Checks without a result after which a step does not wait for a file: half a minute, in which weights that were just published arrive. Otherwise
a node could block a step with files that cannot be judged."""
MOST_UNJUDGED_FILES = 8
"""Such files of one node, waiting for another check, at which it gets no further lease. Some may be our fault, or a tool's."""


@dataclass(frozen=True)
class UnderWay:
    """Groups by the number of their work that are leased, and expected still, or wait for a verdict: of nodes in good standing, and of newcomers."""

    good: Counter[int]
    newcomers: Counter[int]

    @property
    def all(self) -> Counter[int]:
        return self.good + self.newcomers


class _LoadPart(NamedTuple):
    """Groups of one lease, or of a file that waits for a verdict."""

    node: str
    step: int
    groups: int
    given_unix: float | None = None  # of a lease, where it is known


def loads(state: RunState, steps: Sequence[int], pending: Mapping[int, int] | None = None) -> list[StepLoad]:
    """The load of each of these steps; `pending`: groups that count as pending, by step (default: all)."""
    pending = pending_groups(state) if pending is None else pending
    return [
        StepLoad(
            step=step,
            needed_groups=state.schedule.needed_groups,
            accepted_groups=accepted_groups(state, step),
            pending_groups=pending.get(step, 0),
            judged_groups=sum(file.groups for file in counted_files(state, step)),
        )
        for step in steps
    ]


def pending_groups(state: RunState) -> Counter[int]:
    """Groups that are leased or wait for a verdict, by the number of their work."""
    pending: Counter[int] = Counter()
    for part in _parts(state, state.leases.all(), state.clock()):
        pending[part.step] += part.groups
    return pending


def under_way(state: RunState, good: Collection[str], records: Sequence[LeaseRecord] | None = None) -> UnderWay:
    """What comes of which nodes; `good` are those in good standing. `records`: all leases, where they were read already."""
    now, found = state.clock(), UnderWay(Counter(), Counter())
    since = now - relied_on(state)
    for part in _parts(state, state.leases.all() if records is None else records, now):
        if part.given_unix is None or part.given_unix > since:
            counter = found.good if part.node in good else found.newcomers
            counter[part.step] += part.groups
    return found


def _parts(state: RunState, records: Sequence[LeaseRecord], now: float) -> Iterator[_LoadPart]:
    """Of a draw that has groups which a sized lease left and nobody has begun none counts: whoever is sent to the step then gets these."""
    left = {(each.lease.step, each.part.drawn_for) for each in unbegun(records) if each.part is not None}
    leases = [lease for lease in records if is_open(lease, now)]
    jobs = [job for job in state.queue.all() if not _is_unjudged(job)]
    for lease in leases:
        if lease.part is None or (lease.lease.step, lease.part.drawn_for) not in left:
            yield _LoadPart(lease.lease.node, lease.lease.step, lease.groups, lease.given_unix)
    for job in jobs:
        if job.record.part is None or (job.record.step, job.record.part.drawn_for) not in left:
            yield _LoadPart(job.record.node, job.record.step, job.record.groups)
    yield from _waiting_parts(state, leases, jobs)


def unjudged_files(state: RunState, node: str) -> int:
    """Files of this node that were checked again and again without a result and still wait."""
    return sum(job.record.node == node and _is_unjudged(job) for job in state.queue.all())


def accepted_groups(state: RunState, step: int) -> int:
    """Accepted groups that carry signal."""
    return sum(file.counted_groups for file in counted_files(state, step))


def counted_files(state: RunState, step: int) -> list[Accepted]:
    """Accepted files of a step whose groups count, in the order in which they came to count."""
    return counting(list(state.view.accepted.get(step, ())), state.codec.shape.groups)


def _waiting_parts(state: RunState, leases: Sequence[LeaseRecord], jobs: Sequence[Job]) -> Iterator[_LoadPart]:
    """Accepted files that do not count yet, while all that they wait for is under way in these leases and jobs.

    Each is given as old as the oldest lease that it waits for. Where any group of the rest is nobody's, a step must not wait.
    """
    steps = openable_steps(state)
    files = {
        step: [file for file in list(state.view.accepted.get(step, ())) if file.part is not None] for step in steps
    }
    if not any(files.values()):
        return
    under_way: dict[tuple[int, NodeId, int], set[int]] = {}
    given: dict[tuple[int, NodeId, int], float] = {}
    for lease in leases:
        if lease.part is not None:
            of = (lease.lease.step, *lease.part.drawn_for)
            under_way.setdefault(of, set()).update(lease.part.groups)
            if lease.given_unix is not None:
                given[of] = min(lease.given_unix, given.get(of, lease.given_unix))
    for job in jobs:
        if job.record.part is not None:
            under_way.setdefault((job.record.step, *job.record.part.drawn_for), set()).update(job.record.part.groups)
    groups = set(range(state.codec.shape.groups))
    for step in steps:
        counted = {(file.node, file.file) for file in counting(files[step], len(groups))}
        waiting = [file for file in files[step] if (file.node, file.file) not in counted]
        there: dict[tuple[int, NodeId, int], set[int]] = {}
        for file in waiting:
            if file.part is not None:
                there.setdefault((step, *file.part.drawn_for), set()).update(file.part.groups)
        for file in waiting:
            if file.part is not None:
                of = (step, *file.part.drawn_for)
                if groups <= there[of] | under_way.get(of, set()):
                    yield _LoadPart(file.node, step, file.groups, given.get(of))


def signal_rate(state: RunState) -> float:
    """Estimated share of groups that will count, from the newest steps."""
    newest = sorted(state.view.accepted)[-RATE_STEPS:]
    files = [file for step in newest for file in list(state.view.accepted.get(step, ()))]
    return state.schedule.rate(sum(file.groups for file in files), sum(file.counted_groups for file in files))


def _is_unjudged(job: Job) -> bool:
    return job.inconclusive >= UNJUDGED_CHECKS or bool(job.given_up_by)
