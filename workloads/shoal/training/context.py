"""What one attempt at a run's training works with: settings, store, folders, ranks, signs of life.

Made by `__main__`; given to the loop, its method and its extensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts.roster import Role
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signer
from shoal.storage import Store
from shoal.telemetry import Liveness
from shoal.training.parallel import Ranks
from shoal.training.progress import ProgressReporter
from shoal.training.stored_weights import StoredWeights


@dataclass(frozen=True)
class TrainerContext:
    """`store` holds the run's data; `state_store` takes this trainer's states and reports, most often the same one.

    Folders: `base` has the base checkpoint, `outbox` takes versions, `scratch` has files on their way from the store. `weights` are those of the base
    checkpoint; None: they lie in `base`. `attempt` names the pod. `signers`: whom to believe about documents of a role; None: `config.trust`, as in a
    run that goes on.
    """

    config: RunConfig
    store: Store
    state_store: Store
    base: Path
    outbox: Path
    scratch: Path
    attempt: str
    progress: ProgressReporter
    liveness: Liveness
    ranks: Ranks
    signers: Callable[[Role], Signer] | None = None
    weights: StoredWeights | None = None

    def signer(self, role: Role) -> Signer:
        """Who is believed as `role`."""
        return self.signers(role) if self.signers is not None else self.config.trust.of(role)

    def alive(self) -> None:
        """A sign of life in a long wait: to the kubelet at once, to the orchestrator now and then."""
        self.liveness.progress()
        self.progress.beat()
