"""`make bench-trainer`: both trainers in fresh processes, one after the other; benchmarks/results/trainer.json and a table.

    python -m benchmarks.trainer                 on the CPU: time, peak memory, packing, head, overheads; some 15 minutes
    python -m benchmarks.trainer --quick --out DIR   small sizes, one repetition, without TRL: for the tests
    python -m benchmarks.trainer --only PART...  units, memory, context or gap alone; other figures of the file stay

No figure is printed or written when losses or gradients of the two disagree. CPU seconds of one thread are compared, since wall seconds on a shared
machine measure the neighbours; both are in the file.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.installed import installed

if TYPE_CHECKING:
    from benchmarks.trainer.workload import Shape

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "trainer.json"
REPETITIONS = 3
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
"""Relative. Two orders of summing float32 differ by 1e-6 here; a wrong formula by much more."""
PROCESS_SECONDS = 1800.0
PAPERS = "Qwen3-32B, 16 ranks"
SIDES = ("ours", "trl-fair", "trl")


class Disagreement(RuntimeError):
    """The two trainers do not compute the same thing; a comparison of their speed would mean nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, ours only; needs --out")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path, help="write trainer.json under this folder")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts alone; other figures stay")
    asked = parser.parse_args()
    if asked.quick and asked.out is None:
        parser.error("--quick makes no figures for the checkout: say where by --out DIR")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    target = asked.out / "trainer.json" if asked.out else RESULT
    if asked.only:
        kept: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
        for part in asked.only:
            kept |= PARTS[part]()
            target.write_text(json.dumps(kept, indent=2) + "\n")
        return
    from benchmarks.trainer import packing
    from benchmarks.trainer.workload import CPU, QUICK

    sides = SIDES[:1] if asked.quick else SIDES
    found: dict[str, Any] = compare(sides, 1 if asked.quick else asked.repetitions, QUICK if asked.quick else CPU)
    found["packing_density_32k"] = packing.densities()["long run"]["mean"]
    found["packing"] = packing.densities()
    if not asked.quick:
        from benchmarks.trainer import head

        found["head"] = head.table()
    found |= _forward_units()
    if not asked.quick:
        found |= _rank_memory()
        found |= _context_parallel()
        found |= _supervised_gap()
    found |= _overheads(asked.quick)
    found["measured_on"] = measured_on()
    target.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


def compare(sides: tuple[str, ...], repetitions: int, shape: "Shape", seed: int = 0) -> dict[str, Any]:
    """Ratios, differences and each side's medians, of the batch that `seed` draws. Raises Disagreement."""
    from benchmarks.trainer.workload import write_workload

    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        folder = Path(name)
        batch = write_workload(shape, folder, seed)
        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        differences = {"loss": 0.0, "gradient": 0.0}
        for repetition in range(repetitions):
            for side in sides:  # alternating, so that a slow minute of the machine hits all
                runs[side].append(_measured(side, folder))
            if repetition == 0:
                differences = _differences(folder, [(side, runs[side][0]["loss"]) for side in sides])
        check(differences)
    medians = {
        side: {
            key: median(run[key] for run in found)
            for key in ("cpu_seconds", "wall_seconds", "peak_bytes", "loaded_bytes")
        }
        for side, found in runs.items()
    }
    result: dict[str, Any] = {
        "shape": {"vocabulary": shape.vocabulary, "hidden": shape.hidden, "layers": shape.layers, "rows": shape.rows}
        | {
            "completion_tokens": batch.tokens,
            "real_share": round(batch.real_share, 3),
            "pack_length": shape.pack_length,
        },
        "repetitions": repetitions,
        "sides": medians,
        "max_loss_difference": differences["loss"],
        "max_grad_difference": differences["gradient"],
    }
    for side, name in (("trl-fair", "fair_head"), ("trl", "shipped")):
        if side in medians:
            result[f"time_ratio_{name}"] = medians[side]["cpu_seconds"] / medians["ours"]["cpu_seconds"]
            result[f"peak_memory_ratio_{name}"] = medians[side]["peak_bytes"] / medians["ours"]["peak_bytes"]
    return result


def check(differences: dict[str, float]) -> None:
    """The gate. Raises Disagreement with both differences."""
    if not (differences["loss"] <= LOSS_TOLERANCE and differences["gradient"] <= GRADIENT_TOLERANCE):
        raise Disagreement(
            f"losses differ by {differences['loss']:.2e} (allowed {LOSS_TOLERANCE:.0e}) and gradients by"
            f" {differences['gradient']:.2e} (allowed {GRADIENT_TOLERANCE:.0e}), relative: no figures"
        )


