"""Writes a file so that readers see the old one or the new one, never a part. Called by whoever leaves files that others read while it works."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by one with these bytes; the folder must be there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)
