"""Which rows of a judged file are completions and which continue one (algorithm vineppo): only the first are rollouts of their own.

In: numbers of a verdict or of a file, and the run's settings, None where it has none or nobody knows them. Out: counts and labels. Pure; used by the
report and the page.
"""

from shoal.contracts.vine import VineSettings, continuations
from shoal.contracts.work import WorkKind, kind_of


def completions_of(rows: int, step: int, vine: VineSettings | None) -> int:
    """How many of a file's rows, from the first on, are completions: all of a benchmark's, and of one with rows too many or too few, which says
    nothing of what its rows are.
    """
    if vine is None or kind_of(step) is WorkKind.EVALUATION or rows % vine.rows_each:
        return rows
    return rows // vine.rows_each


def parents_of(rows: int, step: int, vine: VineSettings | None) -> dict[int, int]:
    """The row that each continuation continues from, by its own number."""
    completions = completions_of(rows, step, vine)
    return {} if completions == rows else {each.row: each.parent for each in continuations(completions, vine)}