def _measured(side: str, folder: Path) -> dict[str, Any]:
    python = sys.executable if side == "ours" else _oracle()
    target = folder / f"{side}.json"
    command = [python, "-m", "benchmarks.trainer.measure", side, str(folder), str(target)]
    # On a machine with an accelerator this comparison is of the CPU all the same.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_SECONDS, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def _differences(folder: Path, losses: list[tuple[str, float]]) -> dict[str, float]:
    """Largest relative difference of TRL's loss, and of any parameter's gradient in norm, to ours; NaN if one of them is."""
    import numpy as np
    from safetensors.torch import load_file

    (_, ours), *others = losses
    gradients = load_file(folder / "ours.safetensors")
    loss, gradient = [0.0], [0.0]
    for side, other in others:
        loss.append(abs(other - ours) / abs(ours))
        theirs = load_file(folder / f"{side}.safetensors")
        if theirs.keys() != gradients.keys():
            raise Disagreement(f"gradients of {sorted(theirs.keys() ^ gradients.keys())[:3]} are on one side only")
        gradient += [float((theirs[name] - value).norm() / value.norm()) for name, value in gradients.items()]
    return {"loss": float(np.max(loss)), "gradient": float(np.max(gradient))}  # Python's `max` would pass over a NaN


def _forward_units() -> dict[str, Any]:
    """Forward passes a token of the cheapest recipe, and of each that was counted."""
    units = json.loads(_printed("benchmarks.trainer.passes"))
    return {"forward_units": next(iter(units.values())), "forward_units_by_recipe": units}


def _rank_memory() -> dict[str, Any]:
    """Planned bytes of a rank against counted ones, and those of the paper's model; some minutes."""
    from benchmarks.trainer.rank_memory import CASES
    from shoal.planner.memory import total

    counted = json.loads(_printed("benchmarks.trainer.rank_memory", *(name for name in CASES if name != PAPERS)))
    return {
        "memory_model_error": max(each["error"] for each in counted.values()),
        "bytes_per_rank_32b_16": total(CASES[PAPERS].planned()),
        "rank_memory": {
            name: {key: each[key] for key in ("bytes", "planned", "error")} for name, each in counted.items()
        },
    }


def _context_parallel() -> dict[str, Any]:
    """Whether ranks that share packs give one rank's losses and gradients in float64, and how far they are off; a minute."""
    from benchmarks.trainer.context_exact import TOLERANCE

    measured = json.loads(_printed("benchmarks.trainer.context_exact"))
    largest = {layout: max(found.values()) for layout, found in measured.items()}
    return {
        "context_parallel_exact": all(value <= TOLERANCE for value in largest.values()),
        "context_parallel_difference": largest,
    }


def _supervised_gap() -> dict[str, Any]:
    """How far supervised fine-tuning is from plain formulas (`formula_gap`); a minute."""
    from benchmarks.trainer.methods import formula_gap

    return formula_gap("sft")


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "units": _forward_units,
    "memory": _rank_memory,
    "context": _context_parallel,
    "gap": _supervised_gap,
}
"""By name, what `--only` measures."""


def _overheads(quick: bool) -> dict[str, Any]:
    measured = json.loads(_printed("benchmarks.trainer.overheads", *(["quick"] if quick else [])))
    shares = ("publish_overhead", "checkpoint_overhead", "idle_share_batch_ready")
    return {name: measured.pop(name) for name in shares} | {"overheads": measured}


def _printed(module: str, *arguments: str) -> str:
    """The last line that a program of ours prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def _oracle() -> str:
    """Python of an environment with TRL: this one, or that of `tools/oracle.sh`, which is made first where it is missing."""
    if find_spec("trl") is not None:
        return sys.executable
    done = subprocess.run([ROOT / "tools" / "oracle.sh"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return str(ROOT / done.stdout.split()[-1])


def measured_on() -> dict[str, str]:
    """Machine and versions, to stand beside the figures."""
    packages = {"shoal": installed().version} | {
        name: version(name).split("+")[0] for name in ("torch", "transformers")
    }
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}; {os.environ['OMP_NUM_THREADS']} thread"
    )
    return {"machine": machine, "python": platform.python_version(), "trl": "1.16.0"} | packages


def table(found: dict[str, Any]) -> str:
    """Markdown, for the terminal and the page."""
    lines = ["| trainer | CPU seconds | peak above the loaded model, GB |", "|---|---|---|"]
    for side, values in found["sides"].items():
        lines.append(f"| {side} | {values['cpu_seconds']:.1f} | {values['peak_bytes'] / 1e9:.2f} |")
    named = (
        "time_ratio_fair_head",
        "time_ratio_shipped",
        "peak_memory_ratio_fair_head",
        "packing_density_32k",
        "publish_overhead",
    )
    for name in (*named, "checkpoint_overhead", "idle_share_batch_ready", "max_loss_difference", "max_grad_difference"):
        if name in found:
            lines.append(f"{name}: {found[name]:.4g}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
