"""The CEL rules about the size of rollout files: what no worker could hand in is refused with the run, not after the work. Part of `rules.RULES`."""

from typing import Any

from shoal.contracts.file_size import (
    BYTES_A_TOKEN,
    FILE_BYTES,
    MAX_FILE_BYTES,
    PROOF_BYTES,
    PROOF_TOKENS,
    ROW_BYTES,
    largest_bytes,
)
from shoal_operator.api.rule import Rule
from shoal_operator.api.vine_rules import ROWS

# As `file_size.largest_bytes` counts. A completion may be nearly as long as its sequence.
_ROW = (
    f"(self.recipe.maxSequenceLength * {BYTES_A_TOKEN} + "
    f"(self.recipe.maxSequenceLength + {PROOF_TOKENS - 1}) / {PROOF_TOKENS} * {PROOF_BYTES} + {ROW_BYTES})"
)
_ROOM = MAX_FILE_BYTES - FILE_BYTES
_DEFAULT = {"algorithm": {"twoSidedGrpo": {}}, "promptsPerStep": 256, "maxSequenceLength": 32_768}
_FEW, _MANY = 1800, 2000
assert largest_bytes(_FEW, 32_768, 32_768) < MAX_FILE_BYTES < largest_bytes(_MANY, 32_768, 32_768)


def _scored(samples: int) -> dict[str, Any]:
    """A run whose benchmark's slices have one task and this many rows."""
    benchmark = {"name": "sums", "tasks": {"environment": "arithmetic"}, "samples": samples}
    recipe = {"algorithm": {"twoSidedGrpo": {}}, "maxSequenceLength": 524_288}
    return {"sampling": {"groupsPerSubmission": 4}, "recipe": recipe, "evaluation": {"benchmarks": [benchmark]}}


FILE_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression=f"self.mode == 'SFT' || {ROWS} * {_ROW} <= {_ROOM}",
        message=f"groupsPerSubmission x groupSize sequences of recipe.maxSequenceLength tokens must fit into the {MAX_FILE_BYTES >> 20} MiB that a "
        "file may have, at about 17 bytes a token: lower groupsPerSubmission, or maxSequenceLength to what prompts and completions need",
        field="sampling.groupsPerSubmission",
        good={
            "mode": "Train",
            "sampling": {"groupsPerSubmission": _FEW // 10},
            "recipe": {**_DEFAULT, "groupSize": 10},
        },
        bad={
            "mode": "Train",
            "sampling": {"groupsPerSubmission": _MANY // 10},
            "recipe": {**_DEFAULT, "groupSize": 10},
        },
    ),
    Rule(
        model="TrainingRunSpec",
        # A slice has as many rows as a file of a step at most, but one task in any case.
        expression=f"!has(self.evaluation) || self.evaluation.benchmarks.all(b, b.samples * {_ROW} <= {_ROOM})",
        message=f"samples sequences of recipe.maxSequenceLength tokens must fit into the {MAX_FILE_BYTES >> 20} MiB that a file may have, at "
        "about 17 bytes a token: lower samples or maxSequenceLength",
        field="evaluation.benchmarks",
        good=_scored(64),
        bad=_scored(256),
    ),
)
