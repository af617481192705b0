"""Honest files of a real vLLM engine under the product's own decoding loop: `python -m benchmarks.workers.honest_engine FOLDER`.

In: versions of a tiny model under `FOLDER/versions`. Out: `FOLDER/files/N.parquet`, each with the terms of its lease in `N.json`. Called by `honest`,
in a process of its own, since vLLM changes the one that it runs in. No clock decides what a file holds: versions change after so many files.
"""

import hashlib
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.pools import SAMPLER, Quantization
from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.rollouts import Rollout, RolloutMetadata, digest_of_weights, versions_of, write_rollouts
from shoal.contracts.run import PublicRun
from shoal.contracts.tasks import Task
from shoal.contracts.weights import WeightsManifest
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart
from shoal.environments import Score, digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tokens import completion_text
from shoal.inference.batch import PlannedLease, Row, RunningLease
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.generation import Generation, Wish
from shoal.inference.process_settings import set_engine_variables
from shoal.inference.rollouts import assemble, plan_submission
from shoal.inference.weights import VersionOnDisk
from shoal.sampling import draw

ENVIRONMENT = Arithmetic()
TASKS = ENVIRONMENT.tasks(256, seed=7)
NODE, OTHER = "1" * 64, "2" * 64
LIFE = 1e9
SLOTS = 32
AHEAD = 2
"""Steps of a lease before its worker's version, which the window of a step holds."""
PUBLIC = PublicRun(
    run="honest",
    steps=1_000,
    async_level=3,
    model_id="honest",
    environment="arithmetic",
    environment_digest=digest(ENVIRONMENT),
    tasks_digest="ab" * 32,
    task_count=len(TASKS),
    group_size=4,
    max_sequence_length=128,
    sampling=Sampling(temperature=1.0, max_completion_tokens=72, groups_per_submission=2),
    length_reward=LengthReward(targets=[16, 24, 32], alpha=0.003),
    sampler=SAMPLER,
)


@dataclass(frozen=True)
class Asked:
    """So many `files` of a kind, how many of them each version lasts, and how the weights that sample are rounded."""

    kind: str
    files: int
    files_a_version: int
    quantization: Quantization | None = None

    @property
    def several(self) -> bool:
        return self.kind == "several_versions"


def weights_digest(version: int) -> str:
    """Stands for the digest that the trainer signs."""
    return f"{version:064x}"


def beacon(step: int) -> bytes:
    return draw.beacon(b"secret", PUBLIC.run, step)


