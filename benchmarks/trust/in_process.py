"""The demo's run on paper, and the validators' own code on it, in this process.

In: checkpoint folders to publish, completions to write down. Out: verdicts. There is no orchestrator: a lease is made up here, drawn like a
real one from a beacon, and a job says what standing its node has. What `judge` then does is what `python -m shoal.validation` does.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.trust.demo_run import VersionPublisher, Workshop, demo_config
from shoal import environments
from shoal.contracts import keys
from shoal.contracts.pools import SAMPLER, Sampler
from shoal.contracts.protocol import Lease, StepInfo, ValidationJob
from shoal.contracts.rollouts import Rollout, write_rollouts
from shoal.contracts.roster import ROLES
from shoal.contracts.run import Addresses, Prepared, PublicRun, RunConfig
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.verdicts import Verdict
from shoal.crypto.keys import PrivateKey
from shoal.environments.tokens import eos_token_ids
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow
from shoal.sampling import draw
from shoal.storage.store import open_folder
from shoal.telemetry import Liveness
from shoal.validation.judge import judge
from shoal.validation.policies import Policies
from shoal.validation.setup import read_facts

STEP = 1
PATIENCE_SECONDS = 600.0
KEPT = 3
GOOD_STANDING = 100_000
"""Accepted files of a node that has earned that the smallest share of its rows is checked."""


def paper_config(changes: Mapping[str, object] | None = None) -> RunConfig:
    """The demo's configuration with addresses where nobody listens, and with `changes`."""
    nowhere = "http://127.0.0.1:1"
    addresses = Addresses(
        discovery=nowhere, orchestrator=nowhere, origin=nowhere, relays=[], redis="redis://127.0.0.1:1/0"
    )
    return demo_config(addresses, ROLE_KEYS, RUN_KEY).model_copy(update=dict(changes or {}))


ROLE_KEYS = {role: PrivateKey.generate() for role in ROLES}
RUN_KEY = PrivateKey.generate()


class PaperRun:
    """A prepared run with version 0, the base model, and version `STEP`, which leases are served with."""

    def __init__(self, home: Path, config: RunConfig, base: Path, version: Path | None = None) -> None:
        """`home` is an empty folder, `base` the base checkpoint, `version` the published one (the base if absent)."""
        self.config = config
        self._home = home
        (home / "store").mkdir(parents=True)
        store = open_folder(home / "store", f"{config.storage.prefix}/{config.run}")
        environment = environments.load(config.tasks.judged_by)
        tasks = environment.tasks(config.tasks.count or 1024, config.seed)
        store.put(keys.task_table(tasks_digest(tasks)), write_tasks(tasks))
        for path in sorted(base.iterdir()):
            store.put_file(keys.BASE_MODEL + path.name, path)
        prepared = Prepared(
            run=config.run,
            model_id=config.model_id,
            environment=environment.name,
            environment_digest=environments.digest(environment),
            tasks_digest=tasks_digest(tasks),
            task_count=len(tasks),
        )
        store.put(keys.PREPARED, prepared.to_json())
        publisher = VersionPublisher(config, ROLE_KEYS["trainer"], store, home / "publisher", lambda announced: None)
        publisher.publish(0, base)
        self.digest = publisher.publish(STEP, version or base)
        self._facts = read_facts(config, store, home / "facts", Liveness(PATIENCE_SECONDS))
        self._policies = Policies(
            store, home / "policies", config.run, config.trusted_roster().keys["trainer"], capacity=KEPT
        )
        public = PublicRun(
            run=config.run, steps=config.steps, async_level=config.async_level, model_id=config.model_id,
            environment=environment.name, environment_digest=prepared.environment_digest,
            tasks_digest=prepared.tasks_digest, task_count=len(tasks), group_size=config.recipe.group_size,
            max_sequence_length=config.recipe.max_sequence_length, sampling=config.sampling,
            length_reward=config.length_reward,
        )  # fmt: skip
        self.workshop = Workshop(
            public=public,
            tasks=tasks,
            environment=environment,
            tokenizer=AutoTokenizer.from_pretrained(base),
            eos_token_ids=eos_token_ids(base),
        )
        self._beacon = draw.beacon(b"on paper", config.run, STEP)

    def lease(self, number: int) -> tuple[Lease, list[PlannedRow]]:
        """Lease `number`, of a node of its own, and the rows that it holds."""
        node = hashlib.sha256(f"node {number}".encode()).hexdigest()
        lease = Lease(lease=f"{number:032x}", node=node, step=STEP, submission=0, expires_unix=0.0)
        step = StepInfo(
            run=self.config.run, step=STEP, beacon=self._beacon.hex(), commitment=draw.beacon_commitment(self._beacon),
            min_version=0, max_version=STEP, latest_version=STEP, needed_groups=1, accepted_groups=0, pending_groups=0,
        )  # fmt: skip
        return lease, self.workshop.plan(step, lease)

    def rows(self, lease: Lease, planned: Sequence[PlannedRow], completions: Sequence[Completion]) -> list[Rollout]:
        """The rows of an honest file."""
        return self.workshop.rows(planned, completions, lease, STEP)

    def write(self, rows: Sequence[Rollout]) -> bytes:
        """The file of these rows."""
        return write_rollouts(rows, self.workshop.metadata(self.digest))

    def judge(
        self, data: bytes, lease: Lease, *, accepted_files: int = 0, sampler: Sampler | None = SAMPLER
    ) -> Verdict:
        """A validator's verdict on a file; a node without accepted files is on probation."""
        path = self._home / "upload.parquet"
        path.write_bytes(data)
        job = ValidationJob(
            claim="aa" * 16, run=self.config.run, node=lease.node, lease=lease.lease, step=lease.step,
            submission=lease.submission, sha256=hashlib.sha256(data).hexdigest(), size=len(data),
            beacon=self._beacon.hex(), min_version=0, max_version=STEP, accepted_files=accepted_files,
            on_probation=accepted_files < self.config.validation.probation_files, sampler=sampler,
        )  # fmt: skip
        return judge(path, job, self._facts, self._policies, secrets.SystemRandom())
