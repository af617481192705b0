"""Builders of documents for the tests of the command line and the report: real contracts, every number given by the test."""

import hashlib
from pathlib import Path
from typing import Any

from changed_keys import RunKeys
from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.completions import Sampling
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.protocol import RunProgress
from shoal.contracts.recipe import Recipe
from shoal.contracts.roster import ROLES
from shoal.contracts.run import Addresses, RunConfig
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, StepBatch, StepMetrics
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.report.records import SampleRecord
from shoal.report.snapshot import Part, Snapshot
from shoal.storage.store import open_folder


def step_metrics(step: int, **changes: Any) -> StepMetrics:
    values: dict[str, Any] = {
        "run": "demo", "step": step, "policy_version": step + 1, "attempt": "demo-trainer-1",
        "started_unix": 1000.0 + 10 * step, "finished_unix": 1008.0 + 10 * step,
        "reward": 0.3, "task_reward": 0.35, "length_penalty": 0.05, "loss": 0.01,
        "gradient_norm": 0.08, "gradient_norm_max": 0.1, "skipped_updates": 0,
        "clip_low": 0.004, "clip_high": 0.003, "clip_delta": 0.001, "entropy": 0.5, "kl": 0.001, "mismatch_kl": 1e-6,
        "policy_lag_mean": 1.5, "policy_lag_max": 2, "rows": 256, "completion_tokens": 5000,
        "completion_length_mean": 19.5, "packing_density": 0.99, "learning_rate": 1e-4,
        "phase_seconds": {"wait": 3.0, "update": 4.0},
    }  # fmt: skip
    return StepMetrics(**(values | changes))


def progress(**changes: Any) -> RunProgress:
    values: dict[str, Any] = {
        "run": "demo", "steps_total": 60, "open_step": 7, "latest_version": 7, "accepted_groups": 12, "needed_groups": 32,
        "pending_groups": 8, "files_accepted": 40, "files_rejected": 1, "files_pending": 2,
        "reject_reasons": {"computation": 1}, "nodes": {"Healthy": 2}, "completion_tokens_accepted": 100_000,
        "trainer_phase": "wait", "last_step": step_metrics(6),
    }  # fmt: skip
    return RunProgress(**(values | changes))


def snapshot(unix: float = 2000.0, parts: tuple[Part, ...] = (), **changes: Any) -> Snapshot:
    return Snapshot(unix=unix, run="demo", steps_total=60, parts=parts, **changes)


def part(pod: str = "demo-trainer-1", container: str = "trainer", **changes: Any) -> Part:
    return Part(
        **({"pod": pod, "container": container, "phase": "Running", "ready": True, "address": "127.17.0.9"} | changes)
    )


NODE = "ab" * 32
SHARD_BYTES = 1024


def verdict(number: int, outcome: str, reason: str | None = None) -> Verdict:
    accepted = outcome == "accept"
    rewards = [RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)] if accepted else []
    return Verdict(
        run="demo", node=NODE, lease=f"{number:032x}", step=0, submission=number, sha256=f"{number:064x}",
        policy_version=0 if accepted else None, outcome=outcome, reason=reason, rewards=rewards, rows=len(rewards),
    )  # fmt: skip


def batch(step: int, groups: int, dropped: int) -> StepBatch:
    file = BatchFile(node=NODE, submission=0, sha256="cd" * 32, policy_version=step, rows=8, prompt_indices=[0])
    return StepBatch(run="demo", step=step, beacon="00" * 32, groups=groups, groups_dropped=dropped, files=[file])


class RunFolder:
    """A run folder as `shoal up` leaves it: an orchestrator's home with configuration and folder store, written with real contracts."""

    def __init__(self, runs_dir: Path, steps_total: int = 10) -> None:
        self.path = runs_dir / "demo"
        self.home = self.path / "pods" / "demo-orchestrator-0"
        (self.home / "config").mkdir(parents=True)
        (self.home / "store").mkdir()
        (self.path / "up.lock").write_text("{}")
        self.role_keys = {role: PrivateKey.generate() for role in ROLES}
        self.keys = RunKeys("demo", PrivateKey.generate(), self.role_keys)
        url = "http://127.17.0.1:8080"
        self.config = RunConfig(
            run="demo", steps=steps_total, async_level=2, model_id="demo/tiny",
            model=ModelSource(generated=GeneratedModel()), tasks=TaskSource(environment="arithmetic", count=4),
            recipe=Recipe(max_sequence_length=64), sampling=Sampling(max_completion_tokens=32), length_reward=None,
            validation=Validation(), storage=StorageSpec(), roster=self.keys.roster, run_key=self.keys.run_key.public,
            addresses=Addresses(discovery=url, orchestrator=url, origin=url, relays=[url], redis="redis://127.17.0.1/0"),
        )  # fmt: skip
        (self.home / "config" / "run.json").write_bytes(self.config.to_json())
        self.store = open_folder(self.home / "store", "shoal/demo", deadline_seconds=1)

    def add_step(self, metrics: StepMetrics, groups: int = 32, dropped: int = 4) -> None:
        self.store.put(keys.step_batch(metrics.step), batch(metrics.step, groups, dropped).to_json())
        self.store.put(keys.step_metrics(metrics.step), metrics.to_json())

    def add_verdict(self, found: Verdict) -> None:
        signed = sign(found, self.role_keys["validator"])
        self.store.put(keys.verdict(found.node, found.sha256), signed.to_json())

    def add_version(self, version: int, files: dict[str, bytes]) -> None:
        """Publish a version as the origin does: signed opening record, shards with descriptors, sealing manifest."""
        key = self.role_keys["trainer"]
        stream = b"".join(files.values())
        shards = [stream[at : at + SHARD_BYTES] for at in range(0, len(stream), SHARD_BYTES)]
        record = VersionOpen(
            run="demo", version=version, shard_size=SHARD_BYTES, shard_count=len(shards),
            files=[CheckpointFile(name=name, size=len(data)) for name, data in files.items()],
        )  # fmt: skip
        self.store.put(keys.version_open(version), sign(record, key).to_json())
        digests = [hashlib.sha256(shard).hexdigest() for shard in shards]
        for index, (shard, digest) in enumerate(zip(shards, digests, strict=True)):
            descriptor = ShardDescriptor(run="demo", version=version, index=index, size=len(shard), sha256=digest)
            self.store.put(keys.version_descriptor(version, index), sign(descriptor, key).to_json())
            self.store.put(keys.version_shard(version, index), shard)
        manifest = WeightsManifest(
            run="demo", version=version, model="demo/tiny", sha256=hashlib.sha256(stream).hexdigest(),
            open_digest=document_digest(record), shards=digests,
        )  # fmt: skip
        self.store.put(keys.version_weights(version), sign(manifest, key).to_json())

    def add_records(self, *records: Contract) -> None:
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.write(b"".join(record.to_json() + b"\n" for record in records))


def sample(unix: float, container: str, pod: str = "demo-pool-0", pid: int = 1, **values: Any) -> SampleRecord:
    return SampleRecord(unix=unix, pod=pod, container=container, pid=pid, **values)
