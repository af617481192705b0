"""Rehearses runs of the paper's size without GPUs: `python -m benchmarks.rehearse [--shape NAME]... [--steps N] [--step-seconds S]`.

Shapes are those of `benchmarks.plans`, whose plans were committed before. Real are the orchestrator, discovery, Redis, the store (a folder), the
publisher, one relay's nginx and sync agent, the protocol of every worker and validator, the number of nodes, files, shards, entries and verdicts.
A plan is compared with by its seconds for the steps that were measured: in the first ones nodes are on probation.
By the clock are GPUs (`shoal.planner.rates`, each row with its source) and lines. Time is compressed by one factor for GPUs, lines, disks and
validators alike, so that a planned step takes `--step-seconds` here. What is not compressed is said in the result: polls, heartbeats, Python. Writes
`plan_error_max`, `rehearsal_hours`, `rehearsal_lost_or_doubled` and `rehearsal` to benchmarks/results/size.json.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
for folder in ("tests", "tests/broadcast"):
    sys.path.insert(0, str(ROOT / folder))  # their helper modules are imported by their bare names

from benchmarks.plans.__main__ import HERE, SHAPES
from benchmarks.protocol.churn import Crowd, Told, drained
from benchmarks.protocol.usage import cpu_seconds, resident_bytes
from benchmarks.rehearse.clocks import RunClock
from benchmarks.rehearse.crowd import ClockNode, ClockTrainer, ClockValidator, Shape, World, workers
from benchmarks.rehearse.services import SHARD_BYTES, Services
from servers import Loopback
from shoal.cli.local_run import read_manifest
from shoal.cli.plan import surroundings
from shoal.contracts.validation import Validation
from shoal.planner import step_parts
from shoal.planner.plan import pace
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.plan_facts import run_facts

RESULT = ROOT / "benchmarks" / "results" / "size.json"
STEP_SECONDS = 45.0
"""Real seconds that a planned step takes: long beside polls of half a second, short enough for ten shapes in three hours."""
MOST_SHARDS = 1000
WARM_STEPS = 3
"""Before what is measured: the first steps have all versions and no node in good standing."""
FETCHERS = 4
MORE_STEPS = 50
"""That the run has beyond those that are trained here, so that workers work ahead to the end."""
DEADLINE_FACTOR = 6.0
"""A rehearsal that takes this many times its planned time has got stuck."""


def shape_of(name: str, steps: int | None) -> tuple[Shape, dict[str, Any]]:
    """A shape, and the configuration of its run. `steps`: None for the warm ones and a whole cycle of versions in full, six at least."""
    asked = SHAPES[name]
    run = read_manifest(HERE / asked.manifest).run
    facts = run_facts(run)
    assert facts is not None, "all shapes train"
    cycle = facts.anchor_every * -(-6 // facts.anchor_every)
    validation: Validation = (run.spec.validator or ValidatorTemplate()).validation
    shape = Shape(facts, surroundings(run, asked.asked)[1], validation, steps or WARM_STEPS + cycle + 1)
    return shape, {
        "recipe": run.spec.recipe,
        "sampling": run.spec.sampling,
        "async_level": run.spec.async_level,
        "validation": validation,
        "steps": shape.steps + MORE_STEPS,
    }


async def rehearse(services: Services, shape: Shape, factor: float) -> dict[str, Any]:
    """Run it; the figures."""
    loop = asyncio.get_running_loop()
    clock = RunClock(factor)
    limit = DEADLINE_FACTOR * shape.steps * STEP_SECONDS + 600
    crowd = Crowd(services.stack, until=loop.time() + 10 * limit)
    world = World(shape, services, clock, crowd)
    await services.publish(0)
    world.passed_on[0] = []
    clock.began = time.monotonic()
    parts: list[ClockNode | ClockValidator] = [*workers(world)]
    parts += [ClockValidator(world, number) for number in range(shape.run.validators)]
    tasks = [asyncio.create_task(part.take_part()) for part in parts]
    trainer = asyncio.create_task(ClockTrainer(world).take_part())
    began, seen = time.monotonic(), 0
    while not world.over:
        await asyncio.sleep(0.5)
        for task in [*tasks, trainer]:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()
        if services.failures:
            raise services.failures[0]
        if len(world.sealed) > seen:
            seen = len(world.sealed)
            print(
                f"step {seen - 1} is full after {time.monotonic() - began:.0f} s, {len(crowd.confirmed)} files",
                flush=True,
            )
        if time.monotonic() - began > limit:
            raise TimeoutError(
                f"step {len(world.sealed)} of {shape.steps} after {limit:.0f} s; sealed at {world.sealed}"
            )
    wall = time.monotonic() - began
    crowd.until = loop.time()
    trainer.cancel()
    for task in tasks[: len(tasks) - shape.run.validators]:
        task.cancel()
    lost = await drained(services.stack, crowd)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, trainer, return_exceptions=True)
    told = Told.of(services.stack.store)
    process = services.stack.orchestrator.process
    assert process is not None
    return measured(world) | {
        "steps": shape.steps,
        "nodes": len(parts) - shape.run.validators,
        "joined": crowd.joined,
        "files_handed_in": len(crowd.confirmed),
        "files_accepted": len(told.accepted),
        "files_expired": sum(status == "expired" for status in crowd.confirmed.values()),
        "lost": len(lost),
        "doubled": told.doubled,
        "shards_a_version": services.shards,
        "shards_fetched": services.fetched_shards,
        "shards_bad": services.bad_shards,
        "refusals": dict(crowd.refusals.most_common()),
        "real_seconds": round(wall),
        "real_seconds_of_the_publisher": round(services.publish_seconds, 2),
        "orchestrator_cpu_share": round(cpu_seconds(process.pid) / wall, 2),
        "orchestrator_mb": round(resident_bytes(process.pid) / 1e6),
    }


def measured(world: World) -> dict[str, Any]:
    """Seconds of a step and of its parts, as the plan has them, between the last warm step and the last."""
    run, seals = world.shape.run, world.sealed
    first, last = min(WARM_STEPS, len(seals) - 2), len(seals) - 1
    begin, end, steps = seals[first], seals[last], last - first
    nodes = step_parts.nodes(run, world.shape.around)
    machines = {"generate": nodes, "upload": nodes, "verify": run.validators, "broadcast": nodes}
    each = {name: busy.between(begin, end) / steps / max(1, machines.get(name, 1)) for name, busy in world.busy.items()}
    step = (end - begin) / steps
    return {
        "step_seconds": round(step, 1),
        "parts": {name: round(seconds, 1) for name, seconds in each.items()},
        "idle_shares": {name: round(1 - seconds / step, 3) for name, seconds in each.items()},
        "bottleneck": max(each, key=lambda name: each[name]),
        "steps_measured": steps,
    }


def planned_seconds(shape: Shape) -> float:
    """Of the measured steps on average, by their files' places among those of their nodes."""
    run, around = shape.run, shape.around
    files = step_parts.files_a_step(run, around) / max(1, step_parts.nodes(run, around))
    steps = range(WARM_STEPS, shape.steps)
    return sum(pace(run, around, int(step * files)).step for step in steps) / len(steps)


