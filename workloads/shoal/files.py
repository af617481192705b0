"""Files of this machine: their digests, and writing one whole or not at all."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import IO


def file_sha256(path: Path) -> str:
    """The SHA-256 in hex, read in pieces; raises FileNotFoundError when there is no such file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_plain(path: Path) -> IO[bytes]:
    """Open a file of a folder that others may write to for reading, if it is a regular one and no link: nothing else is followed or waited for.

    Raises OSError: FileNotFoundError when nothing is there.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by one with these bytes: readers see the old one or the new one, never a part. The folder must be there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """As `write_atomically`, in a folder that others may write to: the agent's, which a worker and its programs share with it.

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
