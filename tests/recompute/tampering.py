"""A recorded run whose owner lies: with every key of the run in hand, one thing is changed and all that follows from it is signed again."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tiny_run
from safetensors.torch import load_file, save_file
from tiny_world import RUN, World

from shoal.broadcast.publishing import copy_to_store, cut_into
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.rollouts import Rollout, read_rollouts, write_rollouts
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.weights import WeightsManifest
from shoal.ledger.audit import Audit
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.entries import Accepted, BatchSealed, Fact, LedgerEntry, NodeEvicted, Rejected, VersionPublished
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.writer import LedgerWriter
from shoal.recompute.audit import AuditPlan, AuditResult, RunAudit
from shoal.recompute.evidence import Evidence
from shoal.recompute.record import AuditTerms
from shoal.storage.checkpoint_files import MANIFEST_FILE
from shoal.storage.store import open_folder
from shoal.storage.versions import materialise

Facts = Callable[[list[Fact]], Sequence[Fact]]


class Copy:
    """A copy of a world's store, to be changed and audited."""

    def __init__(self, world: World, folder: Path) -> None:
        shutil.copytree(world.folder / "store", folder / "store")
        self.folder = folder
        self.store = open_folder(folder / "store", f"shoal/{RUN}", deadline_seconds=5)
        self.world = world
        self.keys = world.role_keys
        self.config: RunConfig = world.config
        self.said: list[str] = []

    def audit(self, *stages: Any, rows: float = 1.0, **plan: Any) -> AuditResult:
        """As a stranger who has nothing but the store, the configuration and the run's key."""
        ledger = self.ledger()
        evidence = Evidence(self.store, self.config, ledger, self.entries())
        terms = AuditTerms(run=RUN, run_key=self.config.run_key, seed="seed", rows=rows, files=1.0)
        plan_of = AuditPlan(terms, stages, **plan)
        return RunAudit(evidence, ledger, plan_of, self.folder / "audit", self.said.append, tiny_run.ranks()).run()

    def ledger(self) -> Audit:
        trust = Trust(self.config.run_key, self.config.roster, "the test", given=True)
        return read_ledger(LedgerSource(self.store, trust), lambda _: None, documents=True)

    # What the orchestrator can do.

    def entries(self) -> list[LedgerEntry]:
        return [
            Signed[LedgerEntry].from_json(self.store.get(info.key)).document for info in self.store.list(keys.LEDGER)
        ]

    def rewrite(self, change: Facts) -> None:
        """Another history: chained, signed and covered by checkpoints again."""
        entries = self.entries()
        facts, when = [entry.fact for entry in entries], {entry.fact.model_dump_json(): entry.unix for entry in entries}
        for folder in (keys.LEDGER, keys.CHECKPOINTS, keys.SEGMENTS):
            for info in self.store.list(folder):
                self.store.delete(info.key)
        unix = [0.0]
        writer = LedgerWriter(self.store, RUN, self.keys["orchestrator"], lambda: unix[0])
        for fact in change(facts):
            unix[0] = when.get(fact.model_dump_json(), unix[0])
            writer.append(fact)
        Checkpoints(writer, self.config.roster).write_due(0.0, complete=True)

    def replace_fact(self, old: Fact, new: Fact) -> None:
        self.rewrite(lambda facts: [new if fact == old else fact for fact in facts])

    def accepted(self, step: int) -> list[Accepted]:
        return [e.fact for e in self.entries() if isinstance(e.fact, Accepted) and e.fact.step == step]

    def rejected(self) -> Rejected:
        return next(entry.fact for entry in self.entries() if isinstance(entry.fact, Rejected))

    def batch(self, step: int) -> StepBatch:
        return StepBatch.from_json(self.store.get(keys.step_batch(step)))

    def seal(self, batch: StepBatch) -> None:
        """Another batch of a step, which the ledger names."""
        self.store.put(keys.step_batch(batch.step), batch.to_json())
        sealed = next(e.fact for e in self.entries() if isinstance(e.fact, BatchSealed) and e.fact.step == batch.step)
        digest = hashlib.sha256(batch.to_json()).hexdigest()
        self.replace_fact(sealed, sealed.model_copy(update={"batch": digest, "groups": batch.groups}))

    # What a validator can do.

    def verdict(self, fact: Accepted | Rejected) -> Verdict:
        return Signed[Verdict].from_json(self.store.get(keys.verdict(fact.node, fact.file))).document

    def say(self, verdict: Verdict) -> None:
        signed = sign(Verdict.model_validate(verdict.model_dump()), self.keys["validator"])
        self.store.put(keys.verdict(verdict.node, verdict.sha256), signed.to_json())

    # What all of them can do with a worker.

    def replace_file(self, fact: Accepted, change: Callable[[list[Rollout]], list[Rollout]]) -> None:
        """Other rows under a digest of their own, in the store, the verdict, the ledger and the batch."""
        rows, metadata = read_rollouts(self.store.get(keys.upload(fact.node, fact.file)))
        data = write_rollouts(change(rows), metadata)
        digest = hashlib.sha256(data).hexdigest()
        verdict = self.verdict(fact)
        record = self.store.get(keys.submission(fact.node, fact.file)).replace(fact.file.encode(), digest.encode())
        self.store.put(keys.upload(fact.node, digest), data)
        self.store.put(keys.submission(fact.node, digest), record)
        self.say(verdict.model_copy(update={"sha256": digest}))
        self.replace_fact(fact, fact.model_copy(update={"file": digest}))
        batch = self.batch(fact.step)
        files = [
            file.model_copy(update={"sha256": digest}) if file.sha256 == fact.file else file for file in batch.files
        ]
        self.seal(batch.model_copy(update={"files": files}))

    # What the trainer can do.

    def version(self, number: int) -> Path:
        """The folder of a published version."""
        folder = self.folder / "versions" / keys.version_name(number)
        folder.parent.mkdir(exist_ok=True)
        materialise(self.store, number, folder, RUN, self.keys["trainer"].public)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        return folder

    def publish(self, number: int, folder: Path) -> None:
        """Other bytes of a version, sealed and announced."""
        for info in self.store.list(keys.version(number)):
            self.store.delete(info.key)
        tree = Tree(self.folder / "www")
        manifest = cut_into(tree, folder, self.config, number, self.keys["trainer"], lambda: None)
        copy_to_store(self.store, tree, manifest, sign(manifest, self.keys["trainer"]), lambda: None)
        self.announce(number, manifest.sha256)

    def announce(self, number: int, digest: str) -> None:
        fact = next(e.fact for e in self.entries() if isinstance(e.fact, VersionPublished) and e.fact.version == number)
        self.replace_fact(fact, fact.model_copy(update={"weights": digest}))


