"""What `shoal ledger` prints: entries, totals and findings as lines and as JSON records. Pure; foreign text passes through `plain`."""

from collections.abc import Iterable
from datetime import UTC, datetime

from shoal.contracts.roster import Roster
from shoal.ledger.audit import AuditReport, NodeTotals
from shoal.ledger.entries import Accepted, KeysChanged, LedgerEntry, NodeInvited, RunDeclared, TermsChanged
from shoal.ledger.facts import RunTerms
from shoal.ledger.source import Trust
from shoal.text import count, plain

SHORT = 16
"""Hex digits of a key in a line: 64 bits tell nodes apart, and to grind a key with another's beginning costs more than it gains."""
MOST_TERMS = 5
"""The newest terms are shown in words; JSON has them all."""


def is_chosen(entry: LedgerEntry, node: str | None, kind: str | None) -> bool:
    """Whether an entry was asked for; None: any node, any kind."""
    return (node is None or (entry.node or "").startswith(node)) and (kind is None or entry.kind == kind)


def entry_line(entry: LedgerEntry) -> str:
    """One entry as one line."""
    parts = [f"{entry.number:>8}", when(entry.unix), f"{entry.kind:<17}"]
    said = entry.model_dump()
    if entry.node is not None:
        parts.append(f"node {entry.node[:SHORT]}")
    for name in ("step", "submission", "version", "tokens", "groups", "signal_groups"):
        if said[name] is not None:
            parts.append(f"{name.replace('_', ' ')} {said[name]}")
    if said["digest"] is not None:
        parts.append(f"digest {said['digest'][:SHORT]}")
    match entry.fact:
        case Accepted(compute=compute, claimed_rows=claimed):
            parts += [f"flops {compute.flops:.3g}"] if compute is not None else []
            parts += [f"rows not scored again {claimed}"] if claimed else []
        case NodeInvited(invited=invited):
            parts.append(f"pool {invited.pool}")
        case RunDeclared(terms=terms) | TermsChanged(terms=terms):
            parts.append(terms_line(terms))
        case KeysChanged(keys=keys):
            parts.append(changes_line(keys.document))
        case _:
            pass
    if said["detail"]:
        parts.append(plain(said["detail"], 200))
    return "  ".join(parts)


def changes_line(roster: Roster) -> str:
    """The newest change of every key that was changed."""
    newest = {each.document.role: each.document for each in roster.changes}
    return f"change {len(roster.changes)}: " + ", ".join(
        f"{role} {change.new[:SHORT]}{' (leaked before)' if change.leaked else ''}" for role, change in newest.items()
    )


def terms_line(terms: RunTerms) -> str:
    """Whose run it is and by what terms, in a line."""
    pools = ", ".join(f"{pool.name}{' (open)' if pool.open else ''}" for pool in terms.pools) or "none"
    more = f" and {count(terms.pool_count - len(terms.pools))} more" if terms.pool_count > len(terms.pools) else ""
    return (
        f"{terms.domain} of {plain(terms.model_id, 100)}, owner {terms.owner[:SHORT]}; credit after {count(terms.probation_files)} accepted files;"
        f" slash votes {terms.slash_votes}, slashing {terms.slashing}; pools {pools}{more}"
    )


def when(unix: float) -> str:
    """A time in UTC; `-` when it is none that a clock shows."""
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "-"


def state_of(node: NodeTotals) -> str:
    """A node's place in the run, as the ledger has it last."""
    if node.evicted:
        return "slashed"
    return "dead" if node.dead else "joined" if node.joined else "unknown"


def _ordered(report: AuditReport) -> Iterable[tuple[str, NodeTotals]]:
    return sorted(report.nodes.items(), key=lambda item: (-item[1].tokens, item[0]))


def totals_lines(report: AuditReport, probation_files: int | None) -> list[str]:
    """A table of nodes, largest contribution first, and the sum. Credit counts after `probation_files`, None: as the ledger's terms say."""
    lines = [
        f"{'node':<64}  {'state':<8}{'accepted':>9}{'rejected':>9}{'groups':>9}{'tokens':>14}{'flops':>10}{'credit':>14}"
    ]
    for node, totals in _ordered(report):
        lines.append(
            f"{node:<64}  {state_of(totals):<8}{count(totals.files_accepted):>9}{count(totals.files_rejected):>9}"
            f"{count(totals.groups):>9}{count(totals.tokens):>14}{totals.flops:>10.3g}{count(totals.credit(probation_files)):>14}"
        )
    credited = sum(node.credit(probation_files) for node in report.nodes.values())
    lines.append(
        f"{count(report.tokens)} tokens accepted, {count(credited)} credited,"
        f" {count(report.forfeited)} forfeited by slashed nodes and credited to nobody"
    )
    flops = sum(node.credited_flops(probation_files) for node in report.nodes.values())
    lines.append(f"{report.flops:.3g} floating-point operations by estimate, {flops:.3g} of what is credited")
    lines.append(probation_line(report, probation_files))
    lines += claimed_lines(report)
    return lines


