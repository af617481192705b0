"""Do worker and validator score the generators of reasoning-gym alike, and as the package itself does?

`python -m benchmarks.agents.reasoning_gym [--each N] [NAME ...]` makes tasks of every generator (or those named) as prepare does, writes and reads
them as the task table, and answers each: right, nearly right, wrong, and with Python. A worker in a process of its own claims rewards; the validator
computes them again from tokens. A third process, which is in no sandbox, asks the package about the items that it made itself. Writes
`benchmarks/results/agents.json`.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from shoal.contracts.completions import Sampling
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout, RolloutMetadata
from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import Task
from shoal.contracts.validation import Validation
from shoal.environments.base import Environment, digest, load
from shoal.environments.reasoning_gym import UNTOLD, VERSION, ReasoningGym
from shoal.environments.reasoning_gym_answers import (
    CLOSING,
    EXPRESSIONS,
    INTEGRALS,
    LISTS,
    OPENING,
    answer_of,
    harmless,
)
from shoal.environments.scored_once import ScoredOnce
from shoal.environments.tokens import completion_text
from shoal.rewards.total import total_reward
from shoal.validation.checks import reward as reward_check
from shoal.validation.facts import Facts, File

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RESULT = Path(__file__).parents[1] / "results" / "agents.json"
SEED = 30
EMPTY = 7
"""Which of `completions` has an empty answer."""
PYTHON = tuple(
    f"{OPENING}{answer}{CLOSING}"
    for answer in (
        "[__import__('sys')._getframe(1).f_locals['oracle_answer']]",
        "__import__('os')._exit(0)",
        "(lambda: 24)()",
        "[oracle_answer]",
        "x.__class__.__mro__",
        "9**9**9**9",
        "Symbol('x').subs(x, 1)",
    )
)
"""Completions whose answer a scorer would run that evaluates it."""
STRICTER = frozenset({"coin_flip"}) | INTEGRALS
"""Generators of which ADR 0088 takes fewer answers for right than the package: parts of a number, and an integral that restates the question."""
JOB = ValidationJob(
    claim="aa" * 16,
    run="agents",
    node="ab" * 32,
    lease="cd" * 16,
    step=0,
    submission=0,
    sha256="ef" * 32,
    size=1,
    beacon="01" * 32,
    min_version=0,
    max_version=0,
)


def completions(right: str, wrong: str) -> list[str]:
    """Texts of a policy: right, nearly right, right for another task, wrong, and without an answer."""
    answers = [
        right,
        right[:-1],
        right + "0",
        right[::-1],
        right[: len(right) // 2],
        right.upper(),
        wrong,
        "",
        "0",
        "[1, 2]",
    ]
    return [*(f"Let me see. {OPENING}{each}{CLOSING}" for each in answers), "no answer", f"{OPENING}{right}"]


def claims(
    name: str, table: bytes, folder: str, rows: Sequence[tuple[int, list[int]]]
) -> tuple[str, list[float | None]]:
    """The worker's side: its environment's digest, and the task reward that it claims for each row of task number and tokens."""
    from transformers import PreTrainedTokenizerFast

    environment, tasks = load(name), read_tasks(table)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    end = frozenset({tokenizer.eos_token_id})
    scored = ScoredOnce(environment)
    found = [scored.reward(tasks[number], completion_text(tokenizer, tokens, end)) for number, tokens in rows]
    return digest(environment), found


def of_the_package(name: str, count: int, texts: dict[str, list[str]]) -> dict[str, list[float]]:
    """What the package itself gives for the items that it makes, by problem id. It runs in no sandbox, so only texts of ours may be given."""
    found: dict[str, list[float]] = {}
    for task, dataset, item in ReasoningGym(name.partition(":")[2]).each_item(count, SEED):
        for text in texts[task.problem_id]:
            answer, score = answer_of(text), 0.0
            if answer is not None and item["metadata"].get("source_dataset") == "puzzle24":
                # The package takes the right answer of any task.
                answer = harmless("puzzle24", answer, (), item["metadata"]["numbers"])
            with suppress(Exception):  # some scorers raise for what they cannot take
                score = 0.0 if answer is None else float(dataset.score_answer(answer, item))
            found.setdefault(task.problem_id, []).append(min(max(score, 0.0), 1.0))
    return found


def generators_of(name: str) -> list[str]:
    """Names of generators, of a category or of all too."""
    return [each.name for each in ReasoningGym(name.partition(":")[2]).generators]


@dataclass(frozen=True)
class Compared:
    """One generator: its tasks and rows, and how many rows both sides score, score alike, and score as the package does (or `STRICTER`)."""

    tasks: int
    rows: int
    scored: int
    alike: int
    asked_package: int
    as_package: int
    right_answers_right: int
    """Tasks whose right answer scores 1."""
    python_rewarded: int
    """Answers that a scorer would have run, and that got more than an empty one."""

    @property
    def equal(self) -> bool:
        return (
            self.scored == self.alike == self.rows
            and self.as_package == self.asked_package
            and not self.python_rewarded
        )


def compare(name: str, each: int, folder: Path) -> dict[str, Compared]:
    """`each` tasks of every generator that the environment's name stands for. `folder` takes a tokenizer. RuntimeError when the sides differ."""
    from shoal.environments.generated_tokenizer import train_tokenizer

    environment = load(name)
    with own_process(hash_seed="0") as package, own_process(hash_seed="7") as worker:
        count = each * len(package.submit(generators_of, name).result())
        table = write_tasks(environment.tasks(count, SEED))
        tasks = read_tasks(table)
        numbers: dict[str, list[int]] = {}
        for number, task in enumerate(tasks):
            numbers.setdefault(task.verification_info["generator"], []).append(number)
        golds = [_gold(environment, task) for task in tasks]
        texts = {
            tasks[number].problem_id: completions(golds[number], golds[those[place - 1]])
            for those in numbers.values()
            for place, number in enumerate(those)
        }
        its = package.submit(of_the_package, name, count, texts)
        tokenizer = train_tokenizer(["plain text"])
        tokenizer.save_pretrained(folder)
        written = [(number, text) for number, task in enumerate(tasks) for text in [*texts[task.problem_id], *PYTHON]]
        rows = [
            (number, [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id])
            for number, text in written
        ]
        its_digest, claimed = worker.submit(claims, name, table, str(folder), rows).result()
        if its_digest != digest(environment):
            raise RuntimeError(f"{name}: the worker's environment has another digest")
        computed = validated(environment, tasks, tokenizer, rows, claimed)
        of_package = its.result()
    judged: dict[int, list[tuple[float | None, float | None]]] = {}
    for (number, _), theirs, ours in zip(rows, claimed, computed, strict=True):
        judged.setdefault(number, []).append((theirs, ours))
    return {
        generator: _compared(
            generator, [judged[number] for number in those], [of_package[tasks[number].problem_id] for number in those]
        )
        for generator, those in sorted(numbers.items())
    }


