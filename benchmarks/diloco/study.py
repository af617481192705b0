"""How many islands, and how long a round: what DiLoCo costs against data parallel training on the same rows (arXiv:2407.07852, figures 3 to 6).

    python -m benchmarks.diloco.study                 what is missing of all settings; an hour and a half of one core, resumable
    python -m benchmarks.diloco.study --seeds 1 2     fewer seeds; nothing is written to the results before all of them are there

In: source text of SymPy, byte by byte, whose loss falls smoothly. Out: `study` of benchmarks/results/diloco.json, held-out losses by setting and
seed. Islands take turns in one process, which changes nothing but the time: each has its own AdamW and its own rows, and a round goes through a run's
own payloads, judgement, mean and outer step. Data parallel training has the rows of as many workers in each update: equal tokens, equal updates.
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diloco.__main__ import RESULT, ROOT
from benchmarks.reproduce.__main__ import write_whole
from benchmarks.reproduce.summary import Interval, interval
from shoal.contracts.islands import ExchangeType, IslandContribution

CACHE = ROOT / ".cache" / "diloco"
SEEDS = (1, 2, 3, 4)
UPDATES, ROWS, WINDOW = 1000, 8, 64
"""Updates of each island, rows of an update, bytes of a row."""
PACK = ROWS * WINDOW
HIDDEN, LAYERS = 64, 2
HELD_OUT_FILES = 16
"""One file in so many is held out."""
COUNTS, ROUNDS = (1, 2, 4, 8), (10, 50, 100, 500)
USUAL_COUNT, USUAL_ROUND = 4, 50
KINDS: tuple[ExchangeType, ...] = ("float32", "float16", "int8")
PAPER = (
    "OpenDiLoCo (arXiv:2407.07852): eight islands with 500 updates a round end near data parallel training, fp16 exchange costs nothing;"
    " the fewer updates a round, the closer."
)


@dataclass(frozen=True)
class Setting:
    """`inner_steps` None: data parallel training with the rows of `count` workers."""

    count: int
    inner_steps: int | None = None
    exchange: ExchangeType = "float32"

    @property
    def name(self) -> str:
        if self.inner_steps is None:
            return f"data-parallel-{self.count}"
        return f"islands-{self.count}-of-{self.inner_steps}-{self.exchange}"


SETTINGS = tuple(
    dict.fromkeys(
        [Setting(count) for count in COUNTS]
        + [Setting(count, USUAL_ROUND) for count in COUNTS]
        + [Setting(USUAL_COUNT, steps) for steps in ROUNDS]
        + [Setting(USUAL_COUNT, USUAL_ROUND, kind) for kind in KINDS]
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = [(setting, seed) for seed in asked.seeds for setting in SETTINGS if not _place(setting, seed).exists()]
    left, spent, done = sum(setting.count for setting, _ in missing), 0.0, 0
    for setting, seed in missing:
        began = time.monotonic()
        found = trained(setting, seed, UPDATES, CACHE)
        write_whole(_place(setting, seed), {"loss": found})
        spent, done, left = spent + time.monotonic() - began, done + setting.count, left - setting.count
        print(f"{setting.name} seed {seed}: {found:.4f}; {spent / done * left / 60:.0f} minutes left", flush=True)
    if all(_place(setting, seed).exists() for setting in SETTINGS for seed in SEEDS):
        losses = {
            setting.name: [json.loads(_place(setting, seed).read_text())["loss"] for seed in SEEDS]
            for setting in SETTINGS
        }
        study = {"updates": UPDATES, "rows": ROWS, "bytes": WINDOW, "hidden": HIDDEN, "layers": LAYERS, "loss": losses}
        document = json.loads(RESULT.read_text()) | {"study": study}
        RESULT.write_text(json.dumps(document, indent=2) + "\n")


def _place(setting: Setting, seed: int) -> Path:
    said = json.dumps([UPDATES, ROWS, WINDOW, HIDDEN, LAYERS, HELD_OUT_FILES])
    return CACHE / f"{setting.name}-{seed}-{hashlib.sha256(said.encode()).hexdigest()[:8]}.json"


@cache
def text(*, held_out: bool) -> np.ndarray:
    """The bytes of SymPy's modules, in the order of their names, without its tests; those that are held out, or all others."""
    import sympy

    folder = Path(sympy.__file__).parent
    files = [path for path in sorted(folder.rglob("*.py")) if "tests" not in path.relative_to(folder).parts]
    chosen = [path.read_bytes() for number, path in enumerate(files) if (number % HELD_OUT_FILES == 0) == held_out]
    return np.frombuffer(b"".join(chosen), dtype=np.uint8)


