"""How many episodes a second do Shoal's worker and verifiers' own loop play on the same engine, and what does a validator's rescoring cost?

`python -m benchmarks.agents.episodes --vf-eval FOLDER [--together N]` (the folder of `verifiers_environments`). The engine stands where the model is:
it writes scripted turns, `RATE` tokens a second and sequence. Both loops play the same episodes of the package `atlas`, N at a time: a tool's call,
its output, an answer. Rounds alternate. Shoal's side is the worker's loop (`Generation`), its thread for tools, and its scoring. verifiers' side is
`vf-eval` with its null harness, timed by its own traces: from the start of its first episode to the end of its last scoring. The start of either, and
verifiers' one tool server for all episodes, come before. `vf-eval` starts a process for each episode: many together show how many a machine's cores
can start, one at a time shows what an episode takes where cores are free.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.agents.reasoning_gym import own_process
from benchmarks.agents.verifiers_environments import (
    MOST,
    RESULT,
    TEMPLATE,
    TERMS,
    Played,
    asked_text,
    checked,
    first_tasks,
    loaded_tokenizer,
    packages_here,
    place_in_set,
    planned_rows,
    reward_of,
    traces_of_vf_eval,
    validator_of,
)
from benchmarks.agents.verifiers_scripts import call
from benchmarks.workers.fleet import PUBLIC
from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task
from shoal.contracts.weights import WeightsManifest
from shoal.environments.base import load
from shoal.environments.episodes import scored_text, tools_of
from shoal.environments.scored_once import ScoredOnce
from shoal.inference.batch import PlannedLease, RunningLease
from shoal.inference.beside import Beside, RowTools
from shoal.inference.completions import Completion, Request
from shoal.inference.generation import Generation, Wish
from shoal.inference.weights import VersionOnDisk

RATE = 50.0
"""Tokens a second of each sequence: about what a 32B model gives on a node of GPUs. A faster engine shows more of both loops' own time."""
TOGETHER = 16
"""Episodes at a time, of both, for the headline."""
PACKAGE = "atlas"
ROUNDS = 3
STEP_DEADLINE_SECONDS = 120.0
"""The longest that the worker's loop may have nothing to decode while its tools answer."""


def episode(data: dict[str, Any], number: int) -> list[str]:
    """The turns of episode `number` of a task, which gets all of the reward. No two are equal: equal answers are scored once by Shoal."""
    name = data["prompt"].rstrip("?").split()[-1]
    return [f"Look {number}. {call('atlas_tools_search', words=name)}", f"It is {data['answer']}, says page {number}."]


