"""Thousands of honest files before the validators, every row checked: how sure one can be that a rate of false rejects is small.

In: the demo's model in either type of serving, and SmolLM2-135M-Instruct, a real one with outlier dimensions. Out: files and rejects of each, and the
upper limit of the rate. Files come from the workers' own engine, some at a time; what was judged is written down at once, so that the same command
goes on where it was stopped. 3,000 files without a reject bound the rate below 0.1 % (`interval`). Hours on one core: run it at idle priority.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trust import adaptive
from benchmarks.trust.interval import clopper_pearson
from benchmarks.trust.models import TrainedModels
from benchmarks.trust.real_model import REAL_BFLOAT16

FILES: Mapping[str, int] = {"bfloat16": 3000, "float32": 3000, REAL_BFLOAT16: 300}
"""Files by type of serving."""
AT_ONCE = 60
FIRST = 10_000
"""The number of the first lease: no other part has its seeds."""


def measure(
    made: TrainedModels,
    home: Path,
    held: Mapping[str, Any],
    keep: Callable[[Mapping[str, Any]], None],
    dtypes: Sequence[str] = tuple(FILES),
) -> dict[str, Any]:
    """Those of `FILES`, after what `held` (an earlier result of this function, or nothing) has; `keep` gets the result so far."""
    found = {name: dict(held[name]) for name in FILES if name in held}
    for name, wanted in FILES.items():
        if name not in dtypes:
            continue
        so_far = found.setdefault(name, {"files": 0, "rejected": 0, "evidence": ""})
        if so_far["files"] >= wanted:
            continue
        run, folder = adaptive.served(made, home / f"many-{list(FILES).index(name)}", name)
        while so_far["files"] < wanted:
            count = min(AT_ONCE, wanted - so_far["files"])
            more = adaptive.honest_files(run, folder, count, FIRST + so_far["files"])
            so_far["files"] += count
            so_far["rejected"] += more["rejected"]
            so_far["evidence"] = so_far["evidence"] or more["evidence"]
            so_far["upper_95"] = clopper_pearson(so_far["rejected"], so_far["files"])[1]
            keep(found)
            print(f"{name}: {so_far['files']} of {wanted} files, {so_far['rejected']} rejected", flush=True)
    return found
