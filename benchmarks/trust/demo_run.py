"""The demo's run, for workers of either kind: its configuration, publishing of versions, and what a worker makes of a lease.

In: `examples/arithmetic/trainingrun.yaml`, read by the operator's own builders, so that rates and thresholds are the demo's. Published
versions go the trainer's way, through the publisher's code; rows are planned and put together by the worker's.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from transformers import PreTrainedTokenizerFast

from shoal.broadcast.origin import Publisher
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.protocol import Lease, StepInfo, VersionAnnouncement
from shoal.contracts.rollouts import Rollout, RolloutMetadata
from shoal.contracts.roster import Role, Roster
from shoal.contracts.run import Addresses, PublicRun, RunConfig
from shoal.contracts.signed import sign
from shoal.contracts.tasks import Task
from shoal.crypto.keys import PrivateKey
from shoal.environments import Environment, Score
from shoal.environments.prompts import prompt_tokens
from shoal.environments.tokens import completion_text
from shoal.inference.completions import Completion
from shoal.inference.rollouts import PlannedRow, assemble, plan_submission
from shoal.installed import installed
from shoal.storage import Store
from shoal_operator.api import TrainingRun
from shoal_operator.children.own_kinds import References
from shoal_operator.children.run_config import run_config

MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"


def demo_config(addresses: Addresses, role_keys: Mapping[Role, PrivateKey], run_key: PrivateKey) -> RunConfig:
    """`config/run.json` of the demo, as the operator makes it."""
    run = TrainingRun.model_validate(yaml.safe_load(MANIFEST.read_text()))
    roster = Roster(run=run.metadata.name, keys={role: key.public for role, key in role_keys.items()})
    return run_config(run, References(), addresses, sign(roster, run_key), run_key.public, {})


class VersionPublisher:
    """Publishes checkpoint folders as policy versions."""

    def __init__(
        self,
        config: RunConfig,
        trainer: PrivateKey,
        store: Store,
        home: Path,
        announce: Callable[[VersionAnnouncement], None],
    ) -> None:
        """`home` is an empty folder; `announce` is told of each version once it is whole in the store."""
        self._outbox = home / "outbox"
        self._outbox.mkdir(parents=True)
        self._digests: dict[int, str] = {}

        def announced(announcement: VersionAnnouncement) -> None:
            announce(announcement)
            self._digests[announcement.version] = announcement.weights_digest

        self._publisher = Publisher(config, trainer, store, Tree(home / "www"), self._outbox, announced, lambda: None)

    def publish(self, number: int, folder: Path) -> str:
        """Cut, store, seal and announce; returns the weights' digest."""
        partial = self._outbox / "next.partial"
        shutil.copytree(folder, partial)
        partial.rename(self._outbox / keys.version_name(number))
        self._publisher.turn()
        return self._digests[number]


@dataclass(frozen=True)
class Workshop:
    """What a worker knows of a run, and what it makes of a lease; a dishonest one starts from the same."""

    public: PublicRun
    tasks: Sequence[Task]
    environment: Environment
    tokenizer: PreTrainedTokenizerFast
    eos_token_ids: frozenset[int]

    def render(self, task: Task, target_length: int | None) -> list[int]:
        """Prompt tokens of a task."""
        return prompt_tokens(self.tokenizer, self.environment, task, target_length, None)

    def score(self, task: Task, tokens: Sequence[int], mask: Sequence[bool]) -> float | None:
        """Task reward of a completion."""
        found = self.environment.score(task, completion_text(self.tokenizer, tokens, self.eos_token_ids))
        return found.task_reward if isinstance(found, Score) else None

    def plan(self, step: StepInfo, lease: Lease) -> list[PlannedRow]:
        """The rows that a lease must hold."""
        return plan_submission(self.public.codec.decode(step.step), step, lease, self.public, self.tasks, self.render)

    def rows(
        self, planned: Sequence[PlannedRow], completions: Sequence[Completion], lease: Lease, policy_version: int
    ) -> list[Rollout]:
        """The rows of an honest file."""
        return assemble(planned, completions, lease, self.public, policy_version, self.score)

    def metadata(self, weights_digest: str) -> RolloutMetadata:
        """What an honest file says of itself."""
        return RolloutMetadata(
            model=self.public.model_id,
            weights_digest=weights_digest,
            environment_digest=self.public.environment_digest,
            software_version=installed().version,
        )
