"""Which work is open, by the rules of the run's mode and what the ledger has; and what a number of a record stands for."""

from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, UnknownWorkError, Work
from shoal.orchestrator.run_state import RunState


def open_step(state: RunState) -> int | None:
    """The step that the run waits for, the smallest openable one; None while none may be worked on."""
    return next(iter(openable_steps(state)), None)


def openable_steps(state: RunState) -> list[int]:
    """Steps that may be worked on, smallest first."""
    return state.schedule.openable_steps(state.view.sealed, state.view.latest_version)


def known(state: RunState, number: int) -> Work | None:
    """The work of a record's number; None for a slice of an evaluation that the run does not have, or not any more."""
    try:
        return state.codec.decode(number)
    except UnknownWorkError:
        return None


def closed(state: RunState, work: Work | None) -> bool:
    """Whether no further file of this work counts; none of unknown work does."""
    match work:
        case None:
            return True
        case TrainingStep(number=step) | TableSlice(number=step):
            return step in state.view.sealed
        case EvaluationSlice(version=version, benchmark=benchmark):
            latest = state.view.latest_version
            return (
                work.number in state.view.evaluated
                or (version, benchmark.name) in state.evaluations
                or (latest is not None and state.plan.is_over(version, latest))
            )
