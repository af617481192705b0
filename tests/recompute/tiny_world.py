"""A whole small run in one process, recorded for audits: real orchestrator over a real Redis, judge, trainer, publisher and ledger.

Workers sample with transformers by the run's own rule instead of with vLLM, which takes half a minute to start; everything behind them is what runs.
"""

import hashlib
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from redis import Redis

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import tiny_run

from run_states import Clock, Orchestrator
from shoal import environments, telemetry
from shoal.broadcast.publishing import copy_to_store, cut_into
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks, BenchmarkTerms, EvaluationSettings
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.pools import PoolTerms
from shoal.contracts.protocol import Lease, LeaseRequest, SubmissionNotice, UploadRequest, ValidationJob
from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import (
    SEGMENT_TOKENS,
    Rollout,
    RolloutMetadata,
    by_version,
    digest_of_weights,
    write_rollouts,
)
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.run import Addresses, Prepared, RunConfig
from shoal.contracts.settings import Rollouts
from shoal.contracts.signed import sign
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import draw
from shoal.crypto.keys import PrivateKey
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_model import random_model, tokenizer_for
from shoal.environments.prompts import prompt_tokens
from shoal.ledger.checkpoints import Checkpoints
from shoal.orchestrator import announcements
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.work import handout, uploads
from shoal.orchestrator.work.beacons import beacon_of
from shoal.recompute.overlay import Overlay
from shoal.rewards.total import total_reward
from shoal.sampling import gumbel
from shoal.toploc import codec
from shoal.training.batches import group_relative
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extension, Extensions
from shoal.training.loop import Trainer
from shoal.training.progress import ProgressReporter
from shoal.validation.judge import judge
from shoal.validation.policies import Policies
from shoal.validation.prefill import prefill
from shoal.validation.setup import read_facts

RUN = "tiny"
STEPS = 3
TARGETS = [8, 12]
ENVIRONMENT = Arithmetic()
TASKS = ENVIRONMENT.tasks(64, seed=3)
SUMS = TASKS[:4]
SAMPLING = Sampling(temperature=1.0, max_completion_tokens=12, groups_per_submission=2)
LENGTHS = LengthReward(targets=TARGETS, alpha=0.01)


def tiny_config(addresses: Addresses, roster: Any, run_key: str, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "run": RUN,
        "steps": STEPS,
        "async_level": 1,
        "model_id": "tiny-model",
        "model": ModelSource(generated=GeneratedModel()),
        "tasks": TaskSource(environment="arithmetic", count=len(TASKS)),
        "recipe": Recipe(
            prompts_per_step=4, group_size=4, optimizer_steps=2, learning_rate=5e-5, warmup_steps=1, max_sequence_length=64,
            pack_length=128, online_filter="TotalReward",
        ),
        "sampling": SAMPLING,
        "length_reward": LENGTHS,
        # A random model ends anywhere, by a token of one in a hundred.
        "validation": Validation(
            min_eos_probability=0.0,
            thresholds=ProofThresholds(
                max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0
            ),
        ),
        "evaluation": EvaluationSettings(
            every_versions=1000, benchmarks=[Benchmark(name="sums", tasks=BenchmarkTasks(environment="arithmetic", count=4))]
        ),
        "kept_versions": 2,
        "storage": StorageSpec(),
        "addresses": addresses,
        "roster": roster,
        "run_key": run_key,
        "pools": [PoolTerms(name="pool", open=True)],
    }  # fmt: skip
    return RunConfig.model_validate({**fields, **changes})


class Doubled(Extension):
    """Doubles the advantages of one step."""

    def __init__(self, step: int) -> None:
        self._step, self._now = step, -1

    def before_step(self, step: int) -> None:
        self._now = step

    @property
    def advantages(self) -> Any:
        if self._now != self._step:
            return None
        return lambda *given: [(sample, 2.0 * advantage) for sample, advantage in group_relative(*given)]


