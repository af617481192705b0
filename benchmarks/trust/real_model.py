"""SmolLM2-135M-Instruct as a run on paper: a real model, with real outlier dimensions. Called by `adaptive` and `many_files`."""

from pathlib import Path

from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.models import calibrate_engine, in_dtype
from shoal.contracts.run import RunConfig

REAL_BFLOAT16 = "SmolLM2-135M-Instruct, bfloat16"
REAL_MODELS = {REAL_BFLOAT16: "bfloat16", "SmolLM2-135M-Instruct, float32": "float32"}
"""Names of these in results, and the types that they are served in."""
ROWS = {"groups_per_submission": 2, "max_completion_tokens": 32}
"""A file of the real model is smaller than the demo's, so that 300 of them take an hour."""


def served(home: Path, name: str) -> tuple[PaperRun, Path]:
    """The run of one of `REAL_MODELS`, whose weights are calibrated and do not change, and the folder of these weights."""
    from fetch_smollm2 import fetched  # in tools/, which `benchmarks.trust` finds on the path

    base, config = in_dtype(fetched(), home / "base", REAL_MODELS[name]), real_config()
    calibrate_engine(config, base)
    return PaperRun(home / "run", config, base), base


def real_config() -> RunConfig:
    """The demo's settings with room for the real model's longer tokens, its own thresholds, and smaller files."""
    config = paper_config()
    return config.model_copy(
        update={
            "sampling": config.sampling.model_copy(update=ROWS),
            "validation": config.validation.model_copy(update={"thresholds": None}),
        }
    )
