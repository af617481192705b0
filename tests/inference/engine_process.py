"""Real vLLM engines that do a list of commands: `python engine_process.py FOLDER` reads commands.json there, and writes results.json.

Started by `tiny_policy.EngineRun`.

Commands: asynchronous (engines from here on schedule so), start (folder, settings, quantization, routes: record them;
the engine before ends), generate (requests, stop_after decoding steps), join (requests), continue (folder of the
tokenizer: the continuations of what was generated last, as `tiny_policy.PUBLIC_VINE` has them),
cut (requests, stop_after decoding steps, folder of the weights that they go on under, version of the first),
grow (requests, stop_after decoding steps: the engine then loses them, and they go on behind what it had told),
swap (folder, checked: whether its bytes are held to its manifest), preemptions (how many there were), version (found),
head (states, one row: the logits of an engine of one process, and their type).
"""

import base64
import faulthandler
import gc
import json
import os
import sys
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import tiny_policy
import torch
from asynchronous import fork_ranks, schedule_asynchronously
from transformers import AutoTokenizer

from shoal.contracts.pools import EngineSettings
from shoal.contracts.routes import route_shape
from shoal.inference.batch import RunningLease
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Completion
from shoal.inference.engine import Engine, GenerationStoppedError
from shoal.inference.generation import Generation
from shoal.inference.rollouts import PlannedRow, plan_continuations
from shoal.storage.checkpoint_files import WrongWeights, sealed_by

STUCK_SECONDS = 385.0
"""Whoever waits for an engine gives up a little later: by then its log has the stacks of its threads."""


class PREEMPTED:
    """Counts what vLLM's scheduler takes out of the batch for want of memory."""

    total = 0


def count_preemptions() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # loaded by then, with the variables that `engine` sets

    preempt = Scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> None:
        PREEMPTED.total += 1
        preempt(*args, **kwargs)

    Scheduler._preempt_request = counted


def refusal_of_version(found: str) -> str | None:
    from shoal.inference import vllm_hooks  # loads vLLM, which `engine` has prepared for

    try:
        vllm_hooks._check_version(found)
    except vllm_hooks.UnsupportedVllmError as refused:
        return str(refused)
    return None


def head(engine: Engine, states: list[float]) -> Any:
    """What the model that the engine holds now makes of these states."""

    def asked(worker: Any) -> Any:
        model, dtype = worker.model_runner.get_model(), worker.model_runner.model_config.dtype
        logits = model.compute_logits(torch.tensor([states], dtype=dtype))
        return {"dtype": str(logits.dtype), "logits": logits[0].tolist()}

    return engine._engine.collective_rpc(asked)[0]


def completion_json(completion: Completion) -> dict[str, Any]:
    routes = completion.routes.hex() if completion.routes is not None else None
    return asdict(completion) | {"proofs": base64.b64encode(completion.proofs).decode(), "routes": routes}


def generate(engine: Engine, command: dict[str, Any]) -> Any:
    steps = count()
    limit = command.get("stop_after", float("inf"))
    requests = [tiny_policy.request_of(request) for request in command["requests"]]
    try:
        made = engine.generate(requests, lambda: "the test says so" if next(steps) >= limit else None)
        return [completion_json(completion) for completion in made]
    except GenerationStoppedError as stopped:
        return str(stopped)


def join(engine: Engine, command: dict[str, Any]) -> list[dict[str, Any]]:
    """Completions of requests that join one by one, a step after the other, between some that are aborted."""
    requests = [tiny_policy.request_of(request) for request in command["requests"]]
    made: dict[str, Completion] = {}
    names = []
    for request in requests:
        aborted = engine.start(request)
        names.append(engine.start(request))
        made |= dict(engine.step())
        engine.abort([aborted])
    while engine.running or len(made) < len(names):
        made |= dict(engine.step())
    return [completion_json(made[name]) for name in names]


