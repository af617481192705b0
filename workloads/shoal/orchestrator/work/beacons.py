"""Beacons in the ledger, committed to and later revealed, and the prompts that they draw.

The ledger has a step's beacon under the step's own number, and that of a version's evaluation under the number of its first slice. Its commitment
comes before its reveal, and so do those of the work that may follow soon. Called by `handout` before a node sees a beacon, and by `recovery`.
"""

from shoal.contracts import keys
from shoal.contracts.steps import Beacon
from shoal.contracts.work import EvaluationSlice, LeasePart, TableSlice, TrainingStep, Work, draw
from shoal.ledger.entries import BeaconCommitted, BeaconRevealed
from shoal.orchestrator.run_state import RunState
from shoal.sampling.draw import beacon, beacon_commitment


def beacon_of(state: RunState, work: Work) -> bytes:
    return _beacon(state, work.beacon_number)


def drawn_prompts(state: RunState, work: Work, node: str, submission: int, part: LeasePart | None = None) -> list[int]:
    """Rows of the task table that a file's groups are on, in their order, drawn again from the beacon."""
    value = beacon_of(state, work)
    drawn = draw(work, beacon=value, run=state.config.run, node=node, submission=submission, part=part)
    return [group.prompt_index for group in drawn]


def commit_steps(state: RunState, through: int) -> None:
    """Put the commitments of all steps up to `through` into the ledger."""
    for step in range(min(through + 1, state.schedule.steps)):
        _commit(state, step)


def commit_evaluation(state: RunState, version: int | None) -> None:
    """Put the commitment for the evaluation of a version into the ledger; nothing for None or in a run without benchmarks."""
    if version is not None and state.plan.is_due(version):
        _commit(state, state.codec.first_number(version))


def reveal(state: RunState, work: Work) -> None:
    """Record that the beacon of this work becomes known, after its commitment and those of the work that may follow soon."""
    number = work.beacon_number
    if number in state.view.revealed:
        return
    match work:
        case TrainingStep() | TableSlice():
            commit_steps(state, number + state.schedule.beacons_ahead)
        case EvaluationSlice(version=version):
            commit_evaluation(state, version)
            commit_evaluation(state, state.plan.next_due(version))
    value = Beacon(run=state.config.run, step=number, beacon=_beacon(state, number).hex())
    state.store.create(keys.beacon(number), value.to_json())
    state.ledger.append(BeaconRevealed(step=number, commitment=beacon_commitment(_beacon(state, number))))


def _beacon(state: RunState, number: int) -> bytes:
    return beacon(state.run_secret, state.config.run, number)


def _commit(state: RunState, number: int) -> None:
    if number not in state.view.committed:
        state.ledger.append(BeaconCommitted(step=number, commitment=beacon_commitment(_beacon(state, number))))
