"""Changed keys at the orchestrator: into the ledger before anything else is written, and told to everybody who asks (ADR 0077).

`record` is called when the ledger was read at start. A change of the configuration starts the orchestrator again, so that it knows the newest roster.
`publish` keeps what earlier keys are still believed about beside the ledger, for readers of the store.
"""

import sys

from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.trust import KeysNotice, PastWork, role_signer
from shoal.contracts.verdicts import Opinion, Verdict
from shoal.contracts.work import EvaluationSlice
from shoal.ledger.entries import KeysChanged
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.queue import Job, OpinionNote
from shoal.storage import NotFound
from shoal.telemetry import get_logger


def record(state: RunState) -> None:
    """Bring ledger and roster together: the newer one stands, if our key is the orchestrator's in it."""
    told = state.view.keys
    if told is not None:
        state.keys.adopt(told)  # our configuration may be a copy of an earlier one
    if state.roster.keys["orchestrator"] != state.key.public:
        sys.exit("secrets/role.pem is not the orchestrator's key in the newest roster of the ledger: it was replaced")
    newest = state.keys.notice.roster
    if not newest.document.changes or newest == told:
        return
    entry = state.ledger.append(KeysChanged(keys=newest))
    if entry is not None:
        changed = newest.document.changes[-1].document
        get_logger().warning("a key was changed", entry=entry.number, role=changed.role, leaked=changed.leaked)


def notice(state: RunState) -> KeysNotice:
    """The newest keys and what earlier ones are believed about."""
    roster = state.keys.notice.roster
    if not roster.document.changes:
        return KeysNotice(roster=roster)
    return KeysNotice(roster=roster, past=sign(past_work(state), state.key))


def past_work(state: RunState) -> PastWork:
    """All that the ledger holds by now: what comes later is signed with later keys, which are not asked for it."""
    view = state.view
    accepted = [
        step
        for step, files in list(view.accepted.items())
        if files and not isinstance(state.codec.decode(step), EvaluationSlice)
    ]
    return PastWork(
        run=state.config.run,
        versions=dict(view.versions),
        step=max([*accepted, *(step for step in list(view.sealed))], default=None),
    )


def publish(state: RunState) -> None:
    """Write the notice into the store where it is another than before."""
    if not state.roster.changes:
        return
    data = notice(state).to_json()
    if data != state.published_keys:
        state.store.put(keys.KEYS_NOTICE, data)
        state.published_keys = data


def check_verdict(state: RunState, signed: Signed[Verdict]) -> None:
    """Raise `BadSignature` for a verdict that no validator of this run may hand in now."""
    verdict = signed.document
    if verdict.card is None and state.roster.own_validator_keys:
        raise BadSignature(
            "Verdict has no card of the validator's own key: start the validator again with this release"
        )
    _, role_key = role_signer(verdict, signed.signer)  # a bad card is refused below
    if state.keys.role_of(role_key) != "validator":
        raise BadSignature(f"Verdict rests on key {role_key[:12]}..., which is not the validators'")
    signed.verified(state.keys.of("validator"))


def believed_opinions(state: RunState, job: Job) -> Job:
    """The job without opinions that rest on a key which leaked since."""
    kept = [note for note in job.opinions if _is_believed(state, job, note)]
    return job if len(kept) == len(job.opinions) else job.model_copy(update={"opinions": kept})


def _is_believed(state: RunState, job: Job, note: OpinionNote) -> bool:
    leaked = {change.old for change in state.roster.changes_of("validator") if change.leaked}
    if not leaked:
        return True
    name = f"{keys.opinions(job.record.node, job.record.sha256)}{note.digest}.json"
    try:
        verdict = Opinion.from_json(state.store.get(name)).verdict
    except (NotFound, ValueError):
        return False
    problem, role_key = role_signer(verdict.document, verdict.signer)
    return not problem and role_key not in leaked
