"""A tiny policy that calls the calculator, and the file that a worker process with a real engine makes with it.

The policy is taught for some seconds to write a call first, and after each result either another one or the answer.
"""

import functools
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked_python import WORKER, start_python

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))

import tiny_policy
import torch
from court import DIGEST, VERSION
from socket_agent import Agent, SocketAgent
from transformers import AutoTokenizer

import samples
from servers import STARTED_WITH, wait_until
from shoal.contracts.completions import Sampling
from shoal.contracts.keys import version_name
from shoal.contracts.pools import EngineSettings
from shoal.contracts.rollouts import read_rollouts
from shoal.contracts.run import AgentState, NodeConfig
from shoal.contracts.signed import sign
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.weights import WeightsManifest
from shoal.environments import digest
from shoal.environments.episodes import Tools
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tool import Tool
from shoal.inference.rollouts import PlannedRow, plan_submission
from shoal.storage.checkpoint_files import MANIFEST_FILE

ADDRESS = "127.13.0.6"
WORKER_SECONDS = 280.0
TRAINER = samples.ROLE_KEYS["trainer"]
LEASE = tiny_policy.LEASE.model_copy(update={"lease": "0" * 32, "submission": 0})
"""The first that the test's agent gives."""
ENVIRONMENT = Tool()
TASKS = ENVIRONMENT.tasks(32, seed=5)
PUBLIC = tiny_policy.PUBLIC.model_copy(
    update={
        "environment": "tool",
        "environment_digest": digest(ENVIRONMENT),
        "tasks_digest": tasks_digest(TASKS),
        "task_count": len(TASKS),
        "max_sequence_length": 320,
        "sampling": Sampling(temperature=0.8, max_completion_tokens=132, groups_per_submission=3),
        "length_reward": None,
    }
)
CALL, RESULT, REST = "<calc>2*3</calc>", "<result>6</result>", "\nAnswer: 6"
UPDATES = 60
IGNORED = -100
EOS = frozenset({tiny_policy.EOS})


def plan(tokenizer: Any) -> list[PlannedRow]:
    return plan_submission(
        PUBLIC.codec.decode(tiny_policy.STEP.step),
        tiny_policy.STEP,
        LEASE,
        PUBLIC,
        TASKS,
        lambda task, target: prompt_tokens(tokenizer, ENVIRONMENT, task, target, None),
    )


def taught_policy(folder: Path) -> Any:
    """A model that writes a call, and after each result a call (one time in three) or the answer; saved in `folder`."""
    model = tiny_policy.make_policy(folder, seed=9)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chance = random.Random(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(UPDATES):
        texts = [
            (
                ENVIRONMENT.prompt(chance.choice(TASKS), None),
                (CALL + RESULT) * chance.choice((1, 1, 2, 5)) + REST,
            )
            for _ in range(8)
        ]
        rows = [(tokenizer.encode(prompt), [*tokenizer.encode(answer), tiny_policy.EOS]) for prompt, answer in texts]
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        tokens, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), IGNORED)
        for number, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            tokens[number, :end] = torch.tensor(prompt + answer)
            labels[number, len(prompt) : end] = torch.tensor(answer)
        model(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    return model


class ToolScenario:
    """The policy, and the file that a worker process made for LEASE."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()  # short: a socket's path has at most 107 characters
        home = Path(self._folder.name)
        self.model = publish_policy(home)
        self.tokenizer = AutoTokenizer.from_pretrained(home / "weights" / version_name(VERSION))
        self.planned = plan(self.tokenizer)
        self.tools = Tools(ENVIRONMENT, self.tokenizer, EOS)
        state = AgentState(node=tiny_policy.NODE, state="Healthy", trainer_key=TRAINER.public, public=PUBLIC)
        agent = Agent(state=state, tasks=TASKS, step=tiny_policy.STEP)
        self.data = file_of_a_worker(home, agent)
        self.rows, self.metadata = read_rollouts(self.data)


@functools.cache
def tool_scenario() -> ToolScenario:
    return ToolScenario()


def publish_policy(home: Path, teach: Callable[[Path], Any] = taught_policy) -> Any:
    """The taught policy as VERSION in `weights/`, as the fetcher leaves it."""
    partial = home / "weights" / "partial"
    model = teach(partial)
    manifest = WeightsManifest(
        run="tiny", version=VERSION, model="tiny-model", sha256=DIGEST, open_digest="0" * 64, shards=["0" * 64]
    )
    (partial / MANIFEST_FILE).write_bytes(sign(manifest, TRAINER).to_json())
    partial.rename(home / "weights" / version_name(VERSION))
    return model


def file_of_a_worker(home: Path, agent: Agent, address: str = ADDRESS) -> bytes:
    """Start `python -m shoal.inference` in `home`, and end it when it has handed in its first file. `address`: where its metrics are served."""
    for folder in ("tmp", "config"):
        (home / folder).mkdir()
    node = NodeConfig(
        run="tiny",
        pool="pool",
        engine=EngineSettings(kv_cache_bytes=64 << 20),
        discovery="http://127.0.0.1:1",
        roster=samples.ROSTER,
        run_key=samples.RUN_KEY.public,
    )
    (home / "config" / "node.json").write_bytes(node.to_json())
    socket = SocketAgent(home, agent)
    settings = {"SHOAL_HOME": str(home), "SHOAL_BIND": address, "SHOAL_POD": "tools-0"}
    with (home / "log").open("w") as log:
        worker = start_python(["-m", "shoal.inference"], WORKER, env=STARTED_WITH | settings, stdout=log.fileno())
    try:
        wait_until("the worker's file", lambda: agent.files or worker.poll() is not None, WORKER_SECONDS)
        assert agent.files, (home / "log").read_text()[-6000:]
    finally:
        worker.kill()
        worker.wait()
        socket.close()
    return agent.files[0][1]
