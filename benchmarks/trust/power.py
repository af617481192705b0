"""Which weights a worker can use without being found out: the power of one file to show it, and of several, in float32 and in bfloat16.

In: the demo's models. Out: for each set of other weights the share of files that are rejected, when all rows are checked (a node on
probation) and when the demo's share of them is (a node of good standing), with and without the sampler's choices being drawn again, and the
largest chance of getting away with many such files. What is not told from honest is named as such.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trust import weight_sets
from benchmarks.trust.engine_client import EngineProcess
from benchmarks.trust.in_process import GOOD_STANDING, PaperRun, paper_config
from benchmarks.trust.interval import clopper_pearson
from benchmarks.trust.models import TrainedModels, calibrate_engine, in_dtype
from shoal.contracts.pools import SAMPLER, Sampler
from shoal.contracts.proof_profile import PROFILE_FILE, read_profile, thresholds_in_force

FILES = 8
LOOKS = 3
"""Files are judged so often at good standing: each time other rows are drawn."""
SEVERAL = (1, 10, 100)
STALE_TENSOR = "model.layers.1.mlp.down_proj.weight"
FULL_BATCH = 128


@dataclass(frozen=True)
class Setting:
    """How a file is checked."""

    name: str
    accepted_files: int
    sampler: Sampler | None
    looks: int


SETTINGS = (
    Setting("probation, seeds redone", 0, SAMPLER, 1),
    Setting("probation", 0, None, 1),
    Setting("good standing, seeds redone", GOOD_STANDING, SAMPLER, LOOKS),
    Setting("good standing", GOOD_STANDING, None, LOOKS),
)
"""`seeds redone`: what every pool gets whose sampler is a rule. The others are what distributions alone find, in a pool of `sampler: none`."""


def measure(made: TrainedModels, home: Path, dtypes: Sequence[str] = ("float32", "bfloat16")) -> dict[str, Any]:
    """Some three minutes a dtype on one core."""
    return {dtype: of_dtype(made, home / f"power-{dtype}", dtype) for dtype in dtypes}


def of_dtype(made: TrainedModels, home: Path, dtype: str) -> dict[str, Any]:
    """Power for weights served in `dtype`."""
    home.mkdir()
    served = partial(in_dtype, dtype="bfloat16") if dtype == "bfloat16" else _as_it_is
    base = served(made.base, home / "base")
    changes: dict[str, object] = {}
    config = paper_config()
    if dtype != "float32":  # the demo's own thresholds are for float32: here those calibrated for the dtype apply
        calibrate_engine(config, base)
        changes["validation"] = config.validation.model_copy(update={"thresholds": None})
        config = paper_config(changes)
    folders = {name: served(folder, home / name) for name, folder in _folders(made, home).items()}
    profile = base / PROFILE_FILE
    for folder in folders.values():  # sealed with every version, as the trainer copies it
        if profile.exists():
            (folder / profile.name).write_bytes(profile.read_bytes())
    run = PaperRun(home / "run", config, base, folders["honest"])
    length = config.recipe.max_sequence_length
    with EngineProcess(folders["honest"], max_sequence_length=length, batch=FULL_BATCH) as engine:
        found = {
            name: _of_weights(run, engine, folder, number) for number, (name, folder) in enumerate(folders.items())
        }
    return {"thresholds": _thresholds(run, base), "files": FILES, "weights": found}


def _folders(made: TrainedModels, home: Path) -> dict[str, Path]:
    """Float32 weights by name: the honest ones first, then each lie, from the grossest to the least."""
    sources = home / "float32"
    sources.mkdir()
    derived: Mapping[str, Callable[[weight_sets.Tensors], weight_sets.Tensors]] = {
        **weight_sets.CHANGES,
        "one tensor of the version before": weight_sets.with_tensor_of(made.base, STALE_TENSOR),
        "the head of the version before": weight_sets.with_tensor_of(made.base, "lm_head.weight"),
    }
    return {
        "honest": made.current,
        "the version before (warm-up step)": made.base,
        "a version apart (full step)": made.stepped,
        **{
            name: weight_sets.derive(made.current, sources / f"weights-{number}", change)
            for number, (name, change) in enumerate(derived.items())
        },
    }


def _of_weights(run: PaperRun, engine: EngineProcess, folder: Path, kind: int) -> dict[str, Any]:
    """What becomes of `FILES` files made with the weights in `folder`."""
    leases = [run.lease(kind * FILES + number) for number in range(FILES)]
    made = engine.generate(folder, [row.request for _, planned in leases for row in planned]).completions
    rejected: dict[str, Counter[str]] = {each.name: Counter() for each in SETTINGS}
    judged: Counter[str] = Counter()
    for lease, planned in leases:
        completions, made = made[: len(planned)], made[len(planned) :]
        data = run.write(run.rows(lease, planned, completions))
        for each in SETTINGS:
            for _ in range(each.looks):
                verdict = run.judge(data, lease, accepted_files=each.accepted_files, sampler=each.sampler)
                judged[each.name] += 1
                if verdict.outcome != "accept":
                    rejected[each.name][verdict.reason or verdict.outcome] += 1
    return {each.name: _summary(rejected[each.name], judged[each.name]) for each in SETTINGS}


def _summary(rejected: Counter[str], judged: int) -> dict[str, Any]:
    count = rejected.total()
    low, high = clopper_pearson(count, judged)
    return {
        "judged": judged,
        "rejected": count,
        "interval_95": [low, high],
        "reasons": dict(rejected),
        # With the interval's lower limit as the rate: at most this chance that so many files all pass.
        "passes_at_most": {str(files): (1 - low) ** files for files in SEVERAL},
    }


def _thresholds(run: PaperRun, base: Path) -> dict[str, Any]:
    """Those that the validators went by."""
    hidden_size = json.loads((base / "config.json").read_bytes())["hidden_size"]
    return thresholds_in_force(run.config.validation.thresholds, read_profile(base, hidden_size)).model_dump()


def _as_it_is(source: Path, target: Path) -> Path:
    return source
