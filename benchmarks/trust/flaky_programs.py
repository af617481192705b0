"""Programs that answer differently each time, in files of honest nodes: how often their claims differ, and whom that evicts.

In: an orchestrator's Redis and folder, a number of files. Out: figures for `benchmarks/results/trust_system.json`. Called by `system`.

`measured` is real: each kind of program runs `RUNS` times in this machine's sandbox, through the environment `code`. `judged` draws every score of a
file from those runs, the node's and each of the validator's by itself, so that the two are machines of their own. The rest is real again: the rewards
that count and the check of claims (`validation.checks.reward`), verdict and signature, and the orchestrator's leases, queue, verdicts, evictions and
ledger over Redis and a folder. Draws and proofs, which look at no reward, are left out. So is the pause of a second before a second try.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from structlog.testing import capture_logs

from shoal.contracts.protocol import Lease, ValidationJob
from shoal.contracts.rollouts import Rollout
from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable, scored_once
from shoal.environments.code import Code
from shoal.environments.scored_once import ScoredOnce
from shoal.rewards.sandbox import choose, trial
from shoal.rewards.sandbox.pool import SandboxPool
from shoal.rewards.sandbox.process import Box
from shoal.validation import judge
from shoal.validation.facts import Facts, File
from shoal.validation.metrics import PROGRAM_DISAGREEMENTS
from shoal.validation.stopwatch import Stopwatch

RUNS = 30
"""Of each kind of program, on this machine."""
SECONDS = 0.2
"""Limit of CPU time of each test; a right program that takes up to twice as long cannot be scored."""
KILLED_SECONDS = 0.1
BUSY = """import resource
while resource.getrusage(resource.RUSAGE_SELF).ru_utime < {seconds}: sum(range(50_000))
print(42)"""
RACE = """import threading
counted = 0
def count():
    global counted
    for _ in range(300_000):
        seen = counted
        counted = int(seen) + 1
