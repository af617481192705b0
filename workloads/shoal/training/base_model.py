"""The base checkpoint: configuration and tokenizer on this machine's disk, for every checkpoint's files; weights in the store, read by rows.

In: the store (`models/base/`, sealed by `prepared.json`). Out: a folder in the Hugging Face layout without weights, and these where they lie.
Policy and reference model read each rank's rows from the store: at 32B on four pods 16.4 GB a pod, where a copy would be 65.5. Prepare records no
digests of the base model's files, so each file's header and size are checked. Called by `__main__`.
"""

from pathlib import Path

from shoal import telemetry
from shoal.contracts import keys
from shoal.storage import Store
from shoal.training.stored_weights import StoredWeights, weights_in_store

PREPARE_DEADLINE_SECONDS = 3600.0
"""The trainer is made after prepare has succeeded; an hour without its seal is a mistake somewhere else."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tokenizer_config.json")
"""One of these is part of every checkpoint that has a tokenizer."""
WEIGHTS = ".safetensors"


class BadBaseModel(ValueError):
    """The base model cannot be used; the message says what is missing."""


def fetch_base_model(store: Store, folder: Path, liveness: telemetry.Liveness) -> Path:
    """Copy the base model's files but its weights into `folder` and return it; what is there in full size is kept.

    Raises BadBaseModel when it has no tokenizer: every version is served with the base model's, so workers could not start.
    """
    telemetry.wait_for(
        "prepared.json in the store",
        lambda: store.exists(keys.PREPARED) or None,
        deadline_seconds=PREPARE_DEADLINE_SECONDS,
        interval_seconds=1.0,
        liveness=liveness,
    )
    folder.mkdir(parents=True, exist_ok=True)
    there = store.list(keys.BASE_MODEL)
    for info in there:
        if info.key.endswith(WEIGHTS):
            continue
        target = folder / info.key.removeprefix(keys.BASE_MODEL)
        if not (target.is_file() and target.stat().st_size == info.size):
            store.get_to_file(info.key, target)
        liveness.progress()
    names = [info.key.removeprefix(keys.BASE_MODEL) for info in there]
    if not set(names) & set(TOKENIZER_FILES):
        raise BadBaseModel(
            f"{keys.BASE_MODEL} has no tokenizer, so nobody could serve the trained model: it has {', '.join(names)}; it needs one of"
            f" {', '.join(TOKENIZER_FILES)}. Put it into the model's folder or repository and start the run again"
        )
    return folder


def base_weights(store: Store) -> StoredWeights:
    """The base model's weights in the store, of which a rank reads its rows. Raises `stored_weights.BadModel`."""
    return weights_in_store(store, keys.BASE_MODEL)
