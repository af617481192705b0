"""The checkpoint folder of the last published version, kept as the base of the next one's delta.

In: folders of the outbox whose version everybody knows. Out: a folder whose bytes are those of the sealed version, or None, and then the next version
goes out in full. It lies in `outbox/.base/`, on the volume where the trainer wrote it, so that keeping it is one rename. Called by `origin`, which
checks it while there is nothing else to do: at the moment of publishing no time is lost on it.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal import telemetry
from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionOpen, WeightsManifest
from shoal.storage import chains
from shoal.storage.checkpoint_files import version_digest

FOLDER = ".base"


@dataclass(frozen=True)
class Base:
    """A checkpoint folder and the published version whose bytes it has."""

    record: VersionOpen
    sha256: str
    folder: Path
    chain_bytes: int
    """Bytes of deltas that a client without a version would fetch if the next version were a delta as large as the last."""
    last_bytes: int
    """Bytes of the last delta; 0 where the base is in full."""


class Bases:
    """Which folder may serve as a base now."""

    def __init__(self, outbox: Path, tree: Tree, beat: Callable[[], None]) -> None:
        """`beat` is called for each shard that is read."""
        self._beat = beat
        self._outbox = outbox
        self._kept = outbox / FOLDER
        self._tree = tree
        self._checked: dict[int, str] = {}

    def made(self, manifest: WeightsManifest) -> None:
        """This process cut the outbox folder of this version itself: its bytes are those of the manifest."""
        self._checked[manifest.version] = manifest.sha256

    def before(self, version: int) -> Base | None:
        """The base for `version`: the one before it, if its folder is at hand and checked, and it is sealed in `www/`."""
        number = version - 1
        folder = self._folder(number) if number >= 0 else None
        sealed = self._sealed(number) if folder is not None else None
        if folder is None or sealed is None or self._checked.get(number) != sealed[1].sha256:
            return None
        chain, last = self._chain_bytes(number)
        return Base(sealed[0], sealed[1].sha256, folder, chain + last, last)

    def keep(self, version: int) -> None:
        """The version is known to everybody: its folder leaves the outbox and replaces the base that was kept."""
        source = self._outbox / keys.version_name(version)
        if not source.is_dir():
            return
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        source.rename(self._kept / source.name)
        self._checked = {number: digest for number, digest in self._checked.items() if number >= version}

    def check(self) -> None:
        """Read the kept folder once if nobody here has: after a restart, or when its version was sealed by another process. Drop it if it differs."""
        for path in list(self._kept.iterdir()) if self._kept.is_dir() else ():
            number = keys.parse_version(path.name)
            if number in self._checked:
                continue
            sealed = self._sealed(number) if number is not None else None
            if number is not None and sealed is not None and _has_bytes(path, *sealed, self._beat):
                self._checked[number] = sealed[1].sha256
            else:
                telemetry.get_logger().warning(
                    "removing a kept base that differs from the published one", folder=path.name
                )
                shutil.rmtree(path)

    def _chain_bytes(self, version: int) -> tuple[int, int]:
        """Bytes of the deltas that lead to a version, and of the last of them."""
        bases = self._tree.bases()
        deltas = [number for number in chains.closure(bases, [version]) if bases.get(number) is not None]
        sizes = {number: self._tree.shard_bytes(number) for number in deltas}
        return sum(sizes.values()), sizes.get(version, 0)

    def _folder(self, version: int) -> Path | None:
        name = keys.version_name(version)
        return next((path for path in (self._outbox / name, self._kept / name) if path.is_dir()), None)

    def _sealed(self, version: int) -> tuple[VersionOpen, WeightsManifest] | None:
        opening, sealing = self._tree.read(version, OPEN), self._tree.read(version, WEIGHTS)
        if opening is None or sealing is None:
            return None
        return Signed[VersionOpen].from_json(opening).document, Signed[WeightsManifest].from_json(sealing).document


def _has_bytes(folder: Path, record: VersionOpen, manifest: WeightsManifest, beat: Callable[[], None]) -> bool:
    try:
        return version_digest(record, folder, beat) == manifest.sha256
    except OSError:
        return False
