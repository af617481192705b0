"""The base model into the outbox as version 0, byte for byte, for the publisher beside us to serve.

In: `models/base/` in the store. Out: `outbox/v000000/`, by one rename. Files that came whole before a stop are
not fetched again. Called by `collector`.
"""

from pathlib import Path

from shoal import telemetry
from shoal.contracts import keys
from shoal.storage import Store
from shoal.storage.checkpoint_files import flush


def hand_over(store: Store, outbox: Path, liveness: telemetry.Liveness) -> None:
    """Fill `outbox/v000000/` unless it is there or version 0 is sealed in the store: what was announced keeps its bytes."""
    target = outbox / keys.version_name(0)
    if target.is_dir() or store.exists(keys.version_weights(0)):
        return
    partial = outbox / f"partial-{keys.version_name(0)}"
    partial.mkdir(parents=True, exist_ok=True)
    for info in store.list(keys.BASE_MODEL):
        path = partial / info.key.removeprefix(keys.BASE_MODEL)
        if not (path.is_file() and path.stat().st_size == info.size):
            store.get_to_file(info.key, path)
        flush(path)
        liveness.progress()
    partial.rename(target)
    flush(outbox)
    telemetry.get_logger().info("handed over the base model as version 0")
