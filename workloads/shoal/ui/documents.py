"""What the service answers, as JSON-ready dicts, from what `watch` has seen. Pure.

All text that a process, a manifest or a stranger wrote passes through `plain`, so that the page gets no control characters; the page writes it as
text and never as markup. Figures stay numbers; the page formats them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.contracts.vine import VineSettings
from shoal.contracts.work import WorkKind, kind_of
from shoal.ledger.entries import LedgerEntry, RunDeclared, TermsChanged
from shoal.ledger.text import state_of, terms_line
from shoal.report.continuations import completions_of
from shoal.report.evaluations import COLUMNS, score_rows
from shoal.report.view import view_model
from shoal.text import plain
from shoal.ui.timeline import MOST_STEPS, intervals, step_rows
from shoal.ui.watch import Seen

PAGE = 50
MOST_NODES = 500
"""Keys are free, and anybody may come with new ones: nodes with the most tokens are shown."""
LONGEST_TEXT = 4000

CURVES = (
    "reward", "task_reward", "length_penalty", "loss", "gradient_norm", "gradient_norm_max", "clip_low", "clip_high", "clip_delta",
    "entropy", "kl", "mismatch_kl", "policy_lag_mean", "policy_lag_max", "completion_length_mean", "packing_density", "learning_rate",
    "held_out_loss", "rows", "completion_tokens", "skipped_updates",
)  # fmt: skip
"""Fields of `StepMetrics` that are drawn over steps."""
TYPE_CURVES = ("task_reward", "completion_length_mean", "signal_share", "sampled_share", "share")
"""Fields of `TypeMeans` that are drawn over steps, a line a task type."""

Document = dict[str, Any]


def live_document(seen: Seen, revision: int) -> Document:
    """The changing part of the page: parts, figures, and what the run waits for. It has the words of the live view of `shoal up`."""
    snapshot = seen.snapshot
    model = view_model(snapshot, seen.history)
    progress = snapshot.progress
    return {
        "revision": revision,
        "unix": snapshot.unix,
        "run": model.run,
        "headline": model.headline
        if progress or (snapshot.parts and not seen.facts.steps)
        else headline_from_store(seen),
        "waiting": "" if is_complete(seen) else model.waiting,
        "running": bool(snapshot.parts) or progress is not None,
        "complete": model.complete or is_complete(seen),
        "share_done": model.share_done,
        "figures": [list(each) for each in model.figures],
        "answers": model.answers,
        "cannot_learn": model.cannot_learn,
        "parts": [
            {
                "name": row.name,
                "state": row.state,
                "containers": [list(each) for each in row.containers],
                "restarts": row.restarts,
                "address": row.address,
                "note": row.note,
            }
            for row in model.rows
        ],
        "rejects": {
            plain(reason, 40): times for reason, times in (progress.reject_reasons if progress else {}).items()
        },
        "nodes": dict(progress.nodes) if progress else {},
        "groups": [progress.accepted_groups, progress.needed_groups, progress.pending_groups] if progress else None,
        "evaluations": evaluations_document(seen),
        "problem": seen.problem,
        "notes": [plain(note, 300) for note in seen.facts.notes[:20]],
    }


def newest_answered(seen: Seen) -> Verdict | None:
    """The file accepted last of those that are trained on, whose first answers the overview shows."""
    unix = seen.facts.verdict_unix
    of_steps = (
        each for each in seen.facts.verdicts if each.outcome == "accept" and kind_of(each.step) is WorkKind.STEP
    )
    return max(
        of_steps,
        key=lambda each: (each.step, unix.get(keys.verdict(each.node, each.sha256), 0.0), each.sha256),
        default=None,
    )


def evaluations_document(seen: Seen) -> Document:
    """Scores of versions on the run's benchmarks, and how far those are that are under way."""
    facts, progress = seen.facts, seen.snapshot.progress
    best = facts.best_version
    return {
        "columns": list(COLUMNS),
        "rows": [
            {
                "version": row.version,
                "benchmark": row.benchmark,
                "cells": list(row.cells),
                "best": best is not None and (best.version, best.benchmark) == (row.version, row.benchmark),
            }
            for row in score_rows(facts.evaluations)
        ],
        "under_way": [
            f"version {each.version} on {plain(each.benchmark, 40)}: {each.slices_done} of {each.slices} files"
            for each in (progress.evaluations if progress is not None else [])
            if not each.ended
        ],
    }


