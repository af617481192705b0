"""How long prepare takes for the tasks of INTELLECT-2 by their number, and how many gold answers it proves in a second.

`python -m benchmarks.models.prepare [ROWS]`. Rows are made here in the layout and proportions of a data set of mathematics: the real one cannot be
had offline. Reads, maps, renders to tokens by Qwen3's tokenizer and chat template, and indexes all of them; a part of the gold answers is judged
apart. Writes its keys into `benchmarks/results/models.json` and leaves the others there; with fewer ROWS it only prints them. Some minutes of a
quiet machine, so nothing is kept of a run that was stopped.
"""

import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]  # Qwen3's tokenizer

from real_tokenizers import checkpoint
from shoal.contracts.datasets import RowFilter
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.datasets import Selection, import_files
from shoal.environments.judgeable import fitting
from shoal.environments.math import Math
from shoal.environments.prompt_check import decided
from shoal.environments.prompts import load_tokenizer, prompt_tokens
from shoal.rewards.gold import gold_flaw
from shoal.rewards.math import shared_judge

RESULTS = ROOT / "benchmarks" / "results" / "models.json"
ROWS = 285_000
GOLDS = 4000
WORDS = (
    "a",
    "train",
    "leaves",
    "with",
    "n",
    "passengers",
    "find",
    "the",
    "number",
    "of",
    "ways",
    "to",
    "choose",
    "all",
    "real",
    "roots",
)


def answer(chance: random.Random) -> str:
    """Seven of ten a whole number, one a fraction, two an expression: some shares of DeepScaleR's answers."""
    kind = chance.random()
    one, two, three = (chance.randint(2, 9999) for _ in range(3))
    if kind < 0.7:
        return str(one)
    if kind < 0.8:
        return rf"\frac{{{one}}}{{{two}}}"
    return chance.choice(
        [
            rf"{one}\sqrt{{{two}}}", rf"\frac{{{one}\pi}}{{{two}}}", f"({one},{two})", rf"\{{{one},{two},{three}\}}", f"x={one}",
            f"[{one},{one + two})", f"{one}x+{two}", rf"\frac{{{one}-\sqrt{{{two}}}}}{{{three}}}", f"{one}^{{{two}}}-1",
        ]
    )  # fmt: skip


def rows(count: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(0)
    for number in range(count):
        text = " ".join(chance.choices(WORDS, k=chance.randint(20, 90)))
        yield {
            "problem_id": f"m{number}",
            "task_type": "verifiable_math",
            "prompt": f"Problem {number}: {text}?",
            "verification_info": json.dumps({"ground_truth": answer(chance)}),
            "solve_rate_qwen_r1_distill_7b": chance.random(),
        }


def write(path: Path, count: int) -> None:
    made = rows(count)
    with pq.ParquetWriter(path, pa.Table.from_pylist([next(rows(1))]).schema) as file:
        while batch := [row for row, _ in zip(made, range(20_000), strict=False)]:
            file.write_table(pa.Table.from_pylist(batch))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "train.parquet"
        write(path, count)
        began = time.perf_counter()
        kept = Selection(
            where=[RowFilter(column="task_type", one_of=["verifiable_math"])],
            shuffle_seed=0,
            solve_rate="solve_rate_qwen_r1_distill_7b",
        )
        tasks = import_files([path], "intellect-2", kept).tasks
        seconds["read and mapped"] = time.perf_counter() - began
    environment = Math()
    folder = checkpoint("qwen3")
    tokenizer = load_tokenizer(folder)
    terms = decided(PromptSettings(), folder, tokenizer)
    mark = time.perf_counter()
    tokens = sum(len(prompt_tokens(tokenizer, environment, task, None, terms)) for task in tasks)
    seconds["rendered"] = time.perf_counter() - mark
    mark = time.perf_counter()
    tasks_digest(tasks)
    table = write_tasks(tasks)
    seconds["indexed"] = time.perf_counter() - mark
    gold_flaw(shared_judge(), "x+1")  # its processes take seconds to load
    golds: list[Task] = tasks[:GOLDS]
    mark, before = time.perf_counter(), time.process_time()
    found = fitting(golds, environment, None)
    judging, own = time.perf_counter() - mark, time.process_time() - before
    shared_judge().close()  # the time of its processes counts once they have ended
    processes = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = own + processes.ru_utime + processes.ru_stime
    figures = {
        "prepare_rows": len(tasks),
        "prepare_seconds_285k_tasks": round(sum(seconds.values()), 1),
        "prepare_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "prepare_prompt_tokens": tokens,
        "prepare_table_bytes": len(table),
        "golds_judged": len(golds),
        "golds_proven": found.proven,
        "golds_judged_per_second": round(len(golds) / judging, 1),
        "golds_cpu_seconds": round(busy, 1),
        "prepare_machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
    }
    print(json.dumps(figures, indent=2))
    if count == ROWS:
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(before | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
