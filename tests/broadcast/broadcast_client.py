"""A published version and a client of it, in one process: the publisher's and the client's own code, without their loops."""

import random
import ssl
import time
from pathlib import Path

from broadcast_peers import OddRelay
from broadcast_run import RUN, Keys, checkpoint, put_outbox

from shoal.broadcast import publishing, relay_choice
from shoal.broadcast.bases import Bases
from shoal.broadcast.download import Downloader
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.sources import Sources
from shoal.broadcast.transfer import Transfer, TransferOutcome
from shoal.broadcast.tree import WEIGHTS, Tree
from shoal.broadcast.weights_folder import FolderTarget, WeightsFolder
from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.contracts.weights import WeightsManifest
from shoal.storage.checkpoint_files import OWN_FILES


class Published:
    """A version in a served folder, made by the publisher's own code, sealed or not."""

    def __init__(self, folder: Path, run_keys: Keys, **changes: object) -> None:
        self.www = folder / "www"
        self.tree = Tree(self.www)
        self._outbox = folder / "outbox"
        self._outbox.mkdir()
        self._keys = run_keys
        self._config = run_keys.config(**changes)

    def publish(
        self, version: int, files: dict[str, bytes] | None = None, *, seal: bool = True, based: bool = False
    ) -> None:
        """`based`: on the version before, whose folder is still in the outbox."""
        folder = self._outbox / keys.version_name(version)
        if not folder.exists():
            put_outbox(self._outbox, version, files or checkpoint(version))
        bases = Bases(self._outbox, self.tree, lambda: None)
        for number in self.tree.sealed():
            bases.made(Signed[WeightsManifest].from_json(self.tree.read(number, WEIGHTS) or b"").document)
        base = bases.before(version) if based else None
        assert (base is not None) == based
        key = self._keys.trainer
        manifest = publishing.cut_into(self.tree, folder, self._config, version, key, lambda: None, base)
        if seal:
            publishing.seal(self.tree, version, manifest, sign(manifest, key).to_json())


class Client:
    """A client's folder and one transfer into it."""

    def __init__(self, root: Path, run_keys: Keys, tls: ssl.SSLContext | None = None) -> None:
        self.trainer_key = run_keys.trainer.public
        self.weights = WeightsFolder(root, RUN, self.trainer_key)
        self._downloader = Downloader(run_keys.token, tls=tls)
        self.transfer: Transfer | None = None
        self.sources: Sources | None = None

    def fetch(
        self, relays: list[OddRelay], version: int = 7, *, seed: int = 1, stall_seconds: float = 30.0
    ) -> TransferOutcome:
        self.sources = Sources([relay.url for relay in relays], random.Random(seed))
        self.transfer = Transfer(
            WantedVersion(RUN, version, self.trainer_key),
            self.sources,
            self._downloader,
            FolderTarget(self.weights, version, self.trainer_key),
            stall_seconds=stall_seconds,
        )
        return self.transfer.run()

    def files(self, version: int = 7) -> dict[str, bytes]:
        folder = self.weights.path(version)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in OWN_FILES}


def weights_of(sources: Sources) -> dict[str, float]:
    """By which the next source is drawn."""
    return relay_choice.weights(sources._records, time.monotonic())


def shards_asked(relay: OddRelay) -> list[str]:
    """Paths of the shards that were asked for, in order, repetitions included."""
    return [path for path, _ in relay.asked if path.endswith(".bin")]
