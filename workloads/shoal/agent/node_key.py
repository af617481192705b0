"""The node's key: made once, kept in `key/node.pem` with mode 0600, on a volume that outlives the pod. It is the node's whole identity."""

import os
import tempfile
from pathlib import Path

from shoal.crypto.keys import PrivateKey


def load_or_create(path: Path) -> PrivateKey:
    """The key in `path`; a new one is written there first when there is none. Of two processes that start at once both get the same key.

    Raises ValueError when the file holds something else: a broken key is never replaced silently, because its node would be lost.
    """
    if not path.exists():
        _create(path, PrivateKey.generate().to_pem())
    try:
        return PrivateKey.load(path)
    except ValueError as error:
        raise ValueError(
            f"{path} holds no Ed25519 key: restore it from a backup, or delete it to start as a new node"
        ) from error


def _create(path: Path, pem: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".node-key-")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # unlike a rename, a link never replaces a key that another process wrote first
    except FileExistsError:
        return
    finally:
        os.unlink(name)