class Desk:
    """Has a lease whenever one is wanted, of the version that the count of files says."""

    info: StepInfo | None = None
    most, shortage = 4, "no-lease"

    def __init__(self, folder: Path, asked: Asked, tokenizer: Any) -> None:
        self._folder, self._asked, self._tokenizer = folder, asked, tokenizer
        self._wish: Wish | None = None
        self._rests: deque[tuple[int, LeasePart]] = deque()
        self.given = self.done = self.number = 0
        self.newest: VersionOnDisk | None = self.version(0)

    def version(self, number: int) -> VersionOnDisk:
        manifest = WeightsManifest(
            run=PUBLIC.run, version=number, model="m", sha256=weights_digest(number), open_digest="0" * 64,
            shards=["0" * 64],
        )  # fmt: skip
        return VersionOnDisk(number, self._folder / "versions" / str(number), manifest)

    def count(self) -> None:
        """A file more is done: the next version may be there."""
        self.done += 1
        self.newest = self.version(self.done // self._asked.files_a_version)

    def want(self, wish: Wish | None) -> None:
        self._wish = wish

    def leave_rest(self, step: int, part: LeasePart) -> None:
        """Groups that another node is to finish."""
        self._rests.append((step, part))

    def take(self) -> PlannedLease | None:
        """A lease of the step two behind the loaded version, which accepts the next two as well; a rest first."""
        wish, newest = self._wish, self.newest
        if wish is None or newest is None or (self.given >= self._asked.files and not self._rests):
            return None
        policy = wish.loaded
        if newest.version > policy.version and not self._asked.several:
            if not wish.empty:
                return None
            policy = newest
        step, part, node, number = policy.version + AHEAD, None, NODE, self.number
        if self._rests and policy.version <= self._rests[0][0] <= policy.version + PUBLIC.async_level:
            step, part = self._rests.popleft()
            node, number = OTHER, FIRST_PART_NUMBER + self.number
        elif self.given >= self._asked.files:
            self._rests.popleft()  # its step takes no version of now
            return None
        self.number += 1
        self.given += 1
        lease = Lease(lease=f"{self.number:032x}", node=node, step=step, submission=number, expires_unix=0.0, part=part)
        rows = plan_submission(PUBLIC.codec.decode(step), _step(step), lease, PUBLIC, TASKS, self._rendered)
        return PlannedLease(lease, PUBLIC.codec.decode(step), PUBLIC, policy, rows, None, 0.0, LIFE, LIFE)

    def _rendered(self, task: Task, target: int | None) -> list[int]:
        return prompt_tokens(self._tokenizer, ENVIRONMENT, task, target, None)

    def ask(self, row: Row) -> None:
        raise AssertionError("no row has tools")

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        return []


def _step(step: int) -> StepInfo:
    return StepInfo(
        run=PUBLIC.run, step=step, beacon=beacon(step).hex(), commitment=draw.beacon_commitment(beacon(step)),
        min_version=max(0, step - PUBLIC.async_level), max_version=step, latest_version=step, needed_groups=8,
        accepted_groups=0, pending_groups=0,
    )  # fmt: skip


class Files:
    """Writes what leases have become."""

    def __init__(
        self, folder: Path, tokenizer: Any, ends: frozenset[int], quantization: Quantization | None = None
    ) -> None:
        self._folder, self._tokenizer, self._ends, self._quantization = folder, tokenizer, ends, quantization
        self._chance = random.Random(3)
        self.count = 0

    def rows(self, lease: RunningLease) -> list[Rollout]:
        def score(task: Task, tokens: Any, mask: Any) -> float | None:
            found = ENVIRONMENT.score(task, completion_text(self._tokenizer, tokens, self._ends))
            return found.task_reward if isinstance(found, Score) else None

        return assemble(lease.planned, lease.completions, lease.given.lease, PUBLIC, lease.given.policy.version, score)

    def write(self, kind: str, lease: Lease, rows: list[Rollout], part: LeasePart | None) -> None:
        versions = versions_of(rows)
        metadata = RolloutMetadata(
            model=PUBLIC.model_id, weights_digest=digest_of_weights([weights_digest(each) for each in versions]),
            environment_digest=PUBLIC.environment_digest, software_version="0", quantization=self._quantization,
        )  # fmt: skip
        data = write_rollouts(rows, metadata)
        terms = {
            "kind": kind, "node": lease.node, "lease": lease.lease, "step": lease.step, "submission": lease.submission,
            "sha256": hashlib.sha256(data).hexdigest(), "versions": versions,
            "part": part.model_dump() if part is not None else None,
        }  # fmt: skip
        (self._folder / f"{self.count}.parquet").write_bytes(data)
        (self._folder / f"{self.count}.json").write_text(json.dumps(terms))
        self.count += 1

    def part_of(self, desk: Desk, lease: Lease, rows: list[Rollout]) -> None:
        """One group of a lease as its node's part; the other is left to another node."""
        kept = self._chance.randrange(2)
        size = PUBLIC.group_size
        part = LeasePart(node=lease.node, submission=lease.submission, groups=[kept], left=1)
        self.write("parts", lease, rows[kept * size : (kept + 1) * size], part)
        desk.leave_rest(lease.step, LeasePart(node=lease.node, submission=lease.submission, groups=[1 - kept]))


def ticks() -> Callable[[], float]:
    """A clock that stands still but for its order: nothing here may depend on how fast the machine is."""
    numbers: Iterator[int] = iter(range(1 << 60))
    return lambda: 1e-6 * next(numbers)


def make(folder: Path, asked: Asked, first: int) -> int:
    """Make the files of one kind, numbered from `first`; returns the next number."""
    from shoal.inference.engine import Engine  # loads vLLM, with the variables that are set by now

    checkpoint = read_checkpoint(folder / "versions" / "0")
    tokenizer = AutoTokenizer.from_pretrained(folder / "versions" / "0")
    engine = Engine(
        checkpoint, max_sequence_length=PUBLIC.max_sequence_length, batch=SLOTS, cuts=asked.several,
        quantization=asked.quantization,
    )  # fmt: skip
    desk = Desk(folder, asked, tokenizer)
    files = Files(folder / "files", tokenizer, frozenset(checkpoint.eos_token_ids), asked.quantization)
    files.count = first

    def finished(lease: RunningLease) -> None:
        given, rows = lease.given.lease, files.rows(lease)
        if given.part is not None:
            files.write("rests_by_another_node", given, rows, given.part)
        elif asked.kind == "parts":
            files.part_of(desk, given, rows)
        else:
            files.write(asked.kind, given, rows, None)
        desk.count()

    def given_up(lease: RunningLease, reason: str, error: Exception | None) -> None:
        raise RuntimeError(f"a lease was given up: {reason}") from error

    loop = Generation(
        engine, desk, desk, desk.version(0), swap=lambda policy: engine.swap(read_checkpoint(policy.folder)),
        finished=finished, given_up=given_up, handing_in=list, clock=ticks(), several=asked.several,
    )  # fmt: skip
    idle = 0
    while desk.done < asked.files and idle < 3:
        idle = 0 if loop.turn() else idle + 1
    engine.close()
    return files.count


def main(folder: Path) -> None:
    set_engine_variables(None)
    number = 0
    for kind in json.loads((folder / "asked.json").read_text()):
        number = make(folder, Asked(**kind), number)
        print(kind["kind"], number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
