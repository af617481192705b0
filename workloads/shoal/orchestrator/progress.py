"""`GET /v1/run`: the run in aggregates, for status, live view and report. Reads memory and a few keys of Redis, never the store."""

from shoal.contracts.answers import LearningProgress
from shoal.contracts.hub import HubCommit
from shoal.contracts.problems import Refusal
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.protocol import RunProgress
from shoal.orchestrator.completeness import complete, trained
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.learning import fewest_groups, learning_of
from shoal.orchestrator.work import handout
from shoal.orchestrator.work.load import loads
from shoal.orchestrator.work.open_work import open_step


def run_progress(state: RunState) -> RunProgress:
    """Aggregates of the whole run."""
    view, config = state.view, state.config
    step = open_step(state)
    load = loads(state, [step])[0] if step is not None else None
    nodes = state.nodes.counts()
    return RunProgress(
        run=config.run,
        steps_total=state.schedule.steps,
        open_step=step,
        waiting_for=waiting_for(state, step, nodes.get("Healthy", 0)),
        latest_version=view.latest_version,
        accepted_groups=load.accepted_groups if load is not None else 0,
        needed_groups=state.schedule.needed_groups,
        pending_groups=load.pending_groups if load is not None else 0,
        files_accepted=view.files_accepted,
        files_rejected=view.files_rejected,
        files_expired=state.files_expired,
        files_inconclusive=int(state.redis.get(f"{state.prefix}:inconclusive") or 0),
        files_pending=state.queue.size(),
        reject_reasons=dict(view.reject_reasons),
        nodes=nodes,
        completion_tokens_accepted=view.tokens_accepted,
        groups_accepted_total=view.groups_with_signal,
        groups_dropped_total=view.groups_judged - view.groups_with_signal,
        judged_groups=load.judged_groups if load is not None else 0,
        stalled_on_signal=handout.stalled_text(state, load)
        if load is not None and state.schedule.stalled(load)
        else "",
        learning=learning(state),
        trainer_phase=state.trainer.phase if state.trainer is not None else "",
        trainer_note=state.trainer.note if state.trainer is not None else "",
        last_step=state.last_step,
        proofs=_proof_terms(state),
        dataset=state.trainer.dataset if state.trainer is not None else None,
        evaluations=evaluations.progress(state),
        best_version=evaluations.best(state),
        islands=state.trainer.islands if state.trainer is not None else None,
        commits=_commits(state),
        version_bytes=state.version_bytes,
        store_away_since=state.store_away_since,
        complete=complete(state),
    )


def learning(state: RunState) -> LearningProgress | None:
    """Whether the newest groups carry signal; None for a run that learns from no groups.

    Anybody who reaches this service reads it. Tasks of an open pool are known to whoever joins; where the service is reached from outside and no pool
    is open, samples are left out, for the tasks may be private: the page and the store have them.
    """
    config = state.config
    if config.mode != "Train":
        return None
    found = learning_of(state.answers.files(), fewest_groups(config.recipe))
    private = config.addresses.public_orchestrator is not None and not any(pool.open for pool in config.pools)
    return found.model_copy(update={"samples": []}) if private else found


def waiting_for(state: RunState, step: int | None, healthy_nodes: int) -> str:
    """The event that the run waits for, in words; empty while nodes work on an open step."""
    if complete(state):
        return ""
    if step is not None:
        return "" if healthy_nodes else f"a healthy node to work on step {step}"
    if trained(state):
        return f"version {state.config.steps}, the last one, to be scored"
    return state.schedule.waits_for(state.view.sealed, state.view.latest_version)


def _commits(state: RunState) -> list[HubCommit] | None:
    try:
        return state.prepared.commits
    except Refusal:
        return None


def _proof_terms(state: RunState) -> ProofTerms | None:
    """Thresholds of proofs in force and their error rates; None while prepare has not finished."""
    try:
        return ProofTerms.in_force(state.config.validation.thresholds, state.prepared.proof_profile)
    except Refusal:
        return None
