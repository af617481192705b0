"""Our trainer beside TRL's on one GPU: tokens a second, MFU, peak memory and the longest sequence, by shape; each row a process of its own.

Loss and gradients must agree in float32 on the CPU first: bfloat16 alone would hide a wrong formula. Then losses of a shape are compared as far as
bfloat16 can tell, and a shape that does not agree has no figures.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.part import ROOT, Asked, run_part

TRL_MISSING = "TRL is not installed here: `make gpu-wheels` on a machine with a network fetches it"
QUESTIONS = (
    ("0.5B", "speed"), ("1.5B", "speed"), ("7B", "speed"), ("0.5B", "longest"), ("1.5B", "longest"),
)  # fmt: skip
LONGEST_SECONDS = 12.0
"""Of a search for the longest sequence, its start not counted."""
START_SECONDS = 25.0
"""Of a process: imports, and drawing 7B's weights."""


def measure(asked: Asked) -> None:
    from benchmarks.trainer.__main__ import Disagreement, compare
    from benchmarks.trainer.accelerator import check_losses
    from benchmarks.trainer.workload import QUICK

    sides = ["ours", "trl"] if find_spec("trl") is not None else ["ours"]
    if sides == ["ours"]:
        asked.note(agreement=None, trl=TRL_MISSING)
    else:
        found = compare(("ours", "trl-fair"), 1, QUICK)  # float32, raises when the two disagree
        asked.note(
            agreement={key: found[key] for key in ("max_loss_difference", "max_grad_difference")}, trl="measured"
        )
    rows: list[dict[str, Any]] = []
    wrong = []
    for shape, question in (("tiny", "speed"), ("tiny", "longest")) if asked.tiny else QUESTIONS:
        new = []
        for side in sides:
            new.append(_row(asked, side, shape, question))
            print(json.dumps(new[-1]), flush=True)
        try:
            check_losses([row for row in new if "loss" in row])
        except Disagreement as error:
            new = [{"shape": shape, "question": question, "left_out": str(error)}]
            wrong.append(str(error))
        rows += new
        asked.note(rows=rows, **_ratios(rows))
    if wrong or all("left_out" in row for row in rows):
        raise SystemExit("; ".join(wrong) or "no row was measured")


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ours over TRL's tokens a second, by shape."""
    speeds = {(row["shape"], row["side"]): row["real_tokens_per_second"] for row in rows if "loss" in row}
    return {
        f"speed_over_trl_{shape}": value / speeds[shape, "trl"]
        for (shape, side), value in speeds.items()
        if side == "ours" and (shape, "trl") in speeds
    }


def _row(asked: Asked, side: str, shape: str, question: str) -> dict[str, Any]:
    named = {"side": side, "shape": shape, "question": question}
    start = 0.0 if asked.tiny else START_SECONDS
    seconds = asked.left - start
    if seconds <= 0:
        return named | {"left_out": "no time was left"}
    if question == "longest":
        seconds = min(seconds, LONGEST_SECONDS)
    target = asked.result.with_name("row.json")
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.trainer.accelerator", side, shape, question, asked.device]
    command += [f"{seconds:.1f}", str(target)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=max(1.0, asked.left), check=False
        )
    except subprocess.TimeoutExpired:
        return named | {"left_out": "it was over time"}
    if done.returncode != 0 or not target.exists():
        print(done.stderr[-1500:], file=sys.stderr, flush=True)
        return named | {"left_out": " ".join(done.stderr.strip().splitlines()[-1:])[:300]}
    found: dict[str, Any] = json.loads(target.read_text())
    return found


if __name__ == "__main__":
    run_part(measure)
