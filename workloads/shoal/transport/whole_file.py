"""Writes a file whole or not at all, in a folder that others may write to: the agent's, which a worker and its programs share with it."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a new file of these bytes in the place of `path`; whoever reads sees the old one or the new one. The folder must be there.

    No link is followed: one that waits under the name of the unfinished file, or of the file itself, is replaced, never written through. Raises
    FileExistsError when somebody puts one there in that moment, and OSError as for any file.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
