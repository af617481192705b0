"""The base checkpoint on this machine's disk: copied from the store once, and used for policy, reference model and every checkpoint's files.

In: the store (`models/base/`, sealed by `prepared.json`). Out: a folder in the Hugging Face layout. Called by `__main__`.
"""

from pathlib import Path

from shoal import telemetry
from shoal.contracts import keys
from shoal.storage import Store

PREPARE_DEADLINE_SECONDS = 3600.0
"""The trainer is made after prepare has succeeded; an hour without its seal is a mistake somewhere else."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tokenizer_config.json")
"""One of these is part of every checkpoint that has a tokenizer."""


class BadBaseModel(ValueError):
    """The base model cannot be used; the message says what is missing."""


def fetch_base_model(store: Store, folder: Path, liveness: telemetry.Liveness) -> Path:
    """Copy the base model into `folder` and return it; files that are there in full size are kept.

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
    for info in store.list(keys.BASE_MODEL):
        target = folder / info.key.removeprefix(keys.BASE_MODEL)
        if not (target.is_file() and target.stat().st_size == info.size):
            store.get_to_file(info.key, target)
        liveness.progress()
    names = sorted(path.name for path in folder.iterdir())
    if not set(names) & set(TOKENIZER_FILES):
        raise BadBaseModel(
            f"{keys.BASE_MODEL} has no tokenizer, so nobody could serve the trained model: it has {', '.join(names)}; it needs one of"
            f" {', '.join(TOKENIZER_FILES)}. Put it into the model's folder or repository and start the run again"
        )
    return folder
