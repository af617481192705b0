"""Handing out work: the step that a node should serve, leases for it, and checks for validators.

Comes in: requests of members and validators. Goes out: `StepInfo`, `Lease`, `ValidationJob`. Which step, and whether there is room, is decided by
`allocation`; a step's beacon is recorded as revealed in the ledger before the first node sees it.
"""

import math
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoal.contracts.node_states import MEMBERS
from shoal.contracts.pools import SAMPLER, Sampler, terms_of
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import ClaimRenewal, ClaimRequest, Lease, LeaseRequest, StepInfo, ValidationJob
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work, may_be_parted, pools_digest
from shoal.orchestrator.evaluation import credit, evaluations
from shoal.orchestrator.nodes.membership import require_pool
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.learning import fewest_groups, learning_of
from shoal.orchestrator.verdicts.verdicts import expire, over
from shoal.orchestrator.work import allocation, parts, program_time, sizing, step_counter
from shoal.orchestrator.work.beacons import beacon_of, drawn_prompts, reveal
from shoal.orchestrator.work.lease_returns import end, give_again
from shoal.orchestrator.work.leases import FIRST_OPEN_LEASES, given_up, is_open, not_heard_of
from shoal.orchestrator.work.load import MOST_UNJUDGED_FILES, UnderWay, loads, signal_rate, under_way, unjudged_files
from shoal.orchestrator.work.open_work import known, openable_steps
from shoal.orchestrator.work.records import DrawnBy, SubmissionRecord
from shoal.orchestrator.work.standing import good_nodes, leases_allowed, most_leases, on_probation, require_no_wait
from shoal.orchestrator.work.uploads import require_quota
from shoal.sampling.draw import beacon_commitment

W = TypeVar("W", bound=Work)

ANSWERS_A_SECOND = 50
"""Questions for the open step that up to 500 nodes ask together: with their signatures these fill a tenth of a core."""
LONGEST_PACE_SECONDS = 10
"""An engine without work waits that long at most: keys that only send heartbeats are members too, and shall not slow the others more."""
SURVEY_SECONDS = 0.2
"""For how long a survey answers further questions. What it shows is older than that when it arrives from another continent."""
FEW_MEMBERS = 32
"""Up to 32 may each have a survey of their own: it costs less than the rest of their request."""


@dataclass(frozen=True)
class Survey:
    """What nodes, leases and queue hold at one moment, for whoever asks. Reading it takes time by their number: 1.4 ms at 300 nodes, of one core."""

    members: list[str]
    good: Mapping[str, int]
    rate: float
    under_way: UnderWay
    held: Mapping[str, set[str]]
    """Open leases of each node."""
    left: frozenset[int]
    """Work of which groups wait for anybody who finishes them."""


def survey_of(state: RunState) -> Survey:
    """What there is now."""
    good, records, now = good_nodes(state), state.leases.all(), state.clock()
    held: defaultdict[str, set[str]] = defaultdict(set)
    for record in records:
        if is_open(record, now):
            held[record.lease.node].add(record.lease.lease)
    left = parts.steps_with_rests(records, now)
    return Survey(_members(state), good, signal_rate(state), under_way(state, good, records), held, left)


def _members(state: RunState) -> list[str]:
    return [record.node for record in state.nodes.all() if record.state in MEMBERS]


