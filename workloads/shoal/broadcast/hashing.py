"""SHA-256 of a file, read in pieces."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """The digest in hex; raises FileNotFoundError when there is no such file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
