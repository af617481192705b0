"""The adaptive liar in good standing, where a tenth of its rows is checked: what it gains a file, and how many files until the judge finds it.

In: the liar of `adaptive`, with the right weights and perfect proofs. Of each file some rows are false and the others honest, so that a judge who
draws honest rows sees nothing; there the budget is no bound. Two aims: cheap weights write the false rows, or these are the best of four answers
(the worst of eight). Out: for each number of false rows what is gained in a file, and what the real judge said of it, which draws other rows each
time that it looks. The looks stand for a node's files one after another. Its place ends at the first reject, which a second check of all rows
confirms. A row that is left out (ADR 0090) is not trained on, and counts in the node's record, beyond which no file with such a row is accepted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trust.adaptive import DTYPES, Liar, better_answers, liar_of
from benchmarks.trust.in_process import GOOD_STANDING
from benchmarks.trust.models import TrainedModels
from shoal.contracts.protocol import Lease
from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import Verdict
from shoal.sampling.tails import too_many

CHEAP = ("int8", "int4")
LOOKS = 40
"""Times that a file is judged; each time other rows are drawn."""
FIRST = 5000
"""The number of the first lease: no other part has its seeds."""


def false_rows(rows: int) -> Iterator[int]:
    """How many rows of a file are false: one, then four times as many each time, then all."""
    count = 1
    while count < rows:
        yield count
        count *= 4
    yield rows


def missed(rows: int, false: int, checked: int) -> float:
    """The chance that `checked` rows drawn of `rows` have none of the `false` ones (hypergeometric)."""
    return math.comb(rows - false, checked) / math.comb(rows, checked)


def looked_at(liar: Liar, lease: Lease, rows: Sequence[Rollout], looks: int) -> dict[str, Any]:
    """What the judge said of one file in so many looks: rejects, rows left out, and how many of such files a node gets accepted one after another."""
    data = liar.run.write([liar.prover.prove(row) for row in rows])
    verdicts = [liar.run.judge(data, lease, accepted_files=GOOD_STANDING) for _ in range(looks)]
    for verdict in verdicts:
        if verdict.outcome == "inconclusive" or verdict.reason == "unread":
            raise RuntimeError(f"the judge had no answer, which says nothing of the file: {verdict.evidence}")
    rejected = sum(verdict.outcome == "reject" for verdict in verdicts)
    return {
        "rows_checked": min(verdict.proof_rows for verdict in verdicts),
        "rejected": rejected,
        "left_out": sum(len(verdict.left_out) for verdict in verdicts),
        "accepted": accepted(verdicts, liar.budget.outliers),
        "files_until_found": looks / rejected if rejected else None,
    }


def accepted(verdicts: Sequence[Verdict], outliers: float | None) -> int:
    """Of a node's files with these verdicts in a row, how many are accepted. As `orchestrator.verdicts` decides, with honest `outliers` a token."""
    count = rows = tokens = 0
    for verdict in verdicts:
        if verdict.outcome == "reject":
            break
        more, seen = rows + len(verdict.left_out), tokens + verdict.looked_at
        if verdict.left_out and (outliers is None or too_many(more, outliers * seen)):
            continue
        count, rows, tokens = count + 1, more, seen
    return count


def mixed(
    liar: Liar, lease: Lease, honest: Sequence[Rollout], false: Sequence[tuple[int, Rollout]], looks: int
) -> list[dict[str, Any]]:
    """Files with the first of the `false` rows (number and row) in place of honest ones: for each count, what is gained and what the judge said."""
    found = []
    for count in false_rows(len(false)):
        wanted = dict(false[:count])
        rows = [wanted.get(number, row) for number, row in enumerate(honest)]
        other, tokens = liar.not_drawn(rows)
        shift = np.mean([row.reward or 0.0 for row in rows]) - np.mean([row.reward or 0.0 for row in honest])
        seen = looked_at(liar, lease, rows, looks)
        gained = {"false_rows": count, "tokens_not_drawn": other / tokens, "reward_shift": float(shift)}
        found.append(gained | seen | {"false_rows_unseen": missed(len(rows), count, seen["rows_checked"])})
    return found


def of_dtype(liar: Liar, cheap: Mapping[str, Any], looks: int) -> dict[str, Any]:
    """Both aims for one type of serving."""
    lease, planned = liar.run.lease(FIRST)
    honest = liar.rows(lease, planned, liar.write(planned))
    found: dict[str, Any] = {"rows": len(honest), "looks": looks}
    for kind, model in cheap.items():
        written = liar.rows(lease, planned, liar.write(planned, model, math.inf))
        found[kind] = mixed(liar, lease, honest, list(enumerate(written)), looks)
    for name, up in (("up", True), ("down", False)):
        lease, planned = liar.run.lease(FIRST + 1 + up)
        honest, better = better_answers(liar, lease, planned, math.inf, up=up)
        best = {each.choice.row: each for each in sorted(better, key=lambda each: each.gain)}
        most = sorted(best.values(), key=lambda each: -each.gain)
        found[name] = mixed(liar, lease, honest, [(each.choice.row, each.row) for each in most], looks) if most else []
    return found


def measure(made: TrainedModels, home: Path, looks: int = LOOKS, dtypes: Sequence[str] = DTYPES) -> dict[str, Any]:
    """Some two minutes a dtype on one core."""
    found = {}
    for dtype in dtypes:
        liar, models = liar_of(made, home / f"standing-{dtype}", dtype)
        found[dtype] = of_dtype(liar, {kind: models[kind] for kind in CHEAP}, looks)
    return found
