"""Do packages written for verifiers run unchanged, with rewards equal on worker and validator, and in verifiers' own `vf-eval`?

`python -m benchmarks.agents.verifiers_environments [NAME ...]` takes the packages of `verifiers_packages`. A scripted engine (`verifiers_scripts`)
stands where the model is. A worker in a process of its own plays the episodes with Shoal's loop, and claims rewards for their tokens and masks. The
validator checks their shape, answers all calls again, and scores. With `--vf-eval FOLDER` (packages `prime-runs`, `prime-traces` and `uv`, installed
there with `pip install --target`) verifiers plays the same scripts itself, and figures of the packages go into `benchmarks/results/agents.json`.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.agents.reasoning_gym import JOB, facts_of, own_process, row_of
from benchmarks.agents.verifiers_scripts import SCRIPTS
from shoal.contracts.prompts import PromptTerms
from shoal.contracts.rollouts import RolloutMetadata
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, digest, load
from shoal.environments.episodes import scored_text, tools_of
from shoal.environments.places import FOLDERS_VARIABLE
from shoal.environments.prompts import CALL, prompt_tokens
from shoal.environments.scored_once import ScoredOnce
from shoal.environments.turns import Rerun, Turns, calls_of
from shoal.inference.completions import Completion, Request
from shoal.inference.rollouts import PlannedRow
from shoal.inference.tool_episodes import play
from shoal.validation.checks import reward as reward_check
from shoal.validation.facts import Facts, File

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RESULT = Path(__file__).parents[1] / "results" / "agents.json"
PACKAGES = Path(__file__).with_name("verifiers_packages")
SEED, LIMIT, MOST = 30, 1 << 16, 16
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}{% if message.role == 'assistant' %}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TERMS = PromptTerms(template="Chat", tokenizer_digest="0" * 64)
VF_EVAL = (
    "--client.api-key-var KEY --env.agent.harness.id null --env.agent.runtime.type subprocess --push false --no-rich"
)
STAND_INS = Path(__file__).with_name("vf_eval_stand_ins")
RUN_VF_EVAL = "from verifiers.v1.cli.eval.main import main; main()"


@dataclass(frozen=True)
class Played:
    """A row of a worker: task number, tokens, mask, how it ended, and the reward that it claims."""

    task: int
    tokens: list[int]
    mask: list[bool]
    finish_reason: str
    claim: float | None


@dataclass(frozen=True)
class Compared:
    """One package: its tasks and rows, how many rows both sides score and score alike, and how many verifiers scored, and as Shoal."""

    tasks: int
    rows: int
    with_tools: int
    scored: int
    alike: int
    by_verifiers: int
    as_verifiers: int
    rewards: int
    """Different ones: a package that gives one reward to everything proves nothing."""

    @property
    def equal(self) -> bool:
        """Whether both sides score every row alike, and whichever episodes verifiers plays as they do."""
        return self.rows == self.scored == self.alike and self.by_verifiers == self.as_verifiers and self.rewards > 1

    @property
    def unchanged(self) -> bool:
        """Whether verifiers too plays every episode, with the rewards of Shoal."""
        return self.equal and self.by_verifiers == self.rows


class Engine:
    """Answers each request with the turn of its script that comes next."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", scripts: Sequence[Sequence[str]]) -> None:
        self._tokenizer = tokenizer
        self._scripts = {number: iter(script) for number, script in enumerate(scripts)}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """A completion a request, whose seed is the number of its script."""
        return [self._completion(next(self._scripts[each.seed])) for each in requests]

    def _completion(self, text: str) -> Completion:
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), int(self._tokenizer.eos_token_id)]
        return Completion(tokens, [0.0] * len(tokens), "stop", b"")


def loaded_tokenizer(folder: str) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def planned_rows(
    environment: Environment, tasks: Sequence[Task], tokenizer: "PreTrainedTokenizerFast", numbers: Sequence[int]
) -> list[PlannedRow]:
    """A row for each script, by the number of its task; its seed is the script's place."""
    return [
        PlannedRow(
            task=tasks[number],
            prompt_index=number,
            sample_index=0,
            target_length=None,
            request=Request(prompt_tokens(tokenizer, environment, tasks[number], None, TERMS), place, 1.0, LIMIT),
        )
        for place, number in enumerate(numbers)
    ]