def trained(setting: Setting, seed: int, updates: int, folder: Path) -> float:
    """Held-out loss (nats a byte) of one setting after so many updates, a multiple of its round."""
    from benchmarks.diloco.task import Learner, write_base

    if setting.inner_steps is not None and updates % setting.inner_steps:
        raise ValueError(f"{updates} updates are no whole rounds of {setting.inner_steps}")
    base = write_base(folder / f"base-{seed}", HIDDEN, LAYERS, seed)
    if setting.inner_steps is None:
        learner = Learner.start(base, seed, updates, window, PACK)
        for number in range(updates):
            learner.update(number, list(range(setting.count)), ROWS)
        return learner.held_out()
    return _islands([Learner.start(base, seed, updates, window, PACK) for _ in range(setting.count)], setting, updates)


def window(chance: np.random.Generator, *, held_out: bool) -> Any:
    """A row: one byte as the prompt, and what follows it."""
    from benchmarks.diloco.task import row

    source = text(held_out=held_out)
    start = int(chance.integers(0, len(source) - WINDOW))
    return row(source[start : start + 1].tolist(), source[start + 1 : start + WINDOW].tolist())


def _islands(learners: Sequence[Any], setting: Setting, updates: int) -> float:
    import torch

    from shoal.islands.judgement import judge_parts, part_of, state_after
    from shoal.islands.outer import OuterSettings
    from shoal.islands.shared import Meta, Parameters, SharedState

    assert setting.inner_steps is not None
    parts = [Parameters(learner.parameters) for learner in learners]
    shared = SharedState(Meta(), parts[0].read(), torch.zeros(parts[0].count))
    names = [f"island-{index}" for index in range(len(learners))]
    for begin in range(0, updates, setting.inner_steps):
        for index, learner in enumerate(learners):
            for number in range(begin, begin + setting.inner_steps):
                learner.update(number, [index], ROWS)
        received = [
            _contribution(name, shared.weights - part.read(), shared.meta.round, setting.exchange)
            for name, part in zip(names, parts, strict=True)
        ]
        said = part_of(received, len(shared.weights), setting.exchange)
        judged = judge_parts([said], received, shared.meta.reference)
        shared = state_after(shared, received, judged, setting.exchange, OuterSettings(), names)
        for part in parts:
            part.write(shared.weights)
    return float(learners[0].held_out())


def _contribution(name: str, moved: Any, number: int, kind: ExchangeType) -> Any:
    """What an island sends, without the signature: it is nobody's but ours here."""
    from shoal.islands.contributions import Received, payload_of, sha256

    payload, counts = payload_of(moved, len(moved), kind)
    header = IslandContribution(
        run="study", island=name, meeting="1-2-3", round=number, rank=0, contributes=counts, sha256=sha256(payload),
        inner_seconds=1.0, position=number,
    )  # fmt: skip
    return Received(name, header, payload)


def gap(losses: dict[str, list[float]], setting: Setting) -> Interval:
    """Loss above data parallel training on the same rows, paired by seed."""
    plain = losses[Setting(setting.count).name]
    return interval([one - other for one, other in zip(losses[setting.name], plain, strict=True)])


def table(document: dict[str, Any]) -> str:
    """Markdown: a row a setting; nothing where the study was not made."""
    study = document.get("study")
    if study is None:
        return ""
    losses = study["loss"]
    noise = statistics.stdev(losses[Setting(USUAL_COUNT).name])
    lines = [
        "### DiLoCo islands against data parallel training",
        "",
        PAPER,
        "",
        f"A Qwen3 of {study['hidden']} x {study['layers']} learns source text by bytes (`benchmarks/diloco/study.py`): {study['updates']} updates of"
        f" {study['rows']} rows an island, equal tokens and updates, {len(SEEDS)} seeds, 95 % intervals. Data parallel training of {USUAL_COUNT}"
        f" workers differs by {noise:.3f} between seeds (standard deviation).",
        "",
        "| islands | updates a round | rounds | exchange | held-out loss | of data parallel training | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        if setting.inner_steps is not None:
            mean, plain = (statistics.mean(losses[each]) for each in (setting.name, Setting(setting.count).name))
            rounds = study["updates"] // setting.inner_steps
            cells = (setting.count, setting.inner_steps, rounds, setting.exchange, f"{mean:.3f}", f"{plain:.3f}")
            lines.append(f"| {' | '.join(map(str, cells))} | {gap(losses, setting)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
