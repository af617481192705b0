"""The CEL rules about VinePPO's settings. Part of `rules.RULES`; those about `recipe.algorithm` are in `algorithm_rules`."""

from typing import Any

from shoal_operator.api.algorithm_rules import group_size_of
from shoal_operator.api.rule import Rule

MOST_ROWS = 65_536
"""Rows of a file with continuations: workers hold them all, and validators read and score every one before a proof is looked at."""

MOST_TOKENS = 16 << 20
"""Tokens of such a file if every sequence is as long as allowed: as many as the default file of another algorithm has with sequences of 262,144. A
validator's reader takes 1 GB of memory for this many and 500 seconds at most; a lease lasts no longer than an hour and two rounds of decoding."""

ROWS_EACH = (
    "(!has(self.recipe.algorithm.vineppo) ? 1 : "
    "1 + (self.recipe.algorithm.vineppo.segments - 1) * self.recipe.algorithm.vineppo.continuations)"
)
"""Rows of a file for each completion, in CEL."""

ROWS = f"self.sampling.groupsPerSubmission * {group_size_of('self.recipe')} * {ROWS_EACH}"
"""Rows of a file, in CEL."""


def _run(groups: int, size: int, segments: int, continuations: int, longest: int = 64) -> dict[str, Any]:
    return {
        "sampling": {"groupsPerSubmission": groups, "maxCompletionTokens": longest // 2},
        "recipe": {
            "promptsPerStep": 256,
            "groupSize": size,
            "optimizerSteps": 8,
            "maxSequenceLength": longest,
            "algorithm": {"vineppo": {"segments": segments, "continuations": continuations}},
        },
    }


VINE_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression=f"!has(self.recipe.algorithm.vineppo) || {ROWS} <= {MOST_ROWS}",
        message=f"groupsPerSubmission x groupSize x (1 + (segments - 1) x continuations), the rows of a file, must be at most {MOST_ROWS}",
        field="recipe.algorithm.vineppo",
        good=_run(groups=4, size=8, segments=8, continuations=9),
        bad=_run(groups=64, size=32, segments=9, continuations=4),
    ),
    Rule(
        model="TrainingRunSpec",
        expression=f"!has(self.recipe.algorithm.vineppo) || {ROWS} * self.recipe.maxSequenceLength <= {MOST_TOKENS}",
        message="groupsPerSubmission x groupSize x (1 + (segments - 1) x continuations) rows of maxSequenceLength tokens must be at most "
        f"{MOST_TOKENS} tokens, which validators can read: lower groupsPerSubmission, segments or continuations, or maxSequenceLength to what "
        "prompts and completions need",
        field="recipe.algorithm.vineppo",
        good=_run(groups=4, size=8, segments=4, continuations=4, longest=32_768),
        bad=_run(groups=4, size=8, segments=4, continuations=9, longest=32_768),
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.recipe.algorithm.vineppo) || !has(oldSelf.recipe.algorithm.vineppo) || "
        "(self.recipe.algorithm.vineppo.segments == oldSelf.recipe.algorithm.vineppo.segments && "
        "self.recipe.algorithm.vineppo.continuations == oldSelf.recipe.algorithm.vineppo.continuations)",
        message="cannot change segments or continuations once the run exists: files that workers are making would not be what validators expect; "
        "start a new run instead",
        field="recipe.algorithm.vineppo",
        good=_run(1, 8, 4, 4),
        bad=_run(1, 8, 4, 5),
        old=_run(1, 8, 4, 4),
    ),
)