def worked(name: str, table: bytes, folder: str) -> tuple[str, list[Played]]:
    """The worker's side: its environment's digest, and its rows."""
    environment, tasks, tokenizer = load(name), read_tasks(table), loaded_tokenizer(folder)
    end = frozenset({tokenizer.eos_token_id})
    tools = tools_of(environment, tokenizer, end, TERMS)
    scripts = [(number, script) for number, task in enumerate(tasks) for script in episodes(name, task)]
    engine = Engine(tokenizer, [script for _, script in scripts])
    planned = planned_rows(environment, tasks, tokenizer, [number for number, _ in scripts])
    alone = [each.request for each in planned]
    made = engine.generate(alone) if tools is None else play(planned, tools, engine.generate)
    scored = ScoredOnce(environment)
    rows = []
    for (number, _), each in zip(scripts, made, strict=True):
        mask = each.mask or [True] * len(each.tokens)
        text = scored_text(tools, tokenizer, each.tokens, mask, end)
        rows.append(Played(number, each.tokens, mask, each.finish_reason, scored.reward(tasks[number], text)))
    return digest(environment), rows


def episodes(name: str, task: Task) -> list[list[str]]:
    """The scripts of a task."""
    return SCRIPTS[name.partition(":")[2]](task.verification_info["data"])


def validated(
    name: str, tasks: Sequence[Task], tokenizer: "PreTrainedTokenizerFast", rows: Sequence[Played]
) -> list[float | None]:
    """The validator's side: its own task rewards. RuntimeError when it holds a row against the worker."""
    return checked(validator_of(name, tasks, tokenizer, len(rows)), rows)


def validator_of(name: str, tasks: Sequence[Task], tokenizer: "PreTrainedTokenizerFast", rows: int) -> Facts:
    """What a validator of a file of so many rows knows."""
    return replace(facts_of(load(name), tasks, tokenizer, rows), prompt=TERMS)


def checked(facts: Facts, rows: Sequence[Played]) -> list[float | None]:
    """The task rewards that a validator computes, after it has answered every call again. RuntimeError when it holds a row against the worker."""
    lines = [
        replace(row_of(facts.tasks[each.task], each.task, each.tokens, each.claim), completion_mask=each.mask)
        for each in rows
    ]
    if isinstance(facts.tools, Turns):
        for each in rows:
            task = facts.tasks[each.task]
            given = (each.tokens, each.mask, each.finish_reason, LIMIT)
            wrong = facts.tools.problem(task, *given)
            again = facts.tools.run_again(task, *given)
            if wrong is not None or replace(again, program_seconds=0.0) != Rerun():
                raise RuntimeError(
                    f"{facts.environment.name}: the validator says of {task.problem_id}: {wrong or again}"
                )
    file = File(JOB, lines, RolloutMetadata("none", "", facts.environment_digest, ""))
    ours = reward_check.score_rows(file, facts)
    if (finding := reward_check.check(file, facts, ours)) is not None:
        raise RuntimeError(f"the validator's check: {finding}")
    return [each.task_reward for each in ours]


