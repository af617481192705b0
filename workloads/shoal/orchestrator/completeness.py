"""Whether a run is over: what it is for is made, and nobody waits any more for the scores of its last version. Reads memory only."""

from shoal.orchestrator.run_state import RunState

FOLD_SECONDS = 30.0
"""After the wait for the last version's evaluation: what there is of it is written meanwhile, or the run is complete without."""


def complete(state: RunState) -> bool:
    """Whether the run has made what it is for, and its last version is scored or waited for long enough."""
    return trained(state) and _last_is_scored(state)


def trained(state: RunState) -> bool:
    """Whether the run has made what it is for; its last version may still have to be scored."""
    return state.schedule.complete(state.view.latest_version, state.view.datasets)


def final_wait_is_over(state: RunState, more_seconds: float = 0.0) -> bool:
    """Whether the last version is there for as long as the run waits for its evaluation, and `more_seconds`."""
    settings, announced = state.config.evaluation, state.view.version_unix.get(state.config.steps)
    if settings is None or announced is None:
        return False
    return trained(state) and state.clock() >= announced + settings.final_wait_seconds + more_seconds


def _last_is_scored(state: RunState) -> bool:
    """Whether nothing is waited for any more of the evaluation of the last version."""
    if state.config.evaluation is None or final_wait_is_over(state, FOLD_SECONDS):
        return True
    return all((state.config.steps, each.name) in state.evaluations for each in state.plan.benchmarks)