def written(task: Task, together: int) -> list[list[str]]:
    """The episodes of a task: those of all four tasks fill the places once."""
    return [episode(task.verification_info["data"], number) for number in range(max(1, together // 4))]


class PacedEngine:
    """Decodes `sequences` scripts together, a token of each in a step of `1 / RATE` seconds. A request's seed is the number of its script."""

    def __init__(self, scripts: Sequence[Sequence[Sequence[int]]], sequences: int) -> None:
        """`scripts`: the tokens of each turn of each script."""
        self.sequences = sequences
        self._turns = [iter(script) for script in scripts]
        self._running: dict[str, list[Any]] = {}  # tokens of the turn, steps left
        self._count = 0

    def start(self, request: Request, pauses: Callable[[Sequence[int]], bool] | None = None) -> str:
        if pauses is not None:
            raise RuntimeError("the scripts are whole turns: no sequence pauses inside one")
        tokens = list(next(self._turns[request.seed]))
        self._count += 1
        self._running[str(self._count)] = [tokens, len(tokens)]
        return str(self._count)

    def step(self) -> list[tuple[str, Completion]]:
        time.sleep(1 / RATE)
        ended = []
        for name, turn in list(self._running.items()):
            turn[1] -= 1
            if turn[1] == 0:
                del self._running[name]
                ended.append((name, Completion(turn[0], [0.0] * len(turn[0]), "stop", b"")))
        return ended

    def abort(self, names: Collection[str]) -> None:
        raise RuntimeError(f"the loop gave up {len(names)} rows")

    def cut(self) -> list[tuple[str, Completion]]:
        raise RuntimeError("there is one version of the weights")

    def grown(self) -> list[tuple[str, Completion]]:
        raise RuntimeError("no rows are kept")


@dataclass
class OneLease:
    """A desk with one lease."""

    given: PlannedLease | None
    info: StepInfo | None = None
    newest: VersionOnDisk | None = None
    most: int = 1
    shortage: str = "no-lease"

    def want(self, wish: Wish | None) -> None:
        pass

    def take(self) -> PlannedLease | None:
        given, self.given = self.given, None
        return given


@dataclass(frozen=True)
class Ours:
    """A round of Shoal's worker: its seconds until the last episode is scored, and its rows."""

    seconds: float
    rows: list[Played] = field(repr=False)


def turn_tokens(tokenizer: Any, turn: str) -> list[int]:
    return [*tokenizer.encode(turn, add_special_tokens=False), int(tokenizer.eos_token_id)]


def played_by_worker(table: bytes, folder: str, together: int) -> Ours:
    """One round in this process. What loads before the first row begins (tokenizer, environment and its sandbox) is not timed."""
    environment, tasks, tokenizer = load(f"verifiers:{PACKAGE}"), read_tasks(table), loaded_tokenizer(folder)
    end = frozenset({tokenizer.eos_token_id})
    tools = tools_of(environment, tokenizer, end, TERMS)
    scripts = [(number, script) for number, task in enumerate(tasks) for script in written(task, together)]
    engine = PacedEngine([[turn_tokens(tokenizer, turn) for turn in script] for _, script in scripts], together)
    planned = planned_rows(environment, tasks, tokenizer, [number for number, _ in scripts])
    manifest = WeightsManifest(
        run="clock", version=0, model="m", sha256="0" * 64, open_digest="0" * 64, shards=["0" * 64]
    )
    version = VersionOnDisk(0, Path(), manifest)
    began = time.monotonic()
    life = 3600.0
    lease = Lease(lease="0" * 32, node="0" * 64, step=0, submission=0, expires_unix=time.time() + life)
    given = PlannedLease(lease, PUBLIC.codec.decode(0), PUBLIC, version, planned, tools, began, began + life, life)
    woken = threading.Event()
    finished: list[RunningLease] = []

    def given_up(lease: RunningLease, reason: str, error: Exception | None) -> None:
        raise RuntimeError(f"the lease was given up: {reason}") from error

    loop = Generation(
        engine, OneLease(given), RowTools(Beside("tools", woken.set)), version, swap=lambda policy: None,
        finished=finished.append, given_up=given_up, handing_in=list, clock=time.monotonic,
    )  # fmt: skip
    while not finished:
        if not loop.turn() and not finished:
            if not woken.wait(STEP_DEADLINE_SECONDS):
                raise RuntimeError(f"no tool answered for {STEP_DEADLINE_SECONDS:.0f} s")
            woken.clear()
    scored = ScoredOnce(environment)
    rows = []
    for (number, _), made in zip(scripts, finished[0].completions, strict=True):
        mask = made.mask or [True] * len(made.tokens)
        text = scored_text(tools, tokenizer, made.tokens, mask, end)
        rows.append(Played(number, made.tokens, mask, made.finish_reason, scored.reward(tasks[number], text)))
    return Ours(time.monotonic() - began, rows)


def played_by_verifiers(tasks: Sequence[Task], tokenizer: Any, installed: Path, home: Path, together: int) -> float:
    """Seconds of one round of `vf-eval`, whose caches are in `home`. RuntimeError when an episode has less than all of the reward or did not end."""
    scripts = {asked_text(task): (task.problem_id, written(task, together)) for task in tasks}
    count = sum(len(each) for _, each in scripts.values())
    with TemporaryDirectory() as folder:
        traces = traces_of_vf_eval(
            PACKAGE, scripts, place_in_set(tasks[-1]) + 1, Path(folder), installed, together,
            lambda turn: len(turn_tokens(tokenizer, turn)) / RATE, home,
        )  # fmt: skip
    rewards = [reward_of(each["rewards"]) for each in traces]
    if rewards != [1.0] * count:
        raise RuntimeError(f"vf-eval {PACKAGE}: {rewards.count(1.0)} of {count} episodes were right")
    began = min(each["timing"]["start"] for each in traces)
    return float(max(each["timing"]["scoring"]["end"] for each in traces) - began)


def measured(together: int, rounds: int, installed: Path) -> dict[str, Any]:
    """Rounds of both in turn, and the validator's rescoring of each of Shoal's."""
    from shoal.environments.generated_tokenizer import train_tokenizer

    environment = load(f"verifiers:{PACKAGE}")
    table = write_tasks(first_tasks(environment, MOST))
    tasks = read_tasks(table)
    ours, theirs, shares = [], [], []
    with TemporaryDirectory() as folder, TemporaryDirectory() as home:
        made = train_tokenizer(["plain text"])
        made.chat_template = TEMPLATE
        made.save_pretrained(folder)
        tokenizer = loaded_tokenizer(folder)
        lengths = [
            sum(len(turn_tokens(tokenizer, turn)) for turn in each)
            for task in tasks
            for each in written(task, together)
        ]
        facts = validator_of(f"verifiers:{PACKAGE}", tasks, tokenizer, len(lengths))
        with own_process(hash_seed="7") as worker:
            for _ in range(rounds):
                played = worker.submit(played_by_worker, table, folder, together).result()
                ours.append(len(lengths) / played.seconds)
                began = time.monotonic()
                if checked(facts, played.rows) != [1.0] * len(lengths):
                    raise RuntimeError("not every episode of the worker has all of the reward")
                shares.append((time.monotonic() - began) / played.seconds)
                seconds = played_by_verifiers(tasks, tokenizer, installed, Path(home), together)
                theirs.append(len(lengths) / seconds)
    return {
        "episodes": len(lengths),
        "sampled_tokens_an_episode": round(statistics.fmean(lengths), 1),
        "engine_alone": round(together * RATE / statistics.fmean(lengths), 3),
        "shoal": [round(each, 3) for each in ours],
        "verifiers": [round(each, 3) for each in theirs],
        "ratio": [round(mine / other, 3) for mine, other in zip(ours, theirs, strict=True)],
        "rescoring_share": [round(each, 4) for each in shares],
    }


def figures_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What stands in the results. `found` has the measured rounds by the number of episodes together; medians of the headline's are on top."""
    from benchmarks.reproduce.page import measured_on

    headline = found[str(TOGETHER)]
    return {
        "episodes_per_second": round(statistics.median(headline["shoal"]), 3),
        "episodes_per_second_of_verifiers": round(statistics.median(headline["verifiers"]), 3),
        "episodes_per_second_ratio": round(statistics.median(headline["ratio"]), 3),
        "rescoring_share_of_rollout": round(statistics.median(headline["rescoring_share"]), 4),
        "episodes": {
            "engine": "stand-in that writes scripted turns",
            "tokens_per_second_of_a_sequence": RATE,
            "package": PACKAGE,
            "verifiers_version": "0.4.0",
            "together": found,
            "machine": measured_on(),
        },
    }


def main() -> None:
    from benchmarks.prime.pipeline import write_json

    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument(
        "--vf-eval", type=Path, required=True, metavar="FOLDER", help="what vf-eval needs beside verifiers"
    )
    asked.add_argument("--together", type=int, default=TOGETHER, help=f"episodes at a time; default: {TOGETHER}")
    chosen = asked.parse_args()
    with packages_here():
        found = measured(chosen.together, ROUNDS, chosen.vf_eval.resolve())
    print(json.dumps(found), flush=True)
    before = json.loads(RESULT.read_text())
    stored = before.get("episodes", {}).get("together", {})
    write_json(RESULT, before | figures_of(stored | {str(chosen.together): found}))


if __name__ == "__main__":
    main()