def compare(package: str, folder: Path, most: int = MOST, vf_eval: Path | None = None) -> Compared:
    """All tasks of a package, at most `most`. `folder` takes a tokenizer and what `vf-eval` writes. RuntimeError when the sides differ in more."""
    from shoal.environments.generated_tokenizer import train_tokenizer

    name = f"verifiers:{package}"
    environment = load(name)
    table = write_tasks(first_tasks(environment, most))
    tasks = read_tasks(table)
    tokenizer = train_tokenizer(["plain text"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    with own_process(hash_seed="7") as worker:
        its_digest, rows = worker.submit(worked, name, table, str(folder)).result()
    if its_digest != digest(environment):
        raise RuntimeError(f"{name}: the worker's environment has another digest")
    computed = validated(name, tasks, loaded_tokenizer(str(folder)), rows)
    theirs = [] if vf_eval is None else by_verifiers(package, tasks, folder, vf_eval)
    ours = iter(computed)
    by_script = {(task.problem_id, place): next(ours) for task in tasks for place in range(len(episodes(name, task)))}
    return Compared(
        tasks=len(tasks),
        rows=len(rows),
        with_tools=sum(not all(each.mask) for each in rows),
        scored=sum(each.claim is not None and mine is not None for each, mine in zip(rows, computed, strict=True)),
        alike=sum(each.claim == mine for each, mine in zip(rows, computed, strict=True)),
        by_verifiers=len(theirs),
        as_verifiers=sum(by_script[problem, place] == reward for problem, place, reward in theirs),
        rewards=len(set(computed)),
    )


def first_tasks(environment: Environment, most: int) -> list[Task]:
    """The tasks that `vf-eval -n` takes: those with which the task set begins. Shoal draws from all, in an order of its own."""
    if not hasattr(environment, "task_count"):
        return environment.tasks(most, SEED)
    every = environment.tasks(environment.task_count(), SEED)
    return sorted(every, key=place_in_set)[:most]


def place_in_set(task: Task) -> int:
    """The number of a task in its task set. The same task twice has the first of its numbers."""
    return int(task.verification_info["data"]["idx"])


def asked_text(task: Task) -> str:
    """What the user asks, by which the stand-in of a model knows the task."""
    return task.prompt if isinstance(task.prompt, str) else task.prompt[-1].content


def by_verifiers(package: str, tasks: Sequence[Task], folder: Path, installed: Path) -> list[tuple[str, int, float]]:
    """Problem id, number of the episode, and reward (as Shoal reads verifiers' parts of it) of each episode that `vf-eval` plays to its end."""
    scripts = {asked_text(task): (task.problem_id, episodes(f"verifiers:{package}", task)) for task in tasks}
    found: dict[tuple[str, int], float] = {}
    for trace in traces_of_vf_eval(package, scripts, place_in_set(tasks[-1]) + 1, folder, installed):
        replies = [each["message"] for each in trace["nodes"] if each["sampled"]]
        prompt = next(each["message"] for each in trace["nodes"] if each["message"]["role"] == "user")
        problem, scripted = scripts[prompt["content"]]
        found[problem, place_of(replies, scripted)] = reward_of(trace["rewards"])
    return [(problem, place, reward) for (problem, place), reward in found.items()]


def traces_of_vf_eval(
    package: str,
    scripts: dict[str, tuple[str, list[list[str]]]],
    tasks: int,
    folder: Path,
    installed: Path,
    most: int = 4,
    seconds_of: Callable[[str], float] = lambda turn: 0.0,
    home: Path | None = None,
) -> list[dict[str, Any]]:
    """What `vf-eval` wrote of the episodes of the first `tasks` that did not fail, `most` at a time. RuntimeError when there is none.

    `scripts` has the problem id and episodes of each prompt. The engine takes `seconds_of` a turn for it. `home` keeps what
    `vf-eval` caches; without it nothing is cached.
    """
    rounds = max(len(each) for _, each in scripts.values())
    known = (
        f"{STAND_INS}{os.pathsep}{PACKAGES}{os.pathsep}{os.environ.get(FOLDERS_VARIABLE, '')}{os.pathsep}{installed}"
    )
    variables = {
        **os.environ,
        "PYTHONPATH": known,
        "PATH": f"{installed / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KEY": "none",
        "HOME": str(home or folder),
    }
    with served(scripts, seconds_of) as address:
        line = [sys.executable, "-c", RUN_VF_EVAL, package, "-n", str(tasks), "-r", str(rounds), "--model", "scripted"]
        done = subprocess.run(
            [*line, "--max-concurrent", str(most), "--client.base-url", f"{address}/v1", *VF_EVAL.split()],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    found = []
    for path in folder.glob(f"outputs/{package}--*/traces.jsonl"):
        for line_ in path.read_text().splitlines():
            (trace,) = json.loads(line_)["traces"]
            if trace["ok"]:
                found.append(trace)
                continue
            failed = trace["errors"][-1]
            print(f"vf-eval {package}: an episode failed: {failed['type']} {failed['message'][:500]}", file=sys.stderr)
    if not found:
        raise RuntimeError(f"vf-eval {package} ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
    return found


def reward_of(parts: dict[str, dict[str, float]]) -> float:
    """verifiers' reward by Shoal's rule: divided by the positive weights above 1, and between 0 and 1."""
    weights = sum(max(each["weight"], 0.0) for each in parts.values())
    total = sum(each["score"] * each["weight"] for each in parts.values())
    return min(max(total / max(weights, 1.0), 0.0), 1.0)


def said(turn: str) -> dict[str, Any]:
    """A turn as the message that an inference server makes of it."""
    calls = calls_of(turn)
    thoughts, ended, text = turn.rpartition("</think>")
    message: dict[str, Any] = {"role": "assistant", "content": text.partition(CALL)[0].strip() if calls else text}
    if ended:
        message["reasoning_content"] = thoughts.replace("<think>", "", 1).strip()
    if calls:
        message["tool_calls"] = [
            {
                "index": place,
                "id": f"call_{place}",
                "type": "function",
                "function": {"name": each.name, "arguments": json.dumps(dict(each.arguments))},
            }
            for place, each in enumerate(calls)
        ]
    return message


def _key(content: str | None, calls: Sequence[dict[str, Any]]) -> str:
    return json.dumps([(content or "").strip(), [[each["name"], json.loads(each["arguments"])] for each in calls]])


def place_of(replies: Sequence[dict[str, Any]], scripted: Sequence[Sequence[str]]) -> int:
    """Which script an episode followed. StopIteration when none."""
    seen = [_key(each.get("content"), each.get("tool_calls") or []) for each in replies]
    thoughts = [bool(each.get("reasoning_content")) for each in replies]
    wanted = [
        (
            [
                _key(made["content"], [each["function"] for each in made.get("tool_calls", ())])
                for made in map(said, script)
            ],
            ["reasoning_content" in said(turn) for turn in script],
        )
        for script in scripted
    ]
    return next(place for place, each in enumerate(wanted) if each == (seen, thoughts))


@contextmanager
def served(
    scripts: dict[str, tuple[str, list[list[str]]]], seconds_of: Callable[[str], float] = lambda turn: 0.0
) -> Iterator[str]:
    """An OpenAI-compatible server that plays the scripts of each prompt in turn, and takes `seconds_of` a turn for it. Its address."""
    begun: dict[str, int] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = next(each["content"] for each in body["messages"] if each["role"] == "user")
            replies = [each for each in body["messages"] if each["role"] == "assistant"]
            if prompt not in scripts:
                self.answer(
                    404, "application/json", json.dumps({"error": f"no script answers {prompt!r:.200}"}).encode()
                )
                return
            scripted = scripts[prompt][1]
            if replies:
                ident = replies[0]["tool_calls"][0]["id"]
                place = int(ident.partition("-")[2])
            else:
                with lock:
                    place = begun[prompt] = (begun.get(prompt, -1) + 1) % len(scripted)
            turn = scripted[place][len(replies)]
            time.sleep(seconds_of(turn))
            message = said(turn)
            for each in message.get("tool_calls", ()):
                each["id"] = f"turn{len(replies)}call{each['index']}-{place}"
            self.answer(200, "text/event-stream", streamed(message))

        def answer(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def streamed(message: dict[str, Any]) -> bytes:
    """A message as the events of a streamed answer."""
    base = {"id": "scripted", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks: list[dict[str, Any]] = [
        {**base, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    ]
    return ("".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n").encode()


@contextmanager
def packages_here() -> Iterator[None]:
    """The packages of this folder beside those that the variable names."""
    before = os.environ.get(FOLDERS_VARIABLE)
    os.environ[FOLDERS_VARIABLE] = f"{before}{os.pathsep}{PACKAGES}" if before else str(PACKAGES)
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLDERS_VARIABLE]
        else:
            os.environ[FOLDERS_VARIABLE] = before


def write(found: dict[str, Compared]) -> None:
    """Put the figures of these packages into the results, beside those of others."""
    from benchmarks.prime.pipeline import write_json
    from benchmarks.reproduce.page import measured_on

    before = json.loads(RESULT.read_text())
    stored = before.get("verifiers_environments", {}).get("packages", {})
    packages = {
        name: asdict(found[name]) | {"unchanged": found[name].unchanged} if name in found else stored[name]
        for name in SCRIPTS
        if name in found or name in stored
    }
    figures = {
        "verifiers_environments_unchanged": sum(each["unchanged"] for each in packages.values()),
        "verifiers_environments": {
            "version": "0.4.0",
            "rows": sum(each["rows"] for each in packages.values()),
            "rows_with_tools": sum(each["with_tools"] for each in packages.values()),
            "rows_as_vf_eval": sum(each["as_verifiers"] for each in packages.values()),
            "not_unchanged": [name for name, each in packages.items() if not each["unchanged"]],
            "not_measured": [name for name in SCRIPTS if name not in packages],
            "packages": packages,
            "machine": measured_on(),
        },
    }
    write_json(RESULT, before | figures)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME", help="packages; default: all")
    asked.add_argument("--vf-eval", type=Path, metavar="FOLDER", help="what vf-eval needs beside verifiers")
    chosen = asked.parse_args()
    with packages_here():
        for package in chosen.names or SCRIPTS:
            with TemporaryDirectory() as folder:
                found = compare(package, Path(folder), vf_eval=chosen.vf_eval and chosen.vf_eval.resolve())
            print(package, json.dumps(asdict(found)), flush=True)
            if chosen.vf_eval:
                write({package: found})


if __name__ == "__main__":
    main()
