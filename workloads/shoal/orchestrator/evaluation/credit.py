"""The credit that training earns for evaluation, in Redis.

Each new training lease earns `share / (1 - share)`, a slice takes 1 while training needs work. A slice's lease that ends
without a file gives back what it took, and a training lease that comes a second time earns nothing. So taking leases and handing them back
neither drains the credit nor fills it. Called by `work` and `lease_returns`. What Redis loses begins at 0.
"""

from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.orchestrator.evaluation.plan import credit_of_a_lease
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.records import LeaseRecord

MOST_CREDIT = 2.0
"""Evaluation leases that training can have earned ahead: credit earned without an evaluation to do is not spent at once."""

_ADD = """
local credit = tonumber(redis.call('GET', KEYS[1]) or '0') + tonumber(ARGV[1])
credit = math.max(0, math.min(tonumber(ARGV[2]), credit))
redis.call('SET', KEYS[1], string.format('%.17g', credit))
"""
"""Atomic, because leases end in several threads."""


def credit(state: RunState) -> float:
    """Evaluation leases that training has earned and nobody has taken."""
    return float(state.redis.get(_key(state)) or 0.0)


def note_lease(state: RunState, work: Work, record: LeaseRecord, *, new: bool, training_needs_work: bool) -> None:
    """Count a lease for this work that was just given; `new`: it was not given before. The caller holds `lease_lock`."""
    settings = state.config.evaluation
    if settings is None:
        return
    match work:
        case EvaluationSlice():
            if training_needs_work:
                _add(state, -1.0)
                state.leases.put(record.model_copy(update={"charged": True}))
        case TrainingStep() | TableSlice():
            if new:
                _add(state, credit_of_a_lease(settings.share))


def give_back(state: RunState, record: LeaseRecord) -> None:
    """Return what a lease took that ended without a file."""
    if record.charged:
        _add(state, 1.0)


def _add(state: RunState, amount: float) -> None:
    state.redis.eval(_ADD, 1, _key(state), repr(amount), repr(MOST_CREDIT))


def _key(state: RunState) -> str:
    return f"{state.prefix}:evaluation-credit"