def is_complete(seen: Seen) -> bool:
    """Whether the last step was trained, as the store has it."""
    total, steps = seen.snapshot.steps_total, seen.facts.steps
    return bool(total and steps) and steps[-1].step + 1 >= total


def headline_from_store(seen: Seen) -> str:
    """The run's progress, from the store alone."""
    if not seen.facts.steps:
        return "no step was trained yet"
    last = seen.facts.steps[-1]
    total = f" of {seen.snapshot.steps_total}" if seen.snapshot.steps_total else ""
    return f"{last.step + 1}{total} steps trained, version {last.policy_version}"


def run_document(seen: Seen, trust_key: str, trust_origin: str, key_given: bool) -> Document:
    """The constant part of the page: name, store, and the key for checking the ledger."""
    return {
        "run": plain(seen.snapshot.run, 60),
        "steps_total": seen.snapshot.steps_total,
        "store": seen.facts.kind,
        "run_key": plain(trust_key, 64),
        "run_key_from": plain(trust_origin, 200),
        "run_key_given": key_given,
    }


def steps_document(steps: Sequence[StepMetrics], after: int) -> Document:
    """Metrics of the steps after `after`, as columns: one list a field."""
    shown = [metrics for metrics in steps if metrics.step > after]
    types = sorted({name for metrics in shown for name in metrics.by_task_type})
    return {
        "step": [metrics.step for metrics in shown],
        "trained": [metrics.trained for metrics in shown],
        "supervised": any(metrics.supervised for metrics in shown),
        "columns": {name: [getattr(metrics, name) for metrics in shown] for name in CURVES},
        "by_task_type": {
            field: {plain(name, 60): [getattr(metrics.by_task_type.get(name), field, None) for metrics in shown] for name in types}
            for field in TYPE_CURVES
        },
        "warnings": [
            [metrics.step, plain(warning, 200)] for metrics in shown for warning in metrics.warnings
        ],
    }  # fmt: skip


def timeline_document(seen: Seen, last_steps: int) -> Document:
    """Bars and rows of the last steps."""
    facts = seen.facts
    trained = [verdict for verdict in facts.verdicts if kind_of(verdict.step) is WorkKind.STEP]
    newest = max([0, *(verdict.step for verdict in trained), *(step.step for step in facts.steps)])
    first = max(0, newest + 1 - max(1, min(last_steps, MOST_STEPS)))
    shown = intervals(
        seen.times,
        [verdict for verdict in trained if verdict.step >= first],
        facts.verdict_unix,
        [metrics for metrics in facts.steps if metrics.step >= first],
    )
    shown = [bar for bar in shown if bar.step >= first]
    rows = [row for row in step_rows(shown, seen.entries, facts.steps) if (row["step"] or 0) >= first]
    return {
        "bars": [[bar.lane, bar.step, bar.start, bar.end, plain(bar.what, 64), plain(bar.state, 20)] for bar in shown],
        "rows": rows,
    }