def first(copy: Copy, step: int = 1) -> Accepted:
    return copy.accepted(step)[0]


def used(copy: Copy, step: int = 1) -> list[Accepted]:
    """The files of a step's batch, in its order."""
    facts = {fact.file: fact for fact in copy.accepted(step)}
    return [facts[file.sha256] for file in copy.batch(step).files]


def edited(number: int, **fields: Any) -> Callable[[list[Rollout]], list[Rollout]]:
    """The same rows, and one with other fields; a field may be a function of the row."""

    def change(rows: list[Rollout]) -> list[Rollout]:
        row = rows[number]
        given = {name: value(row) if callable(value) else value for name, value in fields.items()}
        return [*rows[:number], replace(row, **given), *rows[number + 1 :]]

    return change


def raise_a_reward(copy: Copy) -> None:
    verdict = copy.verdict(first(copy))
    better = RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)
    copy.say(verdict.model_copy(update={"rewards": [better, *verdict.rewards[1:]]}))


def accept_the_cheat(copy: Copy) -> None:
    """Its file counts after all, with the rewards that it claims."""
    fact = copy.rejected()
    rows, _ = read_rollouts(copy.store.get(keys.upload(fact.node, fact.file)))
    tokens = sum(len(row.completion_tokens) for row in rows)
    rewards = [
        RowReward(task_reward=row.task_reward, length_penalty=row.length_penalty, reward=row.reward) for row in rows
    ]
    said = copy.verdict(fact).model_copy(
        update={
            "outcome": "accept", "reason": None, "evidence": "", "rewards": rewards, "rows": len(rows), "policy_version": 0,
            "completion_tokens": tokens,
        }
    )  # fmt: skip
    copy.say(said)
    accepted = Accepted(
        node=fact.node, step=fact.step, submission=fact.submission, file=fact.file, tokens=tokens, groups=2, signal_groups=0
    )  # fmt: skip
    copy.rewrite(
        lambda facts: [accepted if each == fact else each for each in facts if not isinstance(each, NodeEvicted)]
    )


