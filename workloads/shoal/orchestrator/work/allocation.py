"""Who works on which step: enough work is handed out to fill a step, more only to whoever would have none. Pure.

In: how many groups a step needs, has and awaits. Out: the step that a node should serve now, or None: wait. Called for `GET /v1/step` and
`POST /v1/leases`. Workers are sent to the smallest step that still needs work; when what is pending will probably fill it, they work ahead on the
next one that the newest version may feed: a worker that waits for validators is wasted (paper section 2.1, asynchrony). When that is so of all such
steps, they make sure of the smallest ones: what they do beyond the need may expire, but they would have done nothing (ADR 0144).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

OVERSHOOT = 1.25
"""A worker that would have nothing to do makes sure of a step: groups with signal may exceed its need by one standard deviation of those still
missing. The most is a quarter. Where half carry signal: 2 of the 8 expected of 16, 11 of 256, and 4 once 224 of these are there."""
PRIOR_RATE = 0.5
"""Share of groups with signal assumed before any were judged: the offline filter keeps problems of middling difficulty."""
PRIOR_GROUPS = 8
"""Weight of that assumption, in groups: two files of the default size outweigh it."""


NEWCOMERS_SHARE = 0.25
"""Of the groups planned for a step, the part that nodes without good standing may always hold. It is planned on top of what the others do. A step
samples a quarter more at most, and only while nodes are new."""


@dataclass(frozen=True)
class StepLoad:
    """One openable step, in groups. `pending_groups` are leased or wait for a verdict, `judged_groups` were accepted, with signal or without."""

    step: int
    needed_groups: int
    accepted_groups: int
    pending_groups: int
    judged_groups: int = 0


def signal_rate(judged_groups: int, carrying_groups: int) -> float:
    """Estimated share of groups that carry signal, between 0 and 1; never 0."""
    return (carrying_groups + PRIOR_RATE * PRIOR_GROUPS) / (judged_groups + PRIOR_GROUPS)


def planned_groups(needed: int, accepted: int, rate: float) -> float:
    """Groups with signal that are planned at most for a step which needs this many, where this share carries signal.

    Only the outcome of those that it does not have yet is uncertain: of m missing groups, m / rate are sampled, with a variance of m * (1 - rate).
    """
    return needed + min((OVERSHOOT - 1) * needed, math.sqrt(max(0, needed - accepted) * (1 - rate)))


def is_short(load: StepLoad, rate: float) -> bool:
    """Whether this step probably lacks groups when all that is under way has come."""
    return load.accepted_groups + load.pending_groups * rate < load.needed_groups


def has_room(load: StepLoad, rate: float) -> bool:
    """Whether another file for this step may be needed."""
    if load.accepted_groups >= load.needed_groups:
        return False
    expected = load.accepted_groups + load.pending_groups * rate
    return is_short(load, rate) or expected < planned_groups(load.needed_groups, load.accepted_groups, rate)


def newcomers_have_room(newcomers_groups: int, file_groups: int, planned_groups: float, good_groups: int) -> bool:
    """Whether newcomers may hold another file of a step beside what they hold.

    The rest of a step is kept for nodes in good standing, as far as these could hold it: `good_groups` are those of all their leases.
    One file is always permitted.
    """
    share = max(file_groups, NEWCOMERS_SHARE * planned_groups, planned_groups - good_groups)
    return newcomers_groups + file_groups <= share


def is_stalled(load: StepLoad, cap: int) -> bool:
    """Whether a step got `cap` times the groups that it needs and too few of them carry signal: more of the same would be sampled forever."""
    return load.accepted_groups < load.needed_groups and load.judged_groups >= cap * load.needed_groups


def step_to_serve(
    loads: Sequence[StepLoad], short: Callable[[StepLoad], bool], room: Callable[[StepLoad], bool]
) -> int | None:
    """The smallest step that is short, else the smallest with room; None when all that may be worked on is under way."""
    by_step = sorted(loads, key=lambda load: load.step)
    return next((load.step for fits in (short, room) for load in by_step if fits(load)), None)


def may_serve(joined_number: int, revealed_number: int | None, others_joined: Sequence[int]) -> bool:
    """Whether a node may serve a step: only if the ledger has its admission before the reveal of the step's beacon.

    A node that could choose its key after the reveal could choose its prompts. When no live node was admitted in time, later ones may serve: else one
    lost pool would stop the run forever. `others_joined` are the ledger numbers of admission of all live nodes.
    """
    if revealed_number is None or joined_number < revealed_number:
        return True
    return not any(number < revealed_number for number in others_joined)