def compared(name: str, shape: Shape, found: dict[str, Any]) -> dict[str, Any]:
    """The figures beside those of the plan that was committed."""
    plan, step = json.loads((HERE / f"{name}.json").read_text()), planned_seconds(shape)
    return {
        "plan_error": round(found["step_seconds"] / step - 1, 3),
        "planned_step_seconds": round(step, 1),
        "planned_later_step_seconds": plan["step_seconds"],
        "planned_bottleneck": plan["bottleneck"]["part"],
        "planned_parts": {part["name"]: part["seconds"] for part in plan["parts"]},
        **found,
    }


def one(name: str, steps: int | None, step_seconds: float, fetchers: int) -> dict[str, Any]:
    """Rehearse one shape on services of its own."""
    shape, changes = shape_of(name, steps)
    factor = json.loads((HERE / f"{name}.json").read_text())["step_seconds"] / step_seconds
    shards = max(8, min(MOST_SHARDS, shape.around.version // shape.run.shard_bytes))
    with tempfile.TemporaryDirectory() as folder:
        loopback = Loopback()
        services = Services(Path(folder), loopback, shards, shape.run.anchor_every, fetchers, **changes)
        try:
            services.start()
            found = asyncio.run(rehearse(services, shape, factor))
        finally:
            services.close()
            loopback.close()
    return compared(name, shape, found) | {
        "time_factor": round(factor, 2),
        "bytes_scale": shape.run.shard_bytes / SHARD_BYTES,
        "load_1_min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearse", description=str(__doc__).splitlines()[0])
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="of benchmarks/plans; default: all")
    parser.add_argument("--steps", type=int, metavar="N", help="default: warm ones and a cycle of versions in full")
    parser.add_argument(
        "--step-seconds", type=float, default=STEP_SECONDS, metavar="S", help="real time of a planned step"
    )
    parser.add_argument(
        "--fetchers", type=int, default=FETCHERS, metavar="N", help="nodes that fetch each shard over HTTP"
    )
    parser.add_argument("--no-result", action="store_true", help="write nothing to benchmarks/results")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for name in asked.shape or SHAPES:
        print(f"== {name}", flush=True)
        found[name] = one(name, asked.steps, asked.step_seconds, asked.fetchers)
        print(json.dumps(found[name], indent=2), flush=True)
        if not asked.no_result:
            record(found)
    if any(each["lost"] or each["doubled"] or each["shards_bad"] for each in found.values()):
        sys.exit("files were lost or doubled, or shards were bad")


def record(found: dict[str, Any]) -> None:
    """Write what was found, beside shapes that were rehearsed before."""
    result = json.loads(RESULT.read_text())
    shapes = result.get("rehearsal", {}) | found
    result |= {
        "plan_error_max": max(abs(each["plan_error"]) for each in shapes.values()),
        "rehearsal_hours": round(sum(each["real_seconds"] for each in shapes.values()) / 3600, 2),
        "rehearsal_lost_or_doubled": sum(each["lost"] + each["doubled"] for each in shapes.values()),
        "rehearsal": shapes,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
