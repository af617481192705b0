"""The batch of a step: which groups of its accepted files carry signal, and `steps/<step>/batch.json` once there are enough.

Called for every accepted file, by `recovery` and by the background work, which seals what a crash left open.
"""

import hashlib

from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import TrainingStep
from shoal.ledger.entries import BatchSealed
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.beacons import beacon_of, drawn_prompts
from shoal.orchestrator.work.load import accepted_groups, counted_files
from shoal.orchestrator.work.schedule import told_apart
from shoal.orchestrator.work.step_counter import AcceptedFile, select_batch
from shoal.telemetry import get_logger


def accepted_file(state: RunState, verdict: Verdict) -> AcceptedFile:
    """An accepted file of a step with its groups told apart by signal; prompts are drawn again from the beacon."""
    name = (verdict.node, verdict.sha256)
    if name not in state.accepted_files:
        work = state.codec.step(verdict.step)
        prompts = drawn_prompts(state, work, verdict.node, verdict.submission, verdict.part)
        state.accepted_files[name] = told_apart(state.schedule, work, verdict, prompts)
    return state.accepted_files[name]


def seal_if_full(state: RunState, step: int) -> StepBatch | None:
    """Write `batch.json` of a step that has enough groups, once; the batch, or None when it is not full or was sealed before.

    The object comes first and the ledger second: after a crash between the two, the ledger will name the existing object.
    """
    with state.settle_lock:
        needed = state.schedule.needed_groups
        if step in state.view.sealed or accepted_groups(state, step) < needed:
            return None
        value = beacon_of(state, state.codec.step(step)).hex()
        batch = select_batch(state.config.run, step, value, needed, _accepted_files(state, step))
        if batch is None:
            return None
        data = batch.to_json()
        if not state.store.create(keys.step_batch(step), data):
            data = state.store.get(keys.step_batch(step))
            batch = StepBatch.from_json(data)
        state.ledger.append(BatchSealed(step=step, batch=hashlib.sha256(data).hexdigest(), groups=batch.groups))
        for file in state.view.accepted[step]:
            state.accepted_files.pop((file.node, file.file), None)
        work = state.codec.step(step)
        if isinstance(work, TrainingStep) and work.curriculum is not None:
            pools = work.curriculum.of(step)
            state.pool_groups.update(pools.pool_of(prompt) for prompt, _ in batch.solved)
        get_logger().info("step sealed", step=step, files=len(batch.files), groups_dropped=batch.groups_dropped)
        return batch


def _accepted_files(state: RunState, step: int) -> list[AcceptedFile]:
    """The accepted files of a step that count, from memory or from their verdicts in the store."""
    files = []
    for file in counted_files(state, step):
        known = state.accepted_files.get((file.node, file.file))
        if known is None:
            data = state.store.get(keys.verdict(file.node, file.file))
            known = accepted_file(state, Signed[Verdict].from_json(data).document)
        files.append(known)
    return files