def accuse_an_honest_node(copy: Copy) -> None:
    fact = copy.accepted(copy.config.steps - 1)[-1]
    verdict = copy.verdict(fact)
    copy.say(
        verdict.model_copy(
            update={
                "outcome": "reject", "reason": "reward", "evidence": "row 3", "rewards": [], "compute": None, "answers": None,
                "completion_lengths": [], "cut_rows": [],
            }
        )
    )  # fmt: skip
    rejected = Rejected(
        node=fact.node, step=fact.step, submission=fact.submission, file=fact.file, finding="reward: row 3"
    )
    copy.replace_fact(fact, rejected)


def swap_a_file(copy: Copy) -> None:
    one, other = copy.accepted(1)[:2]
    copy.store.put(keys.upload(one.node, one.file), copy.store.get(keys.upload(other.node, other.file)))


def choose_a_prompt(copy: Copy) -> None:
    copy.replace_file(first(copy), edited(0, prompt_index=lambda row: (row.prompt_index + 1) % 64))


def reorder_a_batch(copy: Copy) -> None:
    batch = copy.batch(1)
    copy.seal(batch.model_copy(update={"files": batch.files[::-1]}))


def drop_a_file(copy: Copy) -> None:
    batch = copy.batch(1)
    files = batch.files[1:]
    copy.seal(batch.model_copy(update={"files": files, "groups": sum(len(file.prompt_indices) for file in files)}))


def choose_a_group(copy: Copy) -> None:
    batch = copy.batch(1)
    last = batch.files[-1]
    other = last.model_copy(update={"prompt_indices": [(last.prompt_indices[0] + 1) % 64, *last.prompt_indices[1:]]})
    copy.seal(batch.model_copy(update={"files": [*batch.files[:-1], other]}))


def alter_a_tensor(copy: Copy) -> None:
    folder = copy.version(2)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.001
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    copy.publish(2, folder)


def alter_the_base(copy: Copy) -> None:
    path = copy.folder / "base.safetensors"
    copy.store.get_to_file(f"{keys.BASE_MODEL}model.safetensors", path)
    tensors = load_file(path)
    tensors["lm_head.weight"][0] *= 1.5
    save_file(tensors, path, {"format": "pt"})
    copy.store.put_file(f"{keys.BASE_MODEL}model.safetensors", path)


def seal_another_digest(copy: Copy) -> None:
    key = keys.version_weights(3)
    manifest = Signed[WeightsManifest].from_json(copy.store.get(key)).document.model_copy(update={"sha256": "ab" * 32})
    copy.store.put(key, sign(manifest, copy.keys["trainer"]).to_json())
    copy.announce(3, "ab" * 32)


def alter_the_advantages(copy: Copy) -> None:
    """Version 2 was trained with doubled advantages."""
    made = copy.world.with_doubled_advantages(copy.folder / "doubled", step=1)
    copy.publish(2, made)


def choose_a_beacon(copy: Copy) -> None:
    copy.seal(copy.batch(1).model_copy(update={"beacon": "cd" * 32}))


def copy_a_row(copy: Copy) -> None:
    """The longest one, so that nobody draws it twice by chance, over another one of its group."""

    def change(rows: list[Rollout]) -> list[Rollout]:
        source = max(range(len(rows)), key=lambda index: len(rows[index].completion_tokens))
        place = source ^ 1
        fields = {name: value for name, value in asdict(rows[source]).items() if name not in ("seed", "sample_index")}
        return [replace(row, **fields) if index == place else row for index, row in enumerate(rows)]

    copy.replace_file(first(copy), change)


def take_another_seed(copy: Copy) -> None:
    copy.replace_file(first(copy), edited(2, seed=lambda row: row.seed ^ 1))


def flip_a_mask(copy: Copy) -> None:
    def flipped(row: Rollout) -> list[bool]:
        return [False, *row.completion_mask[1:]]

    copy.replace_file(first(copy), edited(1, completion_mask=flipped))


def edit_a_completion(copy: Copy) -> None:
    """Another token, with the log-probabilities and proofs that honest weights give for it."""

    def change(rows: list[Rollout]) -> list[Rollout]:
        row = max(rows, key=lambda row: len(row.completion_tokens))
        tokens = [*row.completion_tokens]
        tokens[1] = 5 if tokens[1] != 5 else 6
        other = copy.world.proven(replace(row, completion_tokens=tokens))
        return [other if each is row else each for each in rows]

    copy.replace_file(first(copy), change)


