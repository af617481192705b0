"""An arm by the real system: `shoal up` with vLLM workers, proofs, a validator and relays, for the table beside the simulator's arms.

    python -m benchmarks.reproduce.system async0-1 async2-1     arms of MATCHED_ARMS, each with a seed; some 15 minutes each, resumable
    python -m benchmarks.reproduce.system async2-1 --steps 5    fewer steps, in the cache only
    python -m benchmarks.reproduce.system --page                no run: benchmarks/results/reproduction_system.json and docs/reproduction.md

In: an arm, a seed. Out: the columns of the simulator where the system has them, and the lag of the rows that were trained on, as the batches say it.
The manifest is examples/arithmetic with the arm's recipe. Base model, tasks, held-out tasks and what measures a version are the simulator's. Each
fifth version is measured. Beside each run stands the simulator's from the same base model: a seed's base model differs between kinds of machine.

What still differs from the simulator, and cannot be set:

- Rows are up to `async_level` versions behind, as many as the machine makes them. The simulator's are always as far behind as the level allows.
- Beacons draw prompts, lengths and seeds. The pools are the same, the draws are not, and no prompt comes twice in a file.
- Files have four groups and are sampled until a step is full. The simulator samples 22 groups at once, or 16 without the online filter.
- A batch takes files as they are accepted. Short answers come a little sooner, and what comes after the batch is full is left out.
- vLLM samples, transformers learns: `mismatch_kl` says how far apart they are.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from benchmarks.reproduce import agreement, overlap
from benchmarks.reproduce.__main__ import (
    CACHE,
    RESULT,
    ROOT,
    compact,
    digest,
    known_runs,
    simulated,
    write_tables,
    write_whole,
)
from benchmarks.reproduce.arms import ARMS, MATCHED_ARMS, MATCHED_STEPS, Arm
from benchmarks.reproduce.summary import began_alike
from shoal.contracts import keys
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared
from shoal.contracts.steps import StepBatch
from shoal.contracts.tasks import Task, tasks_digest
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator.work.step_counter import signal_groups
from shoal.report.access import RunAccess, has_orchestrator, open_run
from shoal.report.facts import StoreFacts, StoreReader
from shoal.report.times import read_times
from shoal.storage.versions import materialise, sealed_versions, versions_with_shards
from shoal_operator.api.manifest import load_manifest

if TYPE_CHECKING:
    from benchmarks.reproduce.base import Start

EXAMPLE = ROOT / "examples" / "arithmetic" / "trainingrun.yaml"
SYSTEM_RESULT = RESULT.with_name("reproduction_system.json")
PREFIX = "matched_"
KEPT_VERSIONS = 4 * agreement.MEASURE_EVERY_STEPS
"""Those that are measured are copied out of the store while the run goes on; it keeps a version for some more steps than that takes."""
GROUPS_PER_FILE = 4
"""A quarter of a step, as in the example."""
COLUMNS = {
    "prompt": "prompt",
    "verificationInfo": "verification_info",
    "problemId": "problem_id",
    "taskType": "task_type",
}
FROM_METRICS = (
    "loss", "kl", "entropy", "clip_low", "clip_high", "clip_delta", "gradient_norm", "gradient_norm_max", "mismatch_kl", "rows_left_out",
)  # fmt: skip
"""Of what the trainer reports, beside the lag."""
OF_SIMULATOR = ("step", "version", "groups_sampled", "task_reward", "held_out_reward")
"""What is kept of the simulator's columns, which are made again in a minute."""

FIRST_VERSION_SECONDS = 1200.0
"""Calibration of the proofs, and all imports, on two cores that others use too."""
VERSION_SECONDS = 600.0
END_SECONDS = 300.0
STOP_SECONDS = 120.0
POLL_SECONDS = 2.0


def main() -> None:
    asked = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Else `shoal up` would go on without us.
    signal.signal(signal.SIGTERM, _end)
    CACHE.mkdir(parents=True, exist_ok=True)
    for name, seed in asked.runs:
        load_manifest(yaml.safe_dump(manifest(MATCHED_ARMS[name], seed, asked.steps, CACHE, CACHE)), name)
    for name, seed in asked.runs:
        one_run(name, seed, asked.steps, CACHE)
    if asked.page:
        write_results(CACHE, SYSTEM_RESULT)
        runs = known_runs(RESULT, ARMS | MATCHED_ARMS)
        write_tables(runs, SYSTEM_RESULT, ROOT / "docs" / "reproduction.md")
        overlap.draw(agreement.read(SYSTEM_RESULT), ROOT / "docs" / "images" / "reproduction" / "overlap.png")