threads = [threading.Thread(target=count) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(42 if counted % 2 else 41)"""
KILLED = "is killed by its machine"
RIGHT, WRONG = "right", "wrong"
PROGRAMS = {
    RIGHT: "print(42)",
    WRONG: "print(41)",
    "reads the clock": "import time\nprint(42 if time.time_ns() // 1000 % 2 else 41)",
    "draws random numbers": "import random\nprint(42 if random.random() < 0.5 else 41)",
    "reads the kernel's clock": "import time\nprint(42 if time.monotonic_ns() // 1000 % 2 else 41)",
    "lets two threads race": RACE,
    "takes about its limit": BUSY.format(seconds=0.9 * SECONDS),
    KILLED: BUSY.format(seconds=0.5 * SECONDS),
}
"""What a program does, and its text. Clock and random numbers are the sandbox's, the same each time; what follows them is not."""
FLAKY = [name for name in PROGRAMS if name not in (RIGHT, WRONG)]
Outcomes = Mapping[str, Sequence[Score | Unscorable]]


class KillingPool(SandboxPool):
    """Every other sandbox is killed from outside while its program runs, as by a machine short of memory."""

    taken = 0

    def _next(self) -> Box:
        box = super()._next()
        self.taken += 1
        if self.taken % 2:
            threading.Timer(KILLED_SECONDS, box._kill).start()
        return box


def measured(runs: int = RUNS) -> dict[str, list[Score | Unscorable]]:
    """What `runs` runs of each program score in this machine's sandbox."""
    found: dict[str, list[Score | Unscorable]] = {}
    isolation = choose(trial)
    for kind in (SandboxPool, KillingPool):
        pool = kind(isolation, slots=1)
        try:
            with mock.patch("shoal.environments.code.shared_pool", lambda pool=pool: pool):
                for task in tasks():
                    if (task.problem_id == KILLED) == (kind is KillingPool):
                        found[task.problem_id] = [Code().score(task, answer(task.problem_id)) for _ in range(runs)]
        finally:
            pool.close()
    return found


def tasks() -> list[Task]:
    """One task a program, named as it is."""
    test = {"type": "stdin_stdout", "input": "", "output": "42\n"}
    info = {"language": "python", "test_cases": [test], "time_limit_seconds": SECONDS}
    return [Task(problem_id=name, task_type="code", prompt="?", verification_info=info) for name in PROGRAMS]


def answer(name: str) -> str:
    return f"```python\n{PROGRAMS[name]}\n```"


class Drawn:
    """An environment whose scores are drawn from those that were measured."""

    runs_programs = True

    def __init__(self, outcomes: Outcomes, chance: random.Random) -> None:
        self._outcomes, self._chance = outcomes, chance

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        return self._chance.choice(self._outcomes[task.problem_id])


class Bytes:
    """A token is a byte of the text."""

    added_tokens_decoder: Mapping[int, Any] = {}

    def decode(self, token_ids: list[int], **_: object) -> str:
        return bytes(token_ids).decode()


def judged(
    folder: Path, redis_url: str, outcomes: Outcomes, files: int, nodes: int = 4, seed: int = 1
) -> dict[str, int]:
    """What `files` files of honest nodes come to, half of whose rows are flaky; one file at the end has a certain fault, and must evict its node."""
    from protocol_stack import GROUP_SIZE, verdict_on
    from run_states import Orchestrator
    from shoal.contracts.recipe import Recipe
    from shoal.orchestrator import background
    from shoal.orchestrator.work import handout

    recipe = Recipe(prompts_per_step=40, group_size=GROUP_SIZE, max_sequence_length=128)
    run = Orchestrator(folder, redis_url, steps=files // 15 + 2, recipe=recipe)
    state, chance = run.state, random.Random(seed)
    names = [run.join() for _ in range(nodes)]
    table, environment = tasks(), Drawn(outcomes, chance)
    facts = cast(Facts, SimpleNamespace(
        environment=environment, tasks=table, tokenizer=Bytes(), eos_token_ids=frozenset(), length_reward=None,
        turn_credit=False,
        is_claimed=lambda row: False,
        validation=state.config.validation, prefixes=lambda rows: [0] * len(rows),
        scored_text=lambda row, _: Bytes().decode(row.completion_tokens),
    ))  # fmt: skip
    before, differing, left_out, version = _disagreements(), 0, 0, 0
    run.announce(version)

    def serve(node: str) -> Lease:
        step = handout.step_for(state, node)
        assert step is not None
        return cast(Lease, run.lease(node, step.step))

    with mock.patch.object(scored_once, "PAUSE_SECONDS", 0.0), capture_logs():
        for number in range(files):
            run.clock.now += 4.0  # so a node stays within its files an hour
            lease = serve(names[number % nodes])
            run.confirm(lease, run.upload(lease))
            job = run.claimed(f"validator-{number % 2}")
            rows = _rows(job, table, environment, chance)
            file = File(job, rows, cast(Any, None))
            programs = judge.time_of(job, facts)
            rewards, finding = judge.scored(file, facts, Stopwatch(), lambda: None, programs)
            found = judge.verdict(job, file, finding, rewards, 0, Stopwatch(), f"validator-{number % 2}")
            run.judge(found.model_copy(update={"program_seconds": programs.spent}))
            claims = [row.task_reward for row in rows]
            ours = [reward.task_reward for reward in rewards] or claims
            differing += any(a is not None and a != b for a, b in zip(claims, ours, strict=True))
            left_out += ours.count(None)
            while version in state.view.sealed:
                version += 1
                run.announce(version)
                background.settle_late(state)
    evicted = len(state.view.evicted)
    lease = serve(names[0])
    run.confirm(lease, run.upload(lease))
    run.judge(verdict_on(run.claimed(), "reject", "bounds", evidence="a control"))
    assert state.view.evicted == {names[0]}, "a certain fault evicts its node, or the figure says nothing"
    return {
        "evicted": evicted,
        "nodes": nodes,
        "files": files,
        "files_accepted": sum(state.view.files_of[node].accepted for node in names),
        "files_whose_rewards_were_not_as_claimed": differing,
        "rows_claimed_otherwise": int(_disagreements() - before),
        "rows_left_out": left_out,
        "steps_sealed": len(state.view.sealed),
    }


def right(outcomes: Outcomes) -> dict[str, str]:
    """How many of the measured runs of each program scored 1."""
    return {
        name: f"{sum(isinstance(each, Score) and each.task_reward == 1.0 for each in runs)} of {len(runs)}"
        for name, runs in outcomes.items()
    }


def _rows(job: ValidationJob, table: Sequence[Task], environment: Drawn, chance: random.Random) -> list[Rollout]:
    """Two groups: a right and a wrong answer, so that there is signal; and two flaky ones. Claimed as the node's own run scores them."""
    chosen = [RIGHT, WRONG, *chance.choices(FLAKY, k=2)]
    ours, rows = ScoredOnce(cast(Any, environment)), []
    for number, name in enumerate(chosen):
        task = next(task for task in table if task.problem_id == name)
        text = answer(name) + f"\n{number}"  # so that equal answers are runs of their own
        reward = ours.reward(task, text)
        rows.append(
            Rollout(
                run=job.run, step=job.step, policy_version=job.min_version, node=job.node, submission=job.submission,
                problem_id=name, prompt_index=table.index(task), sample_index=number % 2, prompt_tokens=[1],
                completion_tokens=list(text.encode()), completion_logprobs=[], completion_mask=[], finish_reason="stop",
                task_type="code", target_length=None, task_reward=reward,
                length_penalty=None if reward is None else 0.0, reward=reward, seed=0, temperature=1.0, proofs=b"",
            )
        )  # fmt: skip
    return rows


def _disagreements() -> float:
    """Rows whose programs scored differently, as the validator counts them."""
    return sum(
        sample.value
        for metric in PROGRAM_DISAGREEMENTS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )
