"""What a run's status says of its exchanges with other islands: the last round, what was missed since, and who is in the way. Pure.

In: what the trainer told the orchestrator, and what is wrong with the group's list. Out: `status.islands` and the condition `Exchanging`. Called by
`run_status`.
"""

from datetime import UTC, datetime
from typing import Any

from shoal.contracts.islands import IslandsProgress
from shoal_operator.engine.conditions import Condition, condition

MISSED_LIMIT = 3
"""One or two missed exchanges are what a restart of a member, or steps of different lengths, cost now and then."""


def islands_status(said: IslandsProgress) -> dict[str, Any]:
    """`status.islands`."""
    made = None if said.made_unix is None else datetime.fromtimestamp(said.made_unix, UTC)
    return {
        "round": said.round,
        "roundTime": None if made is None else made.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "members": said.members,
        "missed": said.missed,
        "differing": [{"member": one.island, "setting": one.setting, "values": one.values} for one in said.differing],
        "absent": said.absent,
        "problem": said.problem or None,
    }


def exchanging(said: IslandsProgress | None, group_problem: str, *, running: bool, trains: bool) -> Condition:
    """Whether rounds are made. `said`: None while nobody knows; `group_problem`: what is wrong with the list of members, in words; `trains`: an
    attempt of the trainer runs."""
    if not running:
        return condition("Exchanging", None, "NotRunning")
    if group_problem:
        goes_on = (
            "the trainer continues with the previous list" if trains else "no trainer starts until the list is correct"
        )
        return condition("Exchanging", False, "MembersInvalid", f"{group_problem} ({goes_on})")
    if said is None:
        return condition("Exchanging", None, "NothingHeard", "the trainer has not reported an exchange yet")
    if said.differing:
        found = ", ".join(f"{one.island} in {one.setting} ({one.values})" for one in said.differing)
        return condition(
            "Exchanging",
            False,
            "SettingsDiffer",
            f"no exchange takes place while settings differ: {found}; make them the same in all manifests",
        )
    missed = _missed(said)
    if said.missed >= MISSED_LIMIT:
        return condition("Exchanging", False, "ExchangesMissed", missed)
    if said.made_unix is None:
        return condition("Exchanging", None, "NoRoundYet", missed)
    made = f"round {said.round} was exchanged with {', '.join(said.members)}"
    absent = f"; {', '.join(said.absent)} did not take part" if said.absent and not said.missed else ""
    return condition("Exchanging", True, "RoundMade", f"{made}{absent}" + (f"; {missed}" if missed else ""))


def _missed(said: IslandsProgress) -> str:
    if not said.missed:
        return ""
    since = f" since round {said.round}" if said.round else ""
    times = "1 exchange" if said.missed == 1 else f"{said.missed} exchanges"
    absent = f"; {', '.join(said.absent)} did not take part" if said.absent else ""
    return f"{times} failed{since}{absent}" + (f" ({said.problem})" if said.problem else "")
