"""Whether a run is over: its result is made, and the wait for the scores of its last version has ended. Reads memory only."""

from shoal.orchestrator.run_state import RunState

FOLD_SECONDS = 30.0
"""Seconds after the wait for the last version's evaluation, in which its partial result is written."""


def complete(state: RunState) -> bool:
    """Whether the run has made its result, and its last version is scored or the wait for its scores is over."""
    return trained(state) and _last_is_scored(state)


def trained(state: RunState) -> bool:
    """Whether the run has made its result; its last version may still need scores."""
    return state.schedule.complete(state.view.latest_version, state.view.datasets)


def final_wait_is_over(state: RunState, more_seconds: float = 0.0) -> bool:
    """Whether the last version was announced longer ago than the run waits for its evaluation, plus `more_seconds`."""
    settings, announced = state.config.evaluation, state.view.version_unix.get(state.config.steps)
    if settings is None or announced is None:
        return False
    return trained(state) and state.clock() >= announced + settings.final_wait_seconds + more_seconds


def _last_is_scored(state: RunState) -> bool:
    """Whether nothing is waited for any more of the evaluation of the last version."""
    if state.config.evaluation is None or final_wait_is_over(state, FOLD_SECONDS):
        return True
    return all((state.config.steps, each.name) in state.evaluations for each in state.plan.benchmarks)