class Surveys:
    """The newest survey, kept for a moment where many nodes ask. Safe for several threads: one reads, the others wait for it."""

    def __init__(self, state: RunState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._clock = state, clock
        self._lock = threading.Lock()
        self._kept: Survey | None = None
        self._taken = 0.0

    def newest(self) -> Survey:
        with self._lock:
            kept, now = self._kept, self._clock()
            if kept is None or len(kept.members) <= FEW_MEMBERS or now - self._taken >= SURVEY_SECONDS:
                kept, self._taken = survey_of(self._state), now
                self._kept = kept
            return kept


def may_serve(state: RunState, node: str, works: Sequence[W], survey: Survey | None = None) -> list[W]:
    """The work among `works` that this node may serve, in its order: not that whose beacon was known before it was admitted."""
    if not any(work.beacon_number in state.view.revealed for work in works):
        return list(works)
    joined = state.view.joined
    own = joined.get(node)
    if own is None:
        return []
    members = survey.members if survey is not None else _members(state)
    live = [joined[member] for member in members if member in joined]
    revealed = state.view.revealed
    return [work for work in works if allocation.may_serve(own, revealed.get(work.beacon_number), live)]


class Look:
    """A survey as one node's request sees it: which work has room for it."""

    def __init__(self, state: RunState, node: str, survey: Survey | None = None) -> None:
        self._state = state
        survey = survey or survey_of(state)
        self.good, self.rate, self._under_way = survey.good, survey.rate, survey.under_way
        self.is_good = node in self.good
        self.is_trusted = self.is_good or not self.good  # without any others newcomers do everything

    def loads(self, steps: Sequence[int]) -> list[allocation.StepLoad]:
        """What counts as pending for this node: the leases of its own kind, where a step takes several files and there are both kinds."""
        found = self._under_way
        if self.is_good:
            return loads(self._state, steps, found.good)
        apart = self.good and self._state.schedule.several_files
        return loads(self._state, steps, found.newcomers if apart else found.all)

    def has_room(self, load: allocation.StepLoad) -> bool:
        """Whether this node may have a lease for this step."""
        schedule = self._state.schedule
        if not schedule.has_room(load, self.rate):
            return False
        if self.is_trusted or not schedule.several_files:
            return True
        planned = allocation.planned_groups(load.needed_groups, 0, self.rate) / self.rate
        held, groups = self._under_way.newcomers[load.step], self._state.codec.shape.groups
        return allocation.newcomers_have_room(held, groups, planned, groups * sum(self.good.values()))

    def is_short(self, load: allocation.StepLoad) -> bool:
        """Whether this node may have a lease for this step, which probably lacks groups."""
        return self._state.schedule.is_short(load, self.rate) and self.has_room(load)

    def step_to_serve(self, found: Sequence[allocation.StepLoad]) -> int | None:
        """The smallest step that is short, else the smallest with room. For a newcomer, and where a step takes one file for anybody, all leases
        count first."""
        if not (self.is_good and self._state.schedule.several_files):
            of_all = loads(self._state, [load.step for load in found], self._under_way.all)
            if (step := allocation.step_to_serve(of_all, self.is_short, self.has_room)) is not None:
                return step
        return allocation.step_to_serve(found, self.is_short, self.has_room)

    @property
    def training_needs_work(self) -> bool:
        """Whether any step that may be worked on has room for another file of a node in good standing."""
        pending = self._under_way.good if self.good else self._under_way.all
        return any(
            self._state.schedule.has_room(load, self.rate)
            for load in loads(self._state, openable_steps(self._state), pending)
        )


def pace(members: int) -> int | None:
    """Seconds until a node of this many should ask for the open step again; None where each may ask as often as it likes."""
    seconds = min(LONGEST_PACE_SECONDS, math.ceil(members / ANSWERS_A_SECOND))
    return seconds if seconds > 1 else None


def step_for(
    state: RunState,
    node: str,
    holds: Collection[int] = (),
    together: int | None = None,
    in_parts: bool = False,
    paced: bool = False,
    surveys: Surveys | None = None,
) -> StepInfo | None:
    """The work for a member; None when none is open to it. When all steps that may be worked on are under way, the smallest is shown. Raises
    `Refusal` while the node waits for its next lease.

    For a node that `holds` versions without scores, it may be a slice of an evaluation (`contracts.evaluation`) instead of a step.
    One that would have several leases `together` is told how many it may have; one that may hand in parts, how often to do so; one that is `paced`,
    when to ask again. What `surveys` show may be 0.2 s old. Nobody relies on it: a lease is given by a new look.
    """
    # Before the look: a worker asks twice a second while it waits.
    record, now = state.nodes.require_member(node), state.clock()
    require_no_wait(record, now)
    program_time.require_left(record, state.config.validation.program_seconds, now)
    latest = state.view.latest_version
    if latest is None:
        return None
    if together is not None and together != record.together:
        record = state.nodes.change(record, together=together)
    leases = min(together, leases_allowed(record.room, most_leases(state, node))) if together is not None else None
    survey = surveys.newest() if surveys is not None else survey_of(state)
    steps = may_serve(state, node, [state.codec.step(step) for step in openable_steps(state)], survey)
    look = Look(state, node, survey)
    again = pace(len(survey.members)) if paced else None
    found = look.loads([work.number for work in steps])
    step = look.step_to_serve(found)
    if holds and state.config.evaluation is not None and look.is_trusted:
        slices = evaluations.offer(state, node, holds, look.good, training_needs_work=look.training_needs_work)
        if work := next(iter(may_serve(state, node, slices, survey)), None):
            unsealed = step_counter.smallest_unsealed(state.view.sealed, state.schedule.steps)
            first = unsealed if unsealed is not None else state.schedule.steps
            load = allocation.StepLoad(work.number, work.shape.groups, 0, 0)
            return _told(state, work, latest, load, first, leases, again)
    if not steps:
        return None
    load = next((load for load in found if load.step == step), found[0])
    open_steps = openable_steps(state)  # by now it may be none: a verdict seals the last one whenever it comes
    first = open_steps[0] if open_steps else load.step
    info = _told(state, state.codec.step(load.step), latest, load, first, leases, again)
    seconds = state.config.part_seconds
    if seconds is None or not in_parts or not may_be_parted(state.codec.step(load.step)):
        return info
    return info.model_copy(update={"hand_in_every_seconds": seconds})


def _told(
    state: RunState,
    work: Work,
    latest: int,
    load: allocation.StepLoad,
    first_unsealed: int,
    leases: int | None,
    again_seconds: int | None,
) -> StepInfo:
    """The description of the work for a node; this reveals its beacon."""
    reveal(state, work)
    value = beacon_of(state, work)
    oldest, newest = work.window
    return StepInfo(
        run=state.config.run,
        step=work.number,
        beacon=value.hex(),
        commitment=beacon_commitment(value),
        min_version=oldest,
        max_version=newest,
        latest_version=latest,
        needed_groups=load.needed_groups,
        accepted_groups=load.accepted_groups,
        pending_groups=load.pending_groups,
        first_unsealed_step=first_unsealed,
        leases=leases,
        again_seconds=again_seconds,
    )


def _is_open(state: RunState, work: Work) -> bool:
    """Whether this work may be worked on now."""
    match work:
        case TrainingStep(number=step) | TableSlice(number=step):
            return step in openable_steps(state)
        case EvaluationSlice():
            return work in evaluations.open_slices(state)


def _require_room(state: RunState, node: str, work: Work, look: Look) -> None:
    """Whether another file for this work is needed of this node; raises `Refusal`. The caller holds `lease_lock`."""
    match work:
        case EvaluationSlice(number=number):
            offered = look.is_trusted and evaluations.is_offered(
                state, node, work, look.good, training_needs_work=look.training_needs_work
            )
            if not offered:
                raise Refusal(
                    ProblemCode.SLICE_UNDER_WAY,
                    f"slice {number} of an evaluation is answered, leased to or reserved for another node, or waits behind training: ask GET /v1/step"
                    " again in a second",
                )
        case TrainingStep(number=step) | TableSlice(number=step):
            load = look.loads([step])[0]
            if state.schedule.stalled(load):
                raise Refusal(ProblemCode.STEP_STALLED, stalled_text(state, load))
            if not state.schedule.has_room(load, look.rate):
                raise Refusal(
                    ProblemCode.ENOUGH_UNDER_WAY,
                    f"step {step} is probably full with pending files: ask GET /v1/step again in a second",
                )
            if not look.has_room(load):
                raise Refusal(
                    ProblemCode.NEWCOMERS_SHARE,
                    f"nodes without an accepted file of late hold their share of step {step} by now: ask GET /v1/step again in a second",
                )


def lease_for(state: RunState, request: LeaseRequest, surveys: Surveys | None = None) -> Lease:
    """A lease for a step with room, in a run with a curriculum with its prompts; raises `Refusal` when the node should look again a little later.

    Where many nodes ask together for a step that is full, what `surveys` show refuses them, without a lock. Nothing is given by it.
    """
    survey = surveys.newest() if surveys is not None else None
    lease = _lease_for(state, request, survey)
    work = state.codec.decode(lease.step)
    if not isinstance(work, TrainingStep) or work.curriculum is None:
        return lease
    node, submission = (lease.node, lease.submission) if lease.part is None else lease.part.drawn_for
    return lease.model_copy(update={"prompts": drawn_prompts(state, work, node, submission)})


def _asks_for_more(request: LeaseRequest, survey: Survey) -> bool:
    """Whether a node's request can only be for a lease that is new. It may also be for one of which it never heard, or for the rest of another's."""
    if request.held is None or not survey.held.get(request.node, set()) <= {*request.held}:
        return False
    is_trusted = not survey.good or request.node in survey.good
    return not (request.parts and is_trusted and request.step in survey.left)


def _lease_for(state: RunState, request: LeaseRequest, survey: Survey | None) -> Lease:
    require_no_wait(state.nodes.require_member(request.node), state.clock())
    work = known(state, request.step)
    if work is None or not _is_open(state, work) or not may_serve(state, request.node, [work], survey):
        raise Refusal(ProblemCode.STEP_NOT_OPEN, f"step {request.step} is not open: GET /v1/step names the open step")
    if survey is not None and _asks_for_more(request, survey) and not isinstance(work, EvaluationSlice):
        _require_room(state, request.node, work, Look(state, request.node, survey))
    with state.lease_lock:
        now = state.clock()
        _end_overdue(state)
        mine = [r for r in state.leases.all() if r.lease.node == request.node]
        record = state.nodes.require_member(request.node)
        require_pool(state, record)  # else nobody could tell any more what drew the file's tokens
        require_no_wait(record, now)
        program_time.require_left(record, state.config.validation.program_seconds, now)
        most = leases_allowed(record.room, most_leases(state, request.node))
        named = [r for r in mine if r.lease.lease in (request.held or []) and is_open(r, now)]
        if len(named) >= most:
            raise Refusal(
                ProblemCode.ENOUGH_UNDER_WAY,
                f"this node works on {len(named)} leases and may have {most}: hand one in, then ask again",
            )
        shape = work.shape
        expires = now + shape.lease_seconds
        unknown = [r for r in mine if r not in named]
        if request.held is not None and (unheard := not_heard_of(unknown, work.number, now, expires)):
            return unheard.lease
        if dropped := given_up(unknown, now, most - len(named)):
            for old in dropped:
                end(state, old, "abandoned")
            require_no_wait(state.nodes.require_member(request.node), now)
        look = Look(state, request.node)
        takes_rests = request.parts and look.is_trusted and isinstance(work, TrainingStep)
        rest = parts.left_for(state, request.node, work.number) if takes_rests else None
        if rest is None:  # a rest needs no room of its own: with it groups count that are accepted already
            _require_room(state, request.node, work, look)
        if unjudged_files(state, request.node) >= MOST_UNJUDGED_FILES:
            raise Refusal(
                ProblemCode.FILES_NOT_JUDGED,
                f"{MOST_UNJUDGED_FILES} or more files of this node had checks without a result; they count until their steps end",
            )
        require_quota(state, request.node, sum(is_open(r, now) and r.sha256 is None for r in mine), now)
        reveal(state, work)
        drawn_by = DrawnBy(pool=record.pool, sampler=_sampler_of_pool(state, record))
        is_sized = takes_rests and sizing.is_sized(state, request.node, work)
        leases = look.good.get(request.node, FIRST_OPEN_LEASES)
        if rest is not None:
            count = None
            if is_sized and rest.status == "unbegun" and rest.part is not None:
                of, places = rest.part.drawn_for, rest.part.groups
                count = sizing.groups_of_lease(state, request.node, work, of, places, leases)
            return parts.continued(state, rest, request.node, expires, drawn_by, count)
        # What was dropped comes again: numbers go on by files alone, or a node could pass over any.
        again = give_again(state, mine, work.number, expires, drawn_by, takes_parts=request.parts)

        def first(number: int) -> int:
            return sizing.groups_of_lease(
                state, request.node, work, (request.node, number), range(shape.groups), leases
            )

        lease = again or state.leases.issue(
            request.node, work.number, shape.groups, now, expires, drawn_by, first if is_sized else None
        )
        if state.config.evaluation is not None:
            given = state.leases.require(lease.lease, request.node)
            needs_work = look.training_needs_work
            credit.note_lease(state, work, given, new=again is None, training_needs_work=needs_work)
        return lease


def stalled_text(state: RunState, load: allocation.StepLoad) -> str:
    """What happened to a step that lacks signal, why as far as the newest answers tell, and what to do about it."""
    known = learning_of(state.answers.files(), fewest_groups(state.config.recipe))
    why = known.message if known.groups else "the tasks are too hard or too easy for the policy"
    return (
        f"step {load.step}: {load.judged_groups} groups were sampled and {load.accepted_groups} of {load.needed_groups} carry signal; {why}."
        " Raise spec.recipe.samplingCap to continue, or start a run with spec.tasks.offlineFilter or other tasks"
    )


def end_overdue_leases(state: RunState) -> int:
    """Abandon leases whose time is over, at their nodes' account; returns how many."""
    with state.lease_lock:
        return _end_overdue(state)


def _end_overdue(state: RunState) -> int:
    now, ended = state.clock(), 0
    for record in state.leases.all():
        if record.status != "open" or is_open(record, now):
            continue
        end(state, record, "abandoned")
        ended += 1
    return ended


def claim(state: RunState, request: ClaimRequest) -> ValidationJob | None:
    """A file for this validator to check; files of sealed steps and evicted nodes are settled as expired on the way. None when nothing waits."""
    while True:
        seconds = state.config.validation.claim_seconds
        job = state.queue.claim(request.validator, state.clock(), seconds, request.versions)
        if job is None:
            return None
        record = job.record
        program_time.begin(state, request.validator, record.node, record.sha256)
        if reason := over(state, record):
            expire(state, record, reason)
            continue
        work = state.codec.decode(record.step)
        oldest, newest = work.window
        return ValidationJob(
            claim=secrets.token_hex(16),
            run=record.run,
            node=record.node,
            lease=record.lease,
            step=record.step,
            submission=record.submission,
            sha256=record.sha256,
            size=record.size,
            beacon=beacon_of(state, work).hex(),
            min_version=oldest,
            max_version=newest,
            accepted_files=state.view.accepted_in_a_row[record.node],
            on_probation=on_probation(state, record.node),
            second_opinion=bool(job.opinions),
            sampler=sampler_of(state, record),
            policy_version=record.policy_version,
            program_seconds=program_time.left_of_node(state, record.node),
            part=record.part,
            pools=pools_digest(work),
        )


def renew(state: RunState, renewal: ClaimRenewal) -> None:
    """Let a validator that is still at work keep its file; raises `Refusal` when its verdict would be for nothing."""
    program_time.charge(state, renewal.validator, renewal.node, renewal.sha256, renewal.program_seconds)
    job = state.queue.get(renewal.node, renewal.sha256)
    reason = over(state, job.record) if job is not None else "it already has a verdict"
    until = state.clock() + state.config.validation.claim_seconds
    if not reason and not state.queue.renew(renewal.validator, renewal.node, renewal.sha256, until):
        reason = "another validator checks it, or will"
    if reason:
        raise Refusal(
            ProblemCode.CLAIM_OVER, f"file {renewal.sha256[:12]}... needs no check by this validator: {reason}"
        )


def sampler_of(state: RunState, record: SubmissionRecord) -> Sampler | None:
    """The engine that drew a file's tokens, as noted with its lease; None where it is unknown or not to be redrawn. A node's own words do not count.

    A node that changes its pool takes no file with it: honest ones are not judged by another sampler, others do not escape theirs.
    """
    if record.drawn_by is not None:
        return record.drawn_by.sampler
    return _sampler_of_pool(state, state.nodes.get(record.node))


def _sampler_of_pool(state: RunState, record: NodeRecord | None) -> Sampler | None:
    """The engine that draws a node's tokens now, by the terms of its pool. A loss of Redis loses the pool; then it is the engine that all pools
    agree on. A pool that the run has no more gave no leave to draw without a seed."""
    terms = terms_of(state.config.pools, record.pool) if record is not None else None
    if terms is None and record is not None and record.pool:
        return SAMPLER
    samplers = {each.drawn_by for each in ([terms] if terms is not None else state.config.pools)}
    return samplers.pop() if len(samplers) == 1 else None