def manifest(arm: Arm, seed: int, steps: int, model: Path, tasks: Path) -> dict[str, Any]:
    """The TrainingRun of an arm: the example's, with the arm's recipe, the checkpoint folder `model`, and `tasks`, a file of JSON lines.

    Raises ValueError for an arm that no manifest can say, and for steps that cannot be compared.
    """
    every = agreement.MEASURE_EVERY_STEPS
    if steps % every or not 0 < steps <= arm.steps:
        raise ValueError(f"--steps is {steps}; allowed: multiples of {every} up to {arm.steps}, the simulator's")
    if arm.boundaries:
        raise ValueError(
            f"arm {arm.title!r} changes versions at tokens {arm.boundaries}: a run begins segments at multiples of 32"
        )
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    made["metadata"]["name"] = run_name(arm, seed)
    recipe = recipe_of(arm).model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = made["spec"]
    spec |= {
        "model": {"path": str(model)},
        "tasks": {"environment": "arithmetic", "dataset": {"path": str(tasks), "columns": COLUMNS}},
        "steps": steps,
        "seed": seed,
        "asyncLevel": arm.async_level,
        "recipe": recipe,
        "sampling": {
            "temperature": 1.0,
            "maxCompletionTokens": arm.max_completion,
            "groupsPerSubmission": GROUPS_PER_FILE,
        },
        "lengthReward": arm.lengths.model_dump(mode="json", by_alias=True),
    }
    spec["relayServer"]["keptVersions"] = KEPT_VERSIONS
    spec["trainer"]["settings"] = {"compile": arm.compiled}
    return made


def recipe_of(arm: Arm) -> Recipe:
    """The arm's recipe with its online filter, which the simulator keeps apart."""
    return arm.full_recipe().model_copy(update={"online_filter": "TaskReward" if arm.online_filter else "None"})


def run_name(arm: Arm, seed: int) -> str:
    """Name of the TrainingRun, such as `async2-1`."""
    [name] = [name for name, each in MATCHED_ARMS.items() if each == arm]
    return f"{name.removeprefix(PREFIX).replace('_', '-')}-{seed}"


def one_run(name: str, seed: int, steps: int, cache: Path) -> None:
    """Write the JSON of one arm with one seed, unless the cache has it. What a stop leaves is taken up again.

    Raises RuntimeError where the run fails or is not the arm's, TimeoutError where it makes no progress.
    """
    place = place_of(name, seed, steps, cache)
    if place.exists():
        return
    from benchmarks.reproduce.base import start_of  # takes seconds, and what is there needs none

    arm = MATCHED_ARMS[name]
    start = start_of(arm, seed, cache)
    home = place.with_suffix("")
    home.mkdir(exist_ok=True)
    tasks, path = home / "tasks.jsonl", home / "run.yaml"
    tasks.write_text("".join(json.dumps(row_of(task)) + "\n" for task in start.tasks))
    path.write_text(yaml.safe_dump(manifest(arm, seed, steps, start.folder.resolve(), tasks.resolve())))
    began, folder = time.monotonic(), home / "runs" / run_name(arm, seed)
    if newest_version(folder) < steps:
        shoal_up(home, folder, steps)
    minutes = (time.monotonic() - began) / 60
    copy_versions(folder, home / "versions")
    access = open_run(folder)
    check_tasks(access, start.tasks)
    facts = StoreReader(access.store).read()
    records = records_of(facts, arm, steps)
    spent, bars = overlap.of_run(facts, read_times(access.store), recipe_of(arm))
    for record, seconds in zip(records, spent, strict=False):
        record |= seconds
    for version in range(0, steps + 1, agreement.MEASURE_EVERY_STEPS):
        records[version] |= measured(home / "versions" / keys.version_name(version), version, arm, start, seed)
    columns = compact(records)
    beside = simulated_beside(name, seed, columns, cache)
    write_whole(place, {"system": columns, "simulator": {each: beside[each] for each in OF_SIMULATOR}, "bars": bars})
    shutil.rmtree(home)
    print(
        f"{name} seed {seed}: {columns['held_out_reward'][-1]} after {steps} steps, {minutes:.1f} minutes", flush=True
    )