def nodes_document(seen: Seen) -> Document:
    """One row a node: what the checked ledger credits it with, and what validators said of its files."""
    verdicts: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in seen.facts.verdicts:
        verdicts[verdict.node].append(verdict)
    report = seen.audit.report if seen.audit else None
    totals = report.nodes if report else {}
    last: dict[str, LedgerEntry] = {}
    for entry in seen.entries:
        if entry.node is not None:
            last[entry.node] = entry
    rows = []
    for node in sorted({*verdicts, *totals}, key=lambda each: (-(totals[each].tokens if each in totals else 0), each)):
        own, credit = verdicts.get(node, []), totals.get(node)
        outcomes = Counter(verdict.outcome for verdict in own)
        rows.append(
            {
                "node": node,
                "state": state_of(credit) if credit else "unknown",
                "accepted": outcomes["accept"],
                "rejected": outcomes["reject"],
                "expired": outcomes["expired"],
                "inconclusive": outcomes["inconclusive"],
                "reasons": dict(Counter(verdict.reason for verdict in own if verdict.reason)),
                "groups": credit.groups if credit else 0,
                "tokens": credit.tokens if credit else 0,
                "flops": credit.flops if credit else 0.0,
                "credit": credit.credit() if credit else 0,
                "last": [last[node].unix, last[node].kind, plain(last[node].model_dump()["detail"], 300)]
                if node in last
                else None,
            }
        )
    return {"nodes": rows[:MOST_NODES], "total": len(rows), "ledger": ledger_summary(seen)}


def files_document(seen: Seen, *, node: str, outcome: str, step: int | None, page: int) -> Document:
    """Judged files, the newest first, `PAGE` a page."""
    unix = seen.facts.verdict_unix
    found = [
        verdict
        for verdict in seen.facts.verdicts
        if verdict.node.startswith(node) and outcome in ("", verdict.outcome) and (step is None or verdict.step == step)
    ]
    found.sort(key=lambda each: (-unix.get(keys.verdict(each.node, each.sha256), 0.0), each.node, each.submission))
    return {
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // PAGE)),
        "files": [
            verdict_document(each, unix.get(keys.verdict(each.node, each.sha256)), seen.vine)
            for each in found[page * PAGE : (page + 1) * PAGE]
        ],
    }


def verdict_document(verdict: Verdict, unix: float | None, vine: VineSettings | None = None) -> Document:
    """One file and what was found of it. Its task reward is over completions; what continues them gives values."""
    own = verdict.rewards[: completions_of(len(verdict.rewards), verdict.step, vine)]
    tasks = [row.task_reward for row in own if row.task_reward is not None]
    return {
        "node": verdict.node,
        "sha256": verdict.sha256,
        "step": verdict.step,
        "submission": verdict.submission,
        "version": verdict.policy_version,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "evidence": plain(verdict.evidence, LONGEST_TEXT),
        "rows": verdict.rows,
        "completions": completions_of(verdict.rows, verdict.step, vine),
        "tokens": verdict.completion_tokens,
        "proof_rows": verdict.proof_rows,
        "check_seconds": verdict.check_seconds,
        "seconds_by_check": {plain(name, 40): value for name, value in verdict.seconds_by_check.items()},
        "validator": plain(verdict.validator, 100),
        "task_reward": sum(tasks) / len(tasks) if tasks else None,
        "unix": unix,
    }


def ledger_summary(seen: Seen) -> Document:
    """How far the ledger was checked, and what was found."""
    if seen.audit is None:
        return {"checked": False, "problem": seen.ledger_problem}
    report = seen.audit.report
    return {
        "checked": True,
        "problem": seen.ledger_problem,
        "good": not report.problems,
        "problems": [plain(problem, 500) for problem in report.problems[:20]],
        "entries": report.entries,
        "covered": report.covered,
        "checkpoints": report.checkpoints,
        "kinds": dict(sorted(report.kinds.items())),
        "tokens": report.tokens,
        "forfeited": report.forfeited,
        "unix": seen.audited_unix,
    }


def ledger_document(seen: Seen, *, node: str, kind: str, page: int) -> Document:
    """Entries, the newest first, `PAGE` a page."""
    found = [entry for entry in seen.entries if (entry.node or "").startswith(node) and kind in ("", entry.kind)][::-1]
    return {
        "summary": ledger_summary(seen),
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // PAGE)),
        "entries": [entry_document(entry) for entry in found[page * PAGE : (page + 1) * PAGE]],
    }


def entry_document(entry: LedgerEntry) -> Document:
    document = entry.model_dump(mode="json", exclude={"previous", "run"})
    fact = entry.fact
    words = terms_line(fact.terms) if isinstance(fact, RunDeclared | TermsChanged) else document["detail"]
    return {**document, "detail": plain(words, 500)}