def _compared(
    generator: str, judged: list[list[tuple[float | None, float | None]]], of_package: list[list[float]]
) -> Compared:
    """Of one generator: by task, the claim and the validator's reward of each row, and what the package says of the first ones."""
    rows = [row for each in judged for row in each]
    told = [
        (ours, says)
        for each, said in zip(judged, of_package, strict=True)
        for (_, ours), says in zip(each, said, strict=False)
    ]
    rewarded = [
        ours is not None and ours > said[EMPTY]
        for each, said in zip(judged, of_package, strict=True)
        for _, ours in (each[-len(PYTHON) :] if generator in EXPRESSIONS | LISTS else ())
    ]
    return Compared(
        tasks=len(judged),
        rows=len(rows),
        scored=sum(theirs is not None and ours is not None for theirs, ours in rows),
        alike=sum(theirs == ours for theirs, ours in rows),
        asked_package=len(told),
        as_package=sum(
            ours == says or (generator in STRICTER and ours is not None and ours < says) for ours, says in told
        ),
        right_answers_right=sum(each[0][1] == 1.0 for each in judged),
        python_rewarded=sum(rewarded),
    )


def validated(
    environment: Environment,
    tasks: Sequence[Task],
    tokenizer: "PreTrainedTokenizerFast",
    rows: Sequence[tuple[int, list[int]]],
    claimed: Sequence[float | None],
) -> list[float | None]:
    """The validator's side: its own task rewards. RuntimeError when its check finds a claim wrong."""
    facts = facts_of(environment, tasks, tokenizer, len(rows))
    lines = [
        row_of(tasks[number], number, tokens, claim) for (number, tokens), claim in zip(rows, claimed, strict=True)
    ]
    file = File(JOB, lines, RolloutMetadata("none", "", facts.environment_digest, ""))
    ours = reward_check.score_rows(file, facts)
    if (finding := reward_check.check(file, facts, ours)) is not None:
        raise RuntimeError(f"the validator's check: {finding}")
    return [each.task_reward for each in ours]