def simulated_beside(name: str, seed: int, columns: dict[str, list[Any]], cache: Path) -> dict[str, list[Any]]:
    """The simulator's columns of the same steps, from the cache where its run began with the same base model, else from a run of its own."""
    arm = replace(MATCHED_ARMS[name], steps=columns["step"][-1])
    found = simulated(name, arm, seed, cache, run=False)
    if found is not None and began_alike(found, columns):
        return found
    made = simulated(f"here-{name}", arm, seed, cache, run=True)
    assert made is not None
    return made


def place_of(name: str, seed: int, steps: int, cache: Path) -> Path:
    """The JSON of one run; the digest is that of the arm with as many steps."""
    return cache / f"system-{name}-{seed}-{digest(replace(MATCHED_ARMS[name], steps=steps))}.json"


def row_of(task: Task) -> dict[str, Any]:
    """A task as a row of the run's data set."""
    return task.model_dump(mode="json", include=set(COLUMNS.values()))


def shoal_up(home: Path, folder: Path, steps: int) -> None:
    """Run `home/run.yaml` to its end. Only the process that is started here is stopped, which stops its own.

    Raises RuntimeError with the end of its log where it fails, TimeoutError where no version comes within its deadline.
    """
    command = [sys.executable, "-m", "shoal.cli.main", "up", "-f", str(home / "run.yaml"), "--no-tty"]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen([*command, "--runs-dir", str(home / "runs")], stdout=log, stderr=log)
    try:
        newest, since = newest_version(folder), time.monotonic()
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            found = newest_version(folder)
            if found > newest:
                copy_versions(folder, home / "versions")
                newest, since = found, time.monotonic()
                print(f"{folder.name}: version {newest} of {steps}", flush=True)
            wanted, seconds = waits_for(newest, steps)
            if time.monotonic() - since > seconds:
                raise TimeoutError(f"{folder.name}: {wanted} did not come within {seconds:.0f} s\n{_end_of(home)}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{folder.name}: `shoal up` ended with code {process.returncode}\n{_end_of(home)}")


def waits_for(newest: int, steps: int) -> tuple[str, float]:
    """What comes after version `newest` (-1: none yet), and within how many seconds."""
    if newest < 0:
        return "version 0, the base model,", FIRST_VERSION_SECONDS
    if newest < steps:
        return f"version {newest + 1} of {steps}", VERSION_SECONDS
    return "the end of `shoal up`", END_SECONDS


def newest_version(folder: Path) -> int:
    """Newest version in the run's store, -1 before the first."""
    if not has_orchestrator(folder):
        return -1
    return max(sealed_versions(open_run(folder).store), default=-1)


def copy_versions(folder: Path, target: Path) -> None:
    """Put each version of the run that is to be measured into a folder of `target`, where its store still has it."""
    access = open_run(folder)
    for version in versions_with_shards(access.store):
        if version % agreement.MEASURE_EVERY_STEPS == 0:
            materialise(access.store, version, target / keys.version_name(version), access.run, access.trainer)


def _end_of(home: Path) -> str:
    return (home / "log").read_text(errors="replace")[-3000:]


def check_tasks(access: RunAccess, tasks: Sequence[Task]) -> None:
    """Raise RuntimeError unless the run's table has exactly `tasks`."""
    found = Prepared.from_json(access.store.get(keys.PREPARED)).tasks_digest
    if found != tasks_digest(tasks):
        raise RuntimeError(f"{access.run} has other tasks than the simulator: delete its folder in the cache")


def records_of(facts: StoreFacts, arm: Arm, steps: int) -> list[dict[str, Any]]:
    """A record a step, and one for the end, from what a finished run left. Rewards and lengths (tokens) are of all accepted rows.

    `rows_behind_2`: trained rows whose version was two before the step's. `seconds`: since the step before.
    Raises RuntimeError where a step is missing, or has rows of older versions than its level allows.
    """
    size = arm.full_recipe().group_size
    metrics = {each.step: each for each in facts.steps}
    batches = {each.step: each for each in facts.batches}
    records: list[dict[str, Any]] = []
    for step in range(steps):
        if step not in metrics or step not in batches:
            raise RuntimeError(f"step {step} of {steps} has no batch or no metrics in the run's store")
        of_step = [each for each in facts.verdicts if each.step == step]
        trained, behind = metrics[step], lags(batches[step], size)
        if max(behind) > arm.async_level:
            raise RuntimeError(f"step {step} has rows {max(behind)} versions behind; allowed: {arm.async_level}")
        record = {"step": step} | sampled(of_step, size)
        record |= {f"rows_behind_{lag}": behind[lag] for lag in range(arm.async_level + 1)}
        record |= {"policy_lag_mean": trained.policy_lag_mean, "groups_used": batches[step].groups}
        record |= {name: getattr(trained, name) for name in FROM_METRICS}
        if step - 1 in metrics:
            record["seconds"] = trained.finished_unix - metrics[step - 1].finished_unix
        records.append(record)
    return [*records, {"step": steps}]