class World(Orchestrator):
    """The run; `play` goes through all of its steps."""

    ending = 3.5
    """How probable the end of an answer is made in the base model (`ending_often`)."""

    def __init__(self, folder: Path, redis_url: str, **changes: Any) -> None:
        self.clock = Clock()
        self.redis = Redis.from_url(redis_url, decode_responses=True)
        self.redis.flushall()
        addresses = Addresses(
            discovery="http://127.0.0.1:1", orchestrator="http://127.0.0.1:2", origin="http://127.0.0.1:3", relays=[],
            redis=redis_url,
        )  # fmt: skip
        self.role_keys = {role: PrivateKey.generate() for role in ROLES}
        self.run_key = PrivateKey.generate()
        roster = Roster(run=RUN, keys={role: key.public for role, key in self.role_keys.items()})
        self.config = tiny_config(addresses, sign(roster, self.run_key), self.run_key.public, **changes)
        (folder / "store").mkdir(parents=True)
        self.folder = folder
        self.store = self.open_store()
        self._prepare()
        self.state = self.restarted()
        self.checkpoints = Checkpoints(self.state.ledger, self.config.roster)
        self.liveness = telemetry.Liveness(600.0)
        (folder / "scratch").mkdir()
        self.facts = read_facts(self.config, self.store, folder / "scratch", self.liveness)
        trainer_key = self.role_keys["trainer"].public
        self.policies = Policies(self.store, folder / "policies", RUN, trainer_key, capacity=2)
        self._tree = Tree(folder / "www")

    def _prepare(self) -> None:
        """What prepare leaves: a base model of random weights, tasks, one benchmark."""
        torch.manual_seed(5)
        base = self.folder / "base"
        tokenizer = tokenizer_for(ENVIRONMENT, TARGETS, seed=5)
        model = random_model(GeneratedModel(hidden_size=128, layers=2), tokenizer, 64)
        prompts = [prompt_tokens(tokenizer, ENVIRONMENT, task, 8, None) for task in TASKS[:8]]
        ending_often(model, prompts, self.ending)
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
        for path in base.iterdir():
            self.store.put_file(keys.BASE_MODEL + path.name, path)
        for tasks in (TASKS, SUMS):
            self.store.put(keys.task_table(tasks_digest(tasks)), write_tasks(tasks))
        digest = environments.digest(ENVIRONMENT)
        sums = BenchmarkTerms(
            name="sums", environment="arithmetic", environment_digest=digest, tasks_digest=tasks_digest(SUMS),
            task_count=len(SUMS), samples=2, sampling=SAMPLING,
        )  # fmt: skip
        prepared = Prepared(
            run=RUN, model_id="tiny-model", environment="arithmetic", environment_digest=digest,
            tasks_digest=tasks_digest(TASKS), task_count=len(TASKS), benchmarks=[sums],
        )  # fmt: skip
        self.store.put(keys.PREPARED, prepared.to_json())

    def play(self, trainer: Trainer | None = None) -> None:
        """Every step once, one cheat in step 0, and the scores of the last version."""
        trainer = trainer or self.trainer()
        trainer.begin()
        self.publish(trainer)
        self.nodes = [self.join() for _ in range(2)]
        cheat = self.join()
        self.hand_in_rows(cheat, 0, lambda rows: [replace(row, reward=1.0, task_reward=1.0) for row in rows])
        for step in range(self.config.steps):
            while step not in self.state.view.sealed:
                for node in self.nodes:
                    if step not in self.state.view.sealed:
                        self.clock.now += 1.0
                        self.hand_in_rows(node, step)
            trainer.advance()
            self.publish(trainer)
        trainer.close()
        self.score_version(self.config.steps)
        self.checkpoints.write_due(self.clock(), complete=True)

    def trainer(self, extensions: Extensions | None = None) -> Trainer:
        """The run's trainer, in this process."""
        pod = self.folder / "trainer"
        context = TrainerContext(
            self.config, self.store, self.store, self.folder / "base", pod / "outbox", pod / "tmp", "tiny-trainer-0",
            ProgressReporter(RUN, None, self.store), self.liveness, tiny_run.ranks(),
        )  # fmt: skip
        return Trainer(context, extensions or Extensions())

    def with_doubled_advantages(self, folder: Path, step: int) -> Path:
        """The version that `step` makes when it is trained with other advantages than the recipe's, from the step's true beginning."""
        evidence_store = Overlay(self.store, folder / "store")
        context = TrainerContext(
            self.config, evidence_store, evidence_store, self.folder / "base", folder / "outbox", folder / "tmp", "liar",
            ProgressReporter(RUN, None, evidence_store), self.liveness, tiny_run.ranks(),
        )  # fmt: skip
        doubled = Doubled(step)
        trainer = Trainer(context, Extensions(doubled))
        trainer.begin()
        while trainer.version <= step:
            trainer.advance()
        trainer.handed_over()
        trainer.close()
        return folder / "outbox" / keys.version_name(step + 1)

    def publish(self, trainer: Trainer) -> None:
        """What the publisher does with a version in the outbox."""
        trainer.handed_over()
        version, key = trainer.version, self.role_keys["trainer"]
        folder = self.folder / "trainer" / "outbox" / keys.version_name(version)
        manifest = cut_into(self._tree, folder, self.config, version, key, lambda: None)
        copy_to_store(self.store, self._tree, manifest, sign(manifest, key), lambda: None)
        size = sum(path.stat().st_size for path in folder.iterdir())
        announcements.announce_version(
            self.state, announcements.VersionAnnouncement(run=RUN, version=version, weights_digest=manifest.sha256, total_size=size)
        )  # fmt: skip

    def score_version(self, version: int) -> None:
        """The benchmark on one version: a slice a file."""
        for number in self.state.codec.numbers(version, "sums"):
            self.hand_in_rows(self.nodes[0], number)
        evaluations.fold(self.state)

    def hand_in_rows(self, node: str, number: int, change: Any = lambda rows: rows) -> Verdict:
        """One file from lease to verdict; `change` is what a cheat does to its rows."""
        lease = handout.lease_for(self.state, LeaseRequest(node=node, step=number))
        data = self.write(change(self.rows(lease, number)), lease)
        request = UploadRequest(node=node, lease=lease.lease, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        uploads.grant_upload(self.state, request)
        self.store.put(keys.staging(node, lease.lease), data)
        groups = self.state.codec.decode(number).shape.groups
        uploads.submit(
            self.state,
            SubmissionNotice(node=node, lease=lease.lease, size=request.size, sha256=request.sha256, groups=groups),
        )
        verdict = self.judged(self.claimed())
        self.judge(verdict)
        return verdict

    def judged(self, job: ValidationJob) -> Verdict:
        path = self.folder / "upload.parquet"
        path.write_bytes(self.store.get(keys.upload(job.node, job.sha256)))
        return judge(path, job, self.facts, self.policies, random.Random(1), "validator-0")

    def rows(self, lease: Lease, number: int) -> list[Rollout]:
        """What an honest worker makes of a lease, with the newest version that the work allows."""
        work = self.state.codec.decode(number)
        facts = self.facts.of(work)
        version = min(work.window[1], self.state.view.latest_version or 0)
        groups = draw(work, beacon=beacon_of(self.state, work), run=RUN, node=lease.node, submission=lease.submission)
        drawn = [(group, sample) for group in groups for sample in range(facts.group_size)]
        prompts = [
            prompt_tokens(
                facts.tokenizer, facts.environment, facts.tasks[group.prompt_index], group.target_length, None
            )
            for group, _ in drawn
        ]
        seeds = [group.seeds[sample] for group, sample in drawn]
        answers = self.answers(prompts, seeds, sorted(facts.eos_token_ids), version)
        several = self.config.several_versions and len({each for _, said in answers for each, _ in said}) > 1
        oldest = min(said[0][0] for _, said in answers)
        rows = []
        for (group, sample), prompt, seed, (tokens, said) in zip(drawn, prompts, seeds, answers, strict=True):
            task = facts.tasks[group.prompt_index]
            ended = tokens[-1] in facts.eos_token_ids
            text = facts.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False)
            found = facts.environment.score(task, text).task_reward
            claim = total_reward(found, len(tokens), group.target_length, facts.length_reward)
            row = Rollout(
                run=RUN, step=number, policy_version=oldest, node=lease.node, submission=lease.submission,
                problem_id=task.problem_id, prompt_index=group.prompt_index, sample_index=sample, prompt_tokens=prompt,
                completion_tokens=tokens, completion_logprobs=[0.0] * len(tokens), completion_mask=[True] * len(tokens),
                finish_reason="stop" if ended else "length", task_type=task.task_type, target_length=group.target_length,
                task_reward=claim.task_reward, length_penalty=claim.length_penalty, reward=claim.reward, seed=seed,
                temperature=1.0, proofs=b"", segment_versions=[each for each, _ in said] if several else (),
                segment_starts=[start for _, start in said] if several else (),
            )  # fmt: skip
            rows.append(self.proven(row))
        return rows

    def answers(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], ends: Sequence[int], version: int
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """What workers sample: tokens with their segments (version, first token)."""
        model, most = self.policies.get(version).model, self.config.sampling.max_completion_tokens
        return [(tokens, [(version, 0)]) for tokens in sampled(model, prompts, seeds, ends, most)]

    def proven(self, row: Rollout) -> Rollout:
        """The row with the proofs and log-probabilities of the versions that it names."""
        proofs, logprobs = b"", list[float]()
        for version in row.versions:
            ours = prefill(self.policies.get(version).model, by_version({0: row}, version)[0], self.facts.eos_token_ids)
            proofs += codec.encode(ours.states)
            logprobs += [min(float(value), 0.0) for value in ours.logprobs]
        return replace(row, completion_logprobs=logprobs, proofs=proofs)

    def write(self, rows: Sequence[Rollout], lease: Lease) -> bytes:
        versions = sorted({version for row in rows for version in row.versions})
        return write_rollouts(
            rows,
            RolloutMetadata(
                model="tiny-model",
                weights_digest=digest_of_weights([self.policies.digest(version) for version in versions]),
                environment_digest=self.facts.environment_digest,
                software_version="0.3.0",
            ),
        )


