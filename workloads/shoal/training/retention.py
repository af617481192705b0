"""Which training states and published versions may go: only what nobody can need any more.

In: what there is, and what the run's settings say. Out: numbers to delete, and their deletion from the store. The seal `weights.json` of a published
version stays forever, a few hundred bytes: as long as it is there no number can get other bytes. Called by `loop`, in the background.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed, Signer
from shoal.contracts.trust import ever_held
from shoal.contracts.weights import VersionOpen
from shoal.storage import Store, find
from shoal.storage.chains import base_of, closure
from shoal.training.stability import History, needed_states

ALWAYS_SERVED = (0,)
"""The base model as a version: an anchor that everything can be compared with."""

KEPT_NOTES = 16


def old_states(sealed: Sequence[int], config: RunConfig, history: History, *, behaviour: bool) -> list[int]:
    """States to delete. Kept: the newest few, those that a roll-back would need; where old versions' log-probabilities are
    computed again (`behaviour`), also those of the whole asynchrony window with one to fall back on."""
    window = config.async_level + 2 if behaviour else 1
    kept = set(sealed[-max(config.trainer.kept_states, window) :])
    # As long as a state could be taken up from which that step comes again, should the newer ones be damaged.
    if config.roll_back is not None and config.roll_back.at_step >= min(kept, default=0):
        # Its own state, else the newest older one: with that its published weights are taken up.
        kept.add(max((version for version in sealed if version <= config.roll_back.to_version), default=0))
    kept |= needed_states(history, sealed)
    return [version for version in sealed if version not in kept]


def old_notes(noted: Iterable[int], served: Sequence[int]) -> list[int]:
    """Notes of made versions to delete, where the versions `served` are published and kept. A version newer than those may be lost with its pod: so
    the last `KEPT_NOTES` stay, some kilobytes each. So does that of every version whose weights are kept: a roll-back may ask for it."""
    border = max(served, default=0) - KEPT_NOTES + 1
    return [number for number in noted if number < border and number not in served]


def old_versions(
    served: Sequence[int],
    kept_states: Collection[int],
    config: RunConfig,
    bases: Mapping[int, int | None],
    best: int | None = None,
    promoted: Collection[int] = (),
) -> list[int]:
    """Published versions whose shards may go. Kept: what origin and relays hold, the asynchrony window; whatever a kept state could
    make again, the base model; the `best` version by the run's own evaluation, those that are `promoted`, that of a roll-back to come; and
    every version that a kept one is encoded against (`bases`)."""
    if not served:
        return []
    newest = served[-1]
    oldest_state = min((version for version in kept_states if version > newest - config.kept_versions), default=newest)
    border = min(newest - config.async_level, oldest_state)
    # A version that is being scored may turn out the best; it is over one version before its shards go.
    newest_kept = config.kept_versions + (config.evaluation is not None)
    kept = {*served[-newest_kept:], *ALWAYS_SERVED, *promoted, *(version for version in served if version >= border)}
    if best is not None:
        kept.add(best)
    if config.roll_back is not None and config.roll_back.at_step >= border:
        kept.add(config.roll_back.to_version)
    kept = closure(bases, kept)
    return [version for version in served if version not in kept]


def best_version(store: Store) -> int | None:
    """The version that the run's evaluation found best so far; None: none yet, or the run scores none."""
    found = find(store, keys.BEST_VERSION, BestVersion.from_json)
    return found.version if found is not None else None


def encoded_against(store: Store, versions: Iterable[int], trainer_key: Signer) -> dict[int, int | None]:
    """For each version the one that its shards are a difference to, or None."""
    found: dict[int, int | None] = {}
    for version in versions:
        signed = find(store, keys.version_open(version), Signed[VersionOpen].from_json)
        if signed is not None:
            # An earlier key's word only keeps more here, and what it made last may not be believed by anybody else yet.
            key = signed.signer if ever_held(trainer_key, signed.signer) else trainer_key
            found[version] = base_of(signed.verified(key))
    return found


def delete_shards(store: Store, version: int, may_go: Callable[[], bool] = lambda: True) -> bool:
    """Remove a published version's shards and their descriptors; opening record and seal stay. False where it may not go after all.

    `may_go` is asked when one descriptor is gone already: who promotes a version writes the tag first and then lists the version. So of the
    two at once one sees the other. The deletion puts the descriptor back, or the promotion takes the tag back.
    """
    first = keys.version_descriptor(version, 0)
    descriptor = find(store, first, bytes)  # None: an earlier deletion was killed here
    store.delete(first)
    stays = True
    try:
        stays = not may_go()
    finally:
        if stays and descriptor is not None:
            store.put(first, descriptor)
    if stays:
        return False
    for info in store.list(keys.version(version)):
        if info.key not in (keys.version_open(version), keys.version_weights(version)):
            store.delete(info.key)
    return True
