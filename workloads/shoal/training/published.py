"""The newest version that this run's trainer handed over, whatever became of its process: what a resume may not make a second time.

In: the store with its sealed versions, and the outbox, where a version waits for the publisher. Out: its number, and its weights in the policy.
Weights that were published are rounded to the dtype of serving. Called by `loop`, and by `behaviour` for versions that sampled rows.
"""

import shutil
from pathlib import Path

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.signed import BadSignature
from shoal.storage import NotFound, Store
from shoal.storage.versions import materialise, read_sealed_manifest, sealed_versions, versions_with_shards
from shoal.training.context import TrainerContext
from shoal.training.model import Policy
from shoal.training.stored_weights import BadModel, weights_in_folder
from shoal.training.waits import Waits

PUBLISHED_DEADLINE_SECONDS = 3600.0
"""The publisher needs minutes for tens of gigabytes; after an hour something is broken."""


class NoWeights(RuntimeError):
    """A version was announced and its bytes are not available; the message says why and what to do."""


class HandedOver:
    """The versions of one run that are in the world, or on their way there. All ranks call these methods."""

    def __init__(self, context: TrainerContext, waits: Waits) -> None:
        self._context = context
        self._waits = waits
        self._key = context.config.trust.of("trainer")

    def newest(self) -> int | None:
        """The newest sealed version, or one in the outbox that is newer; None: there is neither. Costs one listing of `versions/`."""
        ranks = self._context.ranks
        return ranks.broadcast(self._newest() if ranks.leader else None, "which versions were handed over")

    def has(self, version: int) -> bool:
        """Whether a version's weights are sealed and still kept, or wait in the outbox."""
        ranks = self._context.ranks
        there = ranks.leader and (
            (self._context.outbox / keys.version_name(version)).is_dir()
            or (version in versions_with_shards(self._context.state_store) and self._is_sealed(version))
        )
        return ranks.broadcast(there, f"whether version {version} was handed over")

    def load(self, version: int, policy: Policy) -> None:
        """Its weights into the policy. Raises `NoWeights`, or `BadModel` when it is of another model.

        From the outbox where it waits there and every rank sees it. It may be of the leader's machine alone, or the publisher takes it away: then
        all wait for the version's seal and fetch it.
        """
        ranks, folder = self._context.ranks, self._context.outbox / keys.version_name(version)
        found = ranks.broadcast(
            folder.is_dir() and not self._is_sealed(version), "whether a version waits in the outbox"
        )
        if found:
            if not ranks.any(not self._taken(folder, policy), "a version in the outbox"):
                return
            self._waits.leader(
                f"version {version} to be published",
                lambda: self._is_sealed(version) or None,
                deadline_seconds=PUBLISHED_DEADLINE_SECONDS,
            )
        try:
            load_published(self._context, self._context.state_store, version, policy)
        except NoWeights as error:
            raise NoWeights(f"version {version} was handed over, and no state is as new; {error}") from error

    def _newest(self) -> int | None:
        waiting = (keys.parse_version(path.name) for path in self._context.outbox.iterdir() if path.is_dir())
        sealed = (
            version for version in reversed(sealed_versions(self._context.state_store)) if self._is_sealed(version)
        )
        return max((number for number in (*waiting, next(sealed, None)) if number is not None), default=None)

    def _is_sealed(self, version: int) -> bool:
        """Whether the store has a seal of it that the trainer's key vouches for; one of a leaked key does not count."""
        try:
            read_sealed_manifest(self._context.state_store, version, self._key)
        except NotFound:
            return False
        except (ValueError, BadSignature) as error:
            telemetry.get_logger().error(
                "the trainer did not sign the seal of a version; leaving it out", version=version, reason=str(error)
            )
            return False
        return True

    def _taken(self, folder: Path, policy: Policy) -> bool:
        """Whether all of it could be read: the publisher takes the folder away when its version is announced."""
        if not folder.is_dir():
            return False
        try:
            policy.load_weights(weights_in_folder(folder).items())
        except (OSError, BadModel) as error:
            telemetry.get_logger().warning(
                "a version in the outbox cannot be read", folder=folder.name, reason=str(error)
            )
            return False
        return True


def load_published(context: TrainerContext, store: Store, version: int, policy: Policy) -> None:
    """The weights of a version in `store` into the policy. All ranks call this; each machine fetches and checks a copy, at 65 GB some minutes.

    Raises `NoWeights`, or `BadModel` when it is of another model.
    """
    ranks, folder = context.ranks, context.scratch / "published" / keys.version_name(version)
    what, key = f"version {version} to be fetched", context.config.trust.of("trainer")

    def fetch() -> str | None:
        try:
            materialise(store, version, folder, context.config.run, key, context.liveness.progress)
        except (NotFound, ValueError) as error:
            return str(error)
        return None

    problem = ranks.each_does(what, fetch, context.liveness.progress, first_of_node=True)
    if ranks.any(problem is not None, what):
        raise NoWeights(
            f"the bytes of version {version} are not available: {problem or 'see another rank'}."
            f" Put {keys.version(version)} back as it was published"
        )
    ranks.each_does(
        f"version {version} to be read",
        lambda: policy.load_weights(weights_in_folder(folder).items(), context.liveness.progress),
        context.liveness.progress,
    )
    if ranks.all(True, "a published version to be read by all") and ranks.first_on_node:
        shutil.rmtree(folder)