class SwappingWorld(World):
    """The same with `rollouts.versions: Several`: rows begin under the version before the newest and go on under it behind 32 tokens."""

    ending = 1.5

    def __init__(self, folder: Path, redis_url: str) -> None:
        longer = SAMPLING.model_copy(update={"max_completion_tokens": 48})
        super().__init__(folder, redis_url, rollouts=Rollouts(versions="Several"), sampling=longer)

    def score_version(self, version: int) -> None:
        """A run of several versions is not scored."""

    def answers(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], ends: Sequence[int], version: int
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        most = self.config.sampling.max_completion_tokens
        if version == 0:
            return super().answers(prompts, seeds, ends, version)
        begun = sampled(self.policies.get(version - 1).model, prompts, seeds, ends, SEGMENT_TOKENS)
        live = [number for number, tokens in enumerate(begun) if tokens[-1] not in ends]
        longer = [[*prompts[number], *begun[number]] for number in live]
        rest = sampled(
            self.policies.get(version).model, longer, [seeds[number] for number in live], ends, most - SEGMENT_TOKENS
        ) if live else []  # fmt: skip
        found = [(tokens, [(version - 1, 0)]) for tokens in begun]
        for number, tokens in zip(live, rest, strict=True):
            found[number] = ([*begun[number], *tokens], [(version - 1, 0), (version, SEGMENT_TOKENS)])
        return found


@torch.no_grad()
def ending_often(model: Any, prompts: Sequence[Sequence[int]], how: float) -> None:
    """Make a random model end its answers after some tokens: lengths, and so rewards, differ within a group."""
    states = torch.cat([model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts])
    mean = states.mean(dim=0)
    model.lm_head.weight[model.config.eos_token_id] = how * mean / mean.square().sum()


@torch.inference_mode()
def sampled(
    model: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[int], ends: Sequence[int], most: int
) -> list[list[int]]:
    """Completions that these seeds draw at temperature 1, all rows side by side."""
    rows = [list(prompt) for prompt in prompts]
    live = list(range(len(rows)))
    for _ in range(most):
        lengths = torch.tensor([len(rows[index]) for index in live])
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[index]) for index in live], batch_first=True)
        hidden = model.model(input_ids=padded, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[torch.arange(len(live)), lengths - 1]).float()
        drawn = gumbel.draw(logits, torch.tensor([seeds[index] for index in live]), lengths - 1).tolist()
        for index, token in zip(live, drawn, strict=True):
            rows[index].append(token)
        live = [index for index in live if rows[index][-1] not in ends]
        if not live:
            break
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