def claimed_lines(report: AuditReport) -> list[str]:
    """How many rows nobody scored again; none where all were."""
    words = "accepted rows have the reward that their worker claimed: their scores cannot be made again"
    return [f"{count(report.claimed_rows)} {words}"] if report.claimed_rows else []


def probation_line(report: AuditReport, probation_files: int | None) -> str:
    """From how many accepted files on a node's work counts, and who says so."""
    if probation_files is not None:
        return f"credit counts after {count(probation_files)} accepted files (--probation)"
    if report.in_force is None:
        return "credit counts from the first accepted file: this ledger is older than terms"
    return f"credit counts after {count(report.in_force.probation_files)} accepted files (the ledger's terms)"


def totals_records(report: AuditReport, probation_files: int | None) -> dict[str, object]:
    """The same for programs."""
    terms = report.in_force
    return {
        "run": report.run,
        "probation_files": probation_files if probation_files is not None else terms.probation_files if terms else 0,
        "tokens": report.tokens,
        "flops": report.flops,
        "forfeited": report.forfeited,
        "claimed_rows": report.claimed_rows,
        "nodes": [
            {
                "node": node,
                "state": state_of(totals),
                "files_accepted": totals.files_accepted,
                "files_rejected": totals.files_rejected,
                "groups": totals.groups,
                "tokens": totals.tokens,
                "flops": totals.flops,
                "credit": totals.credit(probation_files),
                "credited_flops": totals.credited_flops(probation_files),
            }
            for node, totals in _ordered(report)
        ],
    }


def report_lines(report: AuditReport, trust: Trust, documents: bool, votes: str) -> list[str]:
    """The checked parts, and what they prove."""
    kinds = ", ".join(f"{plain(kind)} {count(number)}" for kind, number in sorted(report.kinds.items()))
    lines = [
        f"run {plain(report.run)}: {count(report.entries)} entries, {count(len(report.nodes))} nodes",
        f"entries: {kinds or 'none'}",
        *(f"terms from entry {each.number} on: {terms_line(each.terms)}" for each in report.terms[-MOST_TERMS:]),
        *(
            [f"changes of keys: {count(report.key_changes)}, each signed along the run's keys"]
            if report.key_changes
            else []
        ),
        *([undeclared_line(report)] if report.undeclared else []),
        f"checkpoints: {count(report.checkpoints)}, the newest that fits covers {count(report.covered)} entries;"
        f" {count(report.entries - report.covered)} came after it",
    ]
    lines += claimed_lines(report)
    if documents:
        lines.append(f"documents compared: {count(report.documents)}")
        lines.append(f"rejects with all the findings that they take ({votes}): {count(report.repeated_rejects)}")
    lines.append(f"trusted: run key {trust.run_key} (from {plain(trust.origin, 200)})")
    if not trust.given:
        lines.append(
            "this key comes from the checked data: compare it with the key that you were given, or use --run-key"
        )
    lines.append(
        "the ledger is good" if not report.problems else f"the ledger is NOT good: {len(report.problems)} findings"
    )
    return lines


def undeclared_line(report: AuditReport) -> str:
    """A warning that no entry declares the run and its terms."""
    which = "all entries" if report.undeclared == report.entries else f"the first {count(report.undeclared)} entries"
    return (
        f"NOT DECLARED: {which} come before any that says whose run it is and by what terms; there, invites are not checked, credit counts from the"
        " first file; and one validator is enough for a reject unless --slash-votes or the configuration asks for more. Earlier releases wrote such"
        " ledgers; one that began with this release begins with run-declared"
    )


def votes_words(slash_votes: int | None, report: AuditReport, configured: int | None) -> str:
    """How many findings a reject takes, and who says so."""
    if slash_votes is None and report.in_force is not None:
        return f"by the terms of its time, now {report.in_force.slash_votes}, 2 where it rests on a threshold"
    votes = slash_votes or configured or 1
    return "2 where they rest on a threshold" if votes == 1 else f"{votes} of as many validators"


def report_record(report: AuditReport, trust: Trust) -> dict[str, object]:
    """The same for programs."""
    return {
        "run": report.run,
        "good": not report.problems,
        "entries": report.entries,
        "entries_undeclared": report.undeclared,
        "claimed_rows": report.claimed_rows,
        "nodes": len(report.nodes),
        "key_changes": report.key_changes,
        "kinds": dict(sorted(report.kinds.items())),
        "terms": [{"entry": each.number, **each.terms.model_dump(mode="json")} for each in report.terms],
        "checkpoints": report.checkpoints,
        "entries_covered": report.covered,
        "documents": report.documents,
        "repeated_rejects": report.repeated_rejects,
        "run_key": trust.run_key,
        "run_key_given": trust.given,
        "problems": [plain(problem, 500) for problem in report.problems],
    }
