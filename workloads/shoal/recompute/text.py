"""The result of an audit in words, and for programs. Pure."""

from shoal.ledger.source import Trust
from shoal.recompute.audit import AuditResult
from shoal.text import count, plain

REASONS = 3
STAGE_WORDS = {
    "ledger": "entries, signatures, checkpoints, and the documents that they name",
    "batches": "batches of steps and scores of versions made again",
    "steps": "trainer steps repeated",
    "draws": "files whose prompts, targets and seeds were drawn again",
    "rewards": "files scored again",
    "proofs": "files whose proofs and tokens were checked against the weights",
}


def result_lines(result: AuditResult, trust: Trust) -> list[str]:
    """What was checked, what could not be, and what it says."""
    terms = result.terms
    lines = [
        f"run {terms.run}, seed {plain(terms.seed)}: {terms.files:.3g} of the accepted files, {terms.rows:.3g} of their rows for proofs"
    ]
    for stage, totals in result.stages.items():
        lines.append(f"{stage}: {count(totals.done)} of {count(totals.of)} {STAGE_WORDS[stage]}")
        for why, times in totals.unchecked.most_common(REASONS):
            lines.append(f"  NOT CHECKED, {count(times)}: {plain(why, 300)}")
    if "steps" in result.stages:
        lines.append(f"  bit for bit equal: {count(result.steps_equal)}")
    lines += [f"note: {plain(note, 600)}" for note in result.notes]
    if result.resumed:
        lines.append(f"{count(result.resumed)} checks are from earlier calls")
    lines.append(f"trusted: run key {trust.run_key} (from {plain(trust.origin, 200)})")
    lines.append("nothing is wrong" if result.good else f"NOT good: {count(len(result.findings))} findings")
    return lines


def result_record(result: AuditResult, trust: Trust) -> dict[str, object]:
    """The same for programs."""
    return {
        **result.terms.model_dump(mode="json"),
        "run_key_given": trust.given,
        "good": result.good,
        "steps_equal": result.steps_equal,
        "stages": {
            stage: {"done": totals.done, "of": totals.of, "unchecked": totals.unchecked.total()}
            for stage, totals in result.stages.items()
        },
        "notes": result.notes,
        "findings": [each.model_dump(mode="json") for each in result.findings],
    }