def lags(batch: StepBatch, group_size: int) -> Counter[int]:
    """Rows of a batch by how many versions they are behind the one that the step begins with."""
    found: Counter[int] = Counter()
    for file in batch.files:
        found[batch.step - file.policy_version] += len(file.prompt_indices) * group_size
    return found


def sampled(verdicts: Sequence[Verdict], group_size: int) -> dict[str, float | int]:
    """Means over all rows that were accepted for a step, those of dropped groups too, and what became of its files."""
    accepted = [each for each in verdicts if each.outcome == "accept"]
    rewards = [row for each in accepted for row in each.rewards]
    scored = [row for row in rewards if row.task_reward is not None]
    groups = len(rewards) // group_size
    outcomes = Counter(each.outcome for each in verdicts)
    return {
        "reward": sum(row.reward or 0.0 for row in scored) / len(scored),
        "task_reward": sum(row.task_reward or 0.0 for row in scored) / len(scored),
        "completion_length": sum(each.completion_tokens for each in accepted) / len(rewards),
        "groups_sampled": groups,
        "signal_share": len(signal_groups(rewards, range(groups), group_size, "TaskReward")) / groups,
        "files_accepted": outcomes["accept"],
        "files_rejected": outcomes["reject"],
        "files_late": outcomes["expired"],
    }


def measured(folder: Path, version: int, arm: Arm, start: "Start", seed: int) -> dict[str, float | int | None]:
    """What the simulator measures of a version, of the one in `folder`.

    Raises RuntimeError where version 0 is not the base model, or a version is missing.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.reproduce.simulator import Answers, measure

    if not folder.is_dir():
        raise RuntimeError(f"version {version} was deleted before it was copied to {folder}: delete the run's folder")
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").state_dict()
    model = AutoModelForCausalLM.from_pretrained(start.folder, dtype="float32").eval()
    if version == 0 and not all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items()):
        raise RuntimeError(f"version 0 in {folder} is not the base model in {start.folder}")
    return measure(Answers(model, AutoTokenizer.from_pretrained(start.folder), arm), weights, start, seed)


def write_results(cache: Path, result: Path, steps: int = MATCHED_STEPS) -> None:
    """Write all runs of `steps` steps that the cache or the committed file has; a run of an arm that has changed since is left out."""
    before = agreement.read(result)["arms"]
    arms: dict[str, Any] = {}
    for name, arm in MATCHED_ARMS.items():
        found = digest(replace(arm, steps=steps))
        seeds = dict(before[name]["seeds"]) if before.get(name, {}).get("digest") == found else {}
        for path in cache.glob(f"system-{name}-*-{found}.json"):
            seeds[path.name.removeprefix(f"system-{name}-").partition("-")[0]] = json.loads(path.read_text())
        if seeds:
            arms[name] = {"digest": found, "seeds": {seed: seeds[seed] for seed in sorted(seeds, key=int)}}
    from benchmarks.reproduce.page import measured_on

    write_whole(result, {"steps": steps, "measured_on": measured_on(), "arms": arms})


def _run(text: str) -> tuple[str, int]:
    """`async2-1` as ("matched_async2", 1)."""
    short, _, seed = text.rpartition("-")
    name = PREFIX + short.removeprefix(PREFIX)
    if name not in MATCHED_ARMS or not seed.isdecimal() or int(seed) < 1:
        arms = ", ".join(each.removeprefix(PREFIX) for each in MATCHED_ARMS)
        raise argparse.ArgumentTypeError(f"{text!r} is no run; allowed: ARM-SEED with a seed from 1 and one of {arms}")
    return name, int(seed)


def _end(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=_run, metavar="ARM-SEED", help="such as async2-1")
    parser.add_argument(
        "--steps", type=int, default=MATCHED_STEPS, help="multiple of 5; the page has runs of all steps"
    )
    parser.add_argument("--page", action="store_true", help="write results and page from what is there")
    asked = parser.parse_args()
    if not asked.runs and not asked.page:
        parser.error("say which runs, such as async2-1, or --page")
    return asked


if __name__ == "__main__":
    main()
