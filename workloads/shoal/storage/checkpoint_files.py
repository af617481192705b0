"""Assembling a published version on disk: shards in any order into preallocated files, checked as a whole, visible at once.

`Assembler` is used by whoever has verified shards in hand: the client in a pool pod (from relays) and `versions.materialise` (from the store). It
writes into `<folder>.partial/`, remembers finished shards across a restart, and renames to `<folder>/` only when the SHA-256 of the whole stream is
the one in the signed manifest. No second copy of the weights is ever made.
"""

import hashlib
import os
import shutil
from pathlib import Path

from shoal.contracts.canonical import Signed, canonical_bytes, document_digest
from shoal.contracts.weights import VersionOpen, WeightsManifest

MANIFEST_FILE = "shoal-weights.json"
"""In a finished folder: the signed `WeightsManifest`, so that a reader knows the digest of what it loads."""
READ_BYTES = 8 << 20


class WrongWeights(ValueError):
    """The assembled bytes are not those of the manifest; the version is given up."""


class Assembler:
    """Collects the shards of one version into `folder`."""

    def __init__(self, record: VersionOpen, folder: Path) -> None:
        """Start, or go on with what an earlier process had written for the same opening record."""
        self.record = record
        self.folder = folder
        self._partial = folder.with_name(folder.name + ".partial")
        self._log = self._partial / ".shards"
        mark = self._partial / ".open"
        expected = canonical_bytes(record)
        if not (mark.is_file() and mark.read_bytes() == expected):
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
            for file in record.files:
                with (self._partial / file.name).open("wb") as handle:
                    handle.truncate(file.size)
            mark.write_bytes(expected)
        self._done = self._read_log()

    def missing(self) -> list[int]:
        """Indices of the shards that are still needed, ascending."""
        return [index for index in range(self.record.shard_count) if index not in self._done]

    def write_shard(self, index: int, data: bytes) -> None:
        """Put a shard, whose digest the caller has checked, in its place; raises `WrongWeights` when its size does not fit."""
        start, end = self.record.shard_bounds(index)
        if len(data) != end - start:
            raise WrongWeights(f"shard {index} has {len(data)} bytes, the opening record says {end - start}")
        file_start = 0
        for file in self.record.files:
            low, high = max(start, file_start), min(end, file_start + file.size)
            if low < high:
                with (self._partial / file.name).open("r+b") as handle:
                    handle.seek(low - file_start)
                    handle.write(data[low - start : high - start])
            file_start += file.size
        self._done.add(index)
        with self._log.open("ab") as log:
            log.write(b"%d\n" % index)

    def finish(self, manifest: Signed[WeightsManifest], signer: str) -> Path:
        """Check signature and whole, then make the folder visible; raises `WrongWeights` and drops everything when the bytes are wrong."""
        sealed = manifest.verified(signer)
        if sealed.run != self.record.run or sealed.version != self.record.version:
            raise WrongWeights(f"manifest is of {sealed.run} version {sealed.version}, not of {self.record.version}")
        if self.missing():
            raise WrongWeights(f"{len(self.missing())} shards of version {self.record.version} are missing")
        if sealed.open_digest != document_digest(self.record):
            self.discard()
            raise WrongWeights(f"version {self.record.version}: the manifest seals another opening record")
        found = self.stream_digest()
        if found != sealed.sha256:
            self.discard()
            raise WrongWeights(
                f"version {self.record.version}: SHA-256 of the assembled checkpoint is {found[:12]}..., the manifest says {sealed.sha256[:12]}..."
            )
        (self._partial / MANIFEST_FILE).write_bytes(manifest.to_json())
        (self._partial / ".open").unlink()
        self._log.unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.replace(self._partial, self.folder)
        return self.folder

    def discard(self) -> None:
        """Forget everything written so far."""
        shutil.rmtree(self._partial, ignore_errors=True)
        self._done = set()

    def stream_digest(self) -> str:
        """SHA-256 of the files' concatenation, in the order of the opening record."""
        running = hashlib.sha256()
        for file in self.record.files:
            with (self._partial / file.name).open("rb") as handle:
                while chunk := handle.read(READ_BYTES):
                    running.update(chunk)
        return running.hexdigest()

    def _read_log(self) -> set[int]:
        if not self._log.is_file():
            return set()
        # A last line without newline was cut by a crash: its shard is fetched again.
        lines = self._log.read_bytes().split(b"\n")[:-1]
        return {int(line) for line in lines if line.isdigit() and int(line) < self.record.shard_count}


def read_manifest(folder: Path, signer: str) -> WeightsManifest:
    """The verified manifest of an assembled folder; raises `BadSignature`, or FileNotFoundError when the folder is not one."""
    return Signed[WeightsManifest].from_json((folder / MANIFEST_FILE).read_bytes()).verified(signer)