def cut(engine: Engine, command: dict[str, Any]) -> list[dict[str, Any]]:
    """Completions of requests that go on under other weights after some steps, by the product's own loop; the prefixes are computed again."""
    planned = [
        PlannedRow(tiny_policy.TASKS[0], 0, number, None, tiny_policy.request_of(request))
        for number, request in enumerate(command["requests"])
    ]
    loaded, newer = (tiny_policy.on_disk(command["version"] + more, Path(command["folder"])) for more in (0, 1))
    desk = tiny_policy.OneLease(planned, loaded)
    done: list[RunningLease] = []
    loop = Generation(
        engine,
        desk,
        desk,
        loaded,
        swap=lambda policy: engine.swap(read_checkpoint(policy.folder)),
        finished=done.append,
        given_up=lambda lease, reason, error: None,
        handing_in=list,
        clock=time.monotonic,
        several=True,
    )
    for turn in count():
        if done:
            return [completion_json(completion) for completion in done[0].completions]
        if turn == command["stop_after"]:
            desk.newest = newer
        loop.turn()


def grow(engine: Engine, command: dict[str, Any]) -> list[dict[str, Any]]:
    """Completions of requests that are lost after some steps, and go on behind what was told of them in whole proofs, as the journal has it."""
    requests = [tiny_policy.request_of(request) for request in command["requests"]]
    names = [engine.start(request) for request in requests]
    made: dict[str, Completion] = {}
    kept = {name: Completion([], [], "cut", b"") for name in names}

    def joined(first: Completion, then: Completion) -> Completion:
        return replace(
            then,
            tokens=first.tokens + then.tokens,
            logprobs=first.logprobs + then.logprobs,
            proofs=first.proofs + then.proofs,
        )

    for step in range(command["stop_after"]):
        made |= dict(engine.step())
        for name, new in engine.grown() if step % 3 == 0 else []:
            kept[name] = joined(kept[name], new)
    engine.abort(names)
    later = {}
    for name, request in zip(names, requests, strict=True):
        if name not in made:
            more = request.max_tokens - len(kept[name].tokens)
            prompt = (*request.prompt_tokens, *kept[name].tokens)
            later[engine.start(replace(request, prompt_tokens=prompt, max_tokens=more))] = name
    while later.keys() - made.keys():
        made |= dict(engine.step())
    made |= {name: joined(kept[name], made[again]) for again, name in later.items()}
    return [completion_json(made[name]) for name in names]


def main(folder: Path) -> None:
    count_preemptions()
    fork_ranks()  # those of whole workers are started as the product does it (`test_engine_hosts`)
    results: list[Any] = []
    engine: Engine | None = None
    for command in json.loads((folder / "commands.json").read_text()):
        match command["do"]:
            case "asynchronous":
                results.append(schedule_asynchronously())
            case "start":
                checkpoint = read_checkpoint(Path(command["folder"]))
                settings = EngineSettings(**command.get("settings", {}))
                length = command.get("length", 128)
                routes = route_shape(checkpoint.config) if command.get("routes") else None
                if engine is not None:
                    engine.close()
                    engine = None  # what it held for the whole process goes before the next one makes its own
                    gc.collect()
                engine = Engine(
                    checkpoint,
                    max_sequence_length=length,
                    batch=16,
                    settings=settings,
                    cuts=command.get("cuts", False),
                    quantization=command.get("quantization"),
                    routes=routes,
                )
                results.append(None)
            case "generate":
                results.append(generate(engine, command))
            case "join":
                results.append(join(engine, command))
            case "cut":
                results.append(cut(engine, command))
            case "grow":
                results.append(grow(engine, command))
            case "continue":
                tokenizer = AutoTokenizer.from_pretrained(command["folder"])
                completions = [Completion(**(one | {"proofs": base64.b64decode(one["proofs"])})) for one in results[-1]]
                rows = plan_continuations(tiny_policy.plan(tokenizer), completions, tiny_policy.PUBLIC_VINE)
                requests = [tiny_policy.request_json(row.request) for row in rows]
                results.append(generate(engine, {"requests": requests}))
            case "version":
                results.append(refusal_of_version(command["found"]))
            case "head":
                results.append(head(engine, command["states"]))
            case "preemptions":
                results.append(PREEMPTED.total)
            case "swap":
                folder_of = Path(command["folder"])
                sealed = sealed_by(folder_of).document if command.get("checked") else None
                try:
                    engine.swap(read_checkpoint(folder_of), sealed)
                    results.append(None)
                except (ValueError, WrongWeights) as refused:
                    results.append(str(refused))
    engine.close()
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(STUCK_SECONDS)
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to be tidied by vLLM