def keep_old_proofs(copy: Copy) -> None:
    """A token is another one, the proofs stay."""

    def tokens(row: Rollout) -> list[int]:
        return [7 if row.completion_tokens[0] != 7 else 8, *row.completion_tokens[1:]]

    copy.replace_file(first(copy), edited(0, completion_tokens=tokens))


def remove_an_entry(copy: Copy) -> None:
    gone = used(copy)[0]
    copy.rewrite(lambda facts: [fact for fact in facts if fact != gone])


def swap_entries(copy: Copy) -> None:
    one, other = used(copy)[:2]
    copy.rewrite(lambda facts: [other if fact == one else one if fact == other else fact for fact in facts])


def accept_a_submission_twice(copy: Copy) -> None:
    """One lease is paid for two files."""
    fact = first(copy)
    twin = fact.model_copy(update={"file": "ab" * 32})
    copy.say(copy.verdict(fact).model_copy(update={"sha256": twin.file}))
    copy.rewrite(lambda facts: [part for each in facts for part in ([each, twin] if each == fact else [each])])


def forge_an_entry(copy: Copy) -> None:
    entry = copy.entries()[-1]
    copy.store.put(keys.ledger_entry(entry.number), sign(entry, copy.world.run_key).to_json())


def pay_more_tokens(copy: Copy) -> None:
    fact = first(copy)
    copy.say(copy.verdict(fact).model_copy(update={"completion_tokens": fact.tokens + 100, "compute": None}))
    copy.replace_fact(fact, fact.model_copy(update={"tokens": fact.tokens + 100, "compute": None}))


def raise_a_score(copy: Copy) -> None:
    key = keys.evaluation(copy.config.steps, "sums")
    copy.store.put(key, copy.store.get(key).replace(b'"value":0.0', b'"value":0.5'))


def report_another_reward(copy: Copy) -> None:
    key = keys.step_metrics(1)
    copy.store.put(key, StepMetrics.from_json(copy.store.get(key)).model_copy(update={"reward": 0.9}).to_json())


def change_the_learning_rate(copy: Copy) -> None:
    copy.config = copy.config.model_copy(
        update={"recipe": copy.config.recipe.model_copy(update={"learning_rate": 2e-3})}
    )


TAMPERINGS: list[tuple[Callable[[Copy], None], tuple[str, ...], str, str]] = [
    (raise_a_reward, ("rewards",), "rewards", "row 0: task reward 1.0"),
    (accept_the_cheat, ("rewards",), "rewards", "than they score"),
    (accuse_an_honest_node, ("rewards",), "rewards", "nothing of the kind is wrong"),
    (swap_a_file, ("draws",), "draws", "was swapped"),
    (choose_a_prompt, ("draws",), "draws", "sampling: row 0: prompt_index"),
    (take_another_seed, ("draws",), "draws", "sampling: row 2: seed"),
    (flip_a_mask, ("draws",), "draws", "row 1"),
    (pay_more_tokens, ("draws",), "draws", "completion_tokens"),
    (copy_a_row, ("draws",), "draws", "are the same completion"),
    (edit_a_completion, ("proofs",), "proofs", "redraw: row"),
    (keep_old_proofs, ("proofs",), "proofs", "row 0"),
    (reorder_a_batch, ("batches",), "batches", "in another order"),
    (drop_a_file, ("batches",), "batches", "it lacks"),
    (choose_a_group, ("batches",), "batches", "prompt_indices"),
    (choose_a_beacon, (), "ledger", "beacon"),
    (remove_an_entry, ("batches",), "batches", "batch.json"),
    (swap_entries, ("batches",), "batches", "in another order"),
    (accept_a_submission_twice, ("batches",), "batches", "accepts a second file for submission"),
    (forge_an_entry, (), "ledger", "is not signed by this run's orchestrator"),
    (raise_a_score, ("batches",), "batches", "avg@k is 0.5, must be 0"),
    (report_another_reward, ("batches",), "batches", "reward is 0.9"),
    (alter_a_tensor, ("steps",), "steps", "model.norm.weight: 1 of 128 values, by at most 0.001"),
    (seal_another_digest, ("steps",), "steps", "its digest is abababab"),
    (alter_the_base, ("steps",), "steps", "version 0 is not what its step makes"),
    (alter_the_advantages, ("steps",), "steps", "version 2 is not what its step makes"),
    (change_the_learning_rate, ("steps",), "steps", "version 1 is not what its step makes"),
]
"""Each change, the stages that look, the stage that finds it, and words of the finding."""