def facts_of(environment: Environment, tasks: Sequence[Task], tokenizer: "PreTrainedTokenizerFast", rows: int) -> Facts:
    """What a validator of a file of so many rows knows."""
    return Facts(
        run="agents",
        model_id="none",
        environment=environment,
        environment_digest=digest(environment),
        tasks=tasks,
        tokenizer=tokenizer,
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
        vocabulary=len(tokenizer),
        hidden_size=1,
        group_size=rows,
        max_sequence_length=1 << 20,
        sampling=Sampling(groups_per_submission=1),
        length_reward=None,
        validation=Validation(),
    )


def row_of(task: Task, number: int, tokens: list[int], claim: float | None) -> Rollout:
    reward = total_reward(claim, len(tokens), None, None)
    return Rollout(
        run=JOB.run,
        step=JOB.step,
        policy_version=0,
        node=JOB.node,
        submission=0,
        problem_id=task.problem_id,
        prompt_index=number,
        sample_index=0,
        prompt_tokens=[],
        completion_tokens=tokens,
        completion_logprobs=[0.0] * len(tokens),
        completion_mask=[True] * len(tokens),
        finish_reason="stop",
        task_type=task.task_type,
        target_length=None,
        task_reward=reward.task_reward,
        length_penalty=reward.length_penalty,
        reward=reward.reward,
        seed=0,
        temperature=1.0,
        proofs=b"",
    )


def _gold(environment: Environment, task: Task) -> str:
    """The right answer; that of nobody where the generator tells none."""
    try:
        return answer_of(environment.gold(task)) or "0"
    except ValueError:
        return "0"


@contextmanager
def own_process(hash_seed: str) -> Iterator[ProcessPoolExecutor]:
    """A Python of its own, with this seed of hashes."""
    before = os.environ.get("PYTHONHASHSEED")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        os.environ["PYTHONHASHSEED"] = hash_seed
        pool.submit(os.getpid).result()
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
        yield pool


def main() -> None:
    from benchmarks.prime.pipeline import write_json
    from benchmarks.reproduce.page import measured_on

    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME", help="generators; default: all that work here")
    asked.add_argument("--each", type=int, default=3, help="tasks of each")
    chosen = asked.parse_args()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        found = compare("reasoning-gym:" + "+".join(chosen.names or ["all", *UNTOLD]), chosen.each, Path(folder))
    equal = [name for name, each in found.items() if each.equal]
    figures = {
        "reasoning_gym_generators": len(equal),
        "reasoning_gym": {
            "version": VERSION,
            "seconds": round(time.monotonic() - began, 1),
            "rows": sum(each.rows for each in found.values()),
            "not_equal": {name: asdict(each) for name, each in found.items() if not each.equal},
            "right_answer_not_right": [n for n, each in found.items() if each.right_answers_right < each.tasks],
            "machine": measured_on(),
        },
    }
    print(json.dumps(figures, indent=1))
    if not chosen.names:
        before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        write_json(RESULT, before | figures)


if __name__ == "__main__":
    main()
