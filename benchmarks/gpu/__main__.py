"""`make gpu`: what one GPU says of this project in ten minutes; benchmarks/results/gpu.json, from which docs/benchmarks/gpu.md is made.

    python -m benchmarks.gpu                    all parts on the GPU, 540 s at most
    python -m benchmarks.gpu --list             parts and their seconds
    python -m benchmarks.gpu --only trainer     this part alone, beside what this machine has measured; may be given again
    python -m benchmarks.gpu --dry-run --out F  the same parts at tiny sizes on the CPU: for the tests

Each part is a process of its own with a deadline of its own: one that fails or overruns leaves the others' results. The file is written after every
part, whole. Seconds that a part leaves over go to those after it.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import ROOT, write_json

RESULT = ROOT / "benchmarks" / "results" / "gpu.json"
SECONDS = 540.0
TOLD = 0.9
"""Of a part's time, that it is told: the rest is for its end, before it is killed."""
LEAST_SECONDS = 1.0
MOST_RESULT_BYTES = 4 << 20
LAST_LINES, LAST_CHARACTERS = 15, 2000
PACKAGES = ("torch", "triton", "transformers", "trl", "numpy")
PASSED, FAILED, OVER_TIME = "passed", "failed", "over time"


@dataclass(frozen=True)
class Part:
    """A module that is run as `benchmarks.gpu.part` says, and its seconds on an H100."""

    name: str
    module: str
    seconds: float
    about: str


PARTS = (
    Part("tests", "benchmarks.gpu.tests", 45, "tests that need an accelerator"),
    Part("memory", "benchmarks.gpu.memory", 75, "peak memory of a training step against the planner's model"),
    Part("trainer", "benchmarks.gpu.trainer", 170, "tokens a second, MFU and memory beside TRL"),
    Part("sampling", "benchmarks.gpu.sampling", 45, "the sampler's rule, CPU against GPU"),
    Part("gaps", "benchmarks.gpu.gaps", 150, "honest gaps and proofs in bfloat16, cheap weights"),
    Part("proofs", "benchmarks.gpu.proofs", 25, "TOPLOC proofs, CPU against GPU"),
    Part("optimizer", "benchmarks.gpu.optimizer", 30, "AdamW's speed, copies between host and device, loading"),
)
"""By worth: what runs out of time is at the end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help=f"the file to write (default: {RESULT.relative_to(ROOT)})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all parts together (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS], help="this part")
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; needs --out")
    asked = parser.parse_args()
    if asked.dry_run and asked.out is None:
        parser.error("--dry-run makes no figures for the checkout: say where by --out FILE")
    if asked.list:
        for part in PARTS:
            print(f"{part.name:10} {part.seconds:4.0f} s  {part.about}")
        return 0
    chosen = [part for part in PARTS if not asked.only or part.name in asked.only]
    found = run_parts(chosen, asked.seconds, asked.out or RESULT, tiny=asked.dry_run)
    return 0 if all(found["parts"][part.name]["outcome"] == PASSED for part in chosen) else 1


def run_parts(parts: Sequence[Part], seconds: float, target: Path, *, tiny: bool) -> dict[str, Any]:
    """Every part in turn, each with its share of what is left of `seconds`."""
    device = "cpu" if tiny else "cuda"
    started = time.monotonic()
    found: dict[str, Any] = {"device": device, "tiny": tiny, "machine": machine(), "parts": {}}
    found["parts"] = earlier_parts(target, found)
    for number, part in enumerate(parts):
        left = max(0.0, seconds - (time.monotonic() - started))
        share = left * part.seconds / sum(later.seconds for later in parts[number:])
        found["parts"][part.name] = outcome = run_part(part, share, device, tiny=tiny)
        write_json(target, found)
        print(f"{part.name:10} {outcome['outcome']:9} after {outcome['seconds']:.0f} of {share:.0f} s", flush=True)
        for line in outcome.get("last_lines", []):
            print(f"    {line}", flush=True)
    return found


def earlier_parts(target: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The parts that `target` has from this machine with these versions: `--only` adds to them."""
    try:
        there = json.loads(target.read_bytes())
    except (OSError, ValueError):
        return {}
    same = isinstance(there, dict) and all(there.get(key) == found[key] for key in ("device", "tiny", "machine"))
    return dict(there["parts"]) if same else {}


def run_part(part: Part, share: float, device: str, *, tiny: bool) -> dict[str, Any]:
    """Outcome, seconds and figures of one part; with its last lines, where it did not pass. It and its children are gone afterwards."""
    about = {"about": part.about, "share": round(share, 1)}
    if share < LEAST_SECONDS:
        return about | {"outcome": OVER_TIME, "seconds": 0.0, "last_lines": ["no time was left for it"]}
    with tempfile.TemporaryDirectory(prefix=f"gpu-{part.name}-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", part.module, "--device", device, "--seconds", f"{TOLD * share:.1f}"]
        command += ["--result", str(result), *(["--tiny"] if tiny else [])]
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                outcome = PASSED if process.wait(timeout=share) == 0 else FAILED
            except subprocess.TimeoutExpired:
                outcome = OVER_TIME
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        about["seconds"] = round(time.monotonic() - started, 1)
        lines = last_lines(log)
        figures = read_figures(result)
        if isinstance(figures, str):
            lines.append(figures)
            outcome = FAILED if outcome == PASSED else outcome
        else:
            about["figures"] = figures
        return about | {"outcome": outcome} | ({} if outcome == PASSED else {"last_lines": lines})


def read_figures(path: Path) -> dict[str, Any] | str:
    """What a part wrote, or why that is no result."""
    if not path.exists():
        return "it wrote no result"
    if path.stat().st_size > MOST_RESULT_BYTES:
        return f"its result is larger than {MOST_RESULT_BYTES} bytes"

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no figure")

    try:
        found = json.loads(path.read_bytes(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return f"its result is no JSON: {error}"
    return found if isinstance(found, dict) else "its result is no JSON object"


def last_lines(log: Path) -> list[str]:
    """The end of what a part printed, without folders of this machine."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_CHARACTERS))
        text = file.read().decode(errors="replace")
    for folder, short in ((str(ROOT), "."), (sys.prefix, "PYTHON"), (str(Path.home()), "~")):
        text = text.replace(folder, short)
    return text.strip().splitlines()[-LAST_LINES:]


def machine() -> dict[str, str]:
    """GPU, driver, and versions of what computes."""
    found = {"python": platform.python_version(), "cores": str(os.cpu_count()), "architecture": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()[0]
        found |= dict(zip(("gpu", "gpu_memory", "driver"), (word.strip() for word in answer.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        found["gpu"] = "none"
    return found


if __name__ == "__main__":
    raise SystemExit(main())
