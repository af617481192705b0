"""The publisher: takes finished versions from the trainer's `outbox/`, serves them, keeps them in the store, and announces them.

`python -m shoal.broadcast.origin`, beside the trainer. In: folders `outbox/v000007/` (complete: they appear by one rename). Out: `www/versions/` for
the origin's nginx, the same pieces in the store, one announcement a version. The store's `weights.json` is the moment of truth: it is
created once, before the version is sealed here and before it is announced, so an announced number never gets other bytes. A kill at any point
is repaired by doing the same again; an empty `www/` (new pod) is filled from the store.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import REGISTRY, Counter, Gauge

from shoal import telemetry
from shoal.broadcast import cut
from shoal.broadcast.bases import Bases
from shoal.broadcast.gate import TokenGate
from shoal.broadcast.nginx import ORIGIN_PORT
from shoal.broadcast.nginx_status import NginxStatus, status_socket
from shoal.broadcast.pieces import BadPiece
from shoal.broadcast.publishing import CannotRestore, SealedMeanwhile, StoreCopy, at_once, cut_into, restore, seal
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.protocol import VersionAnnouncement
from shoal.contracts.run import RunConfig, home, load_run_config, mounted_roster
from shoal.contracts.signed import Signed, sign
from shoal.contracts.weights import VersionOpen, WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.storage import NotFound, Store, StoreUnavailable, open_store
from shoal.storage.growing import Growing, Unfinished, growing_versions
from shoal.storage.versions import bases, sealed_versions
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.keys_watch import KeysWatch

TURN_SECONDS = 0.25
"""Between looks at the outbox: a version waits this long at most."""
LONGEST_PAUSE_SECONDS = 15.0
STORE_DEADLINE_SECONDS = 30.0
ANNOUNCE_DEADLINE_SECONDS = 10.0
LIVENESS_SECONDS = 180.0  # several store deadlines; progress is reported at every shard

PUBLISHED = Counter("shoal_origin_versions_published_total", "Versions sealed and announced.")
NEWEST = Gauge("shoal_origin_newest_version", "Newest version announced, -1 before the first.")


@dataclass(frozen=True)
class Cut:
    """A version that is cut and waits for the store: when that was away, nothing is cut or copied a second time."""

    folder: tuple[int, int, int]
    copy: StoreCopy
    manifest: WeightsManifest


def identity(folder: Path) -> tuple[int, int, int]:
    """Which folder this is, whatever its name becomes. Its number alone may be that of one made after it went; its entries stay from its start."""
    found = folder.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


class Publisher:
    """Brings versions from the outbox to the world, one at a time, oldest first."""

    def __init__(
        self,
        config: RunConfig,
        key: PrivateKey,
        store: Store,
        tree: Tree,
        outbox: Path,
        announce: Callable[[VersionAnnouncement], None],
        beat: Callable[[], None],
    ) -> None:
        """`announce` raises `Unavailable` or `Refused`; `beat` is called at every shard."""
        self._config = config
        self._key = key
        self._signer = config.trust.of("trainer")
        self._store = store
        self._tree = tree
        self._outbox = outbox
        self._announce = announce
        self._beat = beat
        self._bases = Bases(outbox, tree, beat)
        self._restored = False
        self._pending: dict[int, VersionAnnouncement] = {}
        self._cut: Cut | None = None
        self._left: tuple[int, int, int] | None = None
        """A folder that is not followed any more while it grows."""
        self._unusable: set[int] = set()
        self._refusal: str | None = None
        self._log = telemetry.get_logger()
        NEWEST.set(-1)

    def turn(self) -> None:
        """Do what there is to do. Raises `StoreUnavailable` or `Unavailable` when a peer is away: call again later."""
        if not self._restored:
            self._restore()
        for version in self._waiting():
            self._publish(version)
            self._send_announcements()  # it does not wait for the next one, however slowly the store takes that
        self._send_announcements()
        self._bases.check()
        self._follow_growing()

    def not_ready(self) -> str | None:
        """None, or why no version can be served."""
        if self._refusal is not None:
            return self._refusal
        return None if self._tree.sealed() else "no version is published yet: waiting for the trainer's first one"

    def _restore(self) -> None:
        """Fill `www/` with the newest versions that the store has, newest first, and announce the newest once more.

        It may be that an earlier pod sealed it and died before it announced; announcing the same again changes nothing.
        """
        sealed = [version for version in sealed_versions(self._store) if not self._unseal_void(version)]
        newest = sealed[-self._config.kept_versions :]
        for version in self._with_chains(sealed, newest):
            self._beat()
            try:
                manifest = restore(self._store, self._tree, self._config.run, version, self._signer, self._beat)
            except (CannotRestore, BadPiece, NotFound) as error:
                self._log.error("cannot serve a version of the store", version=version, reason=str(error))
                continue
            if version == sealed[-1]:
                self._pend(version, manifest)
        self._tree.keep_newest(self._config.kept_versions)
        self._restored = True

    def _unseal_void(self, version: int) -> bool:
        """Take back the seal of a version that a leaked key made and the ledger does not have: nobody believes it, and it must be sealed again."""
        if not self._config.trust.roster.changes_of("trainer"):
            return False
        try:
            signed = Signed[WeightsManifest].from_json(self._store.get(keys.version_weights(version)))
        except (NotFound, ValueError):
            return False
        if not self._signer.is_void(signed):
            return False
        self._store.delete(keys.version_weights(version))
        self._log.warning(
            "took back the seal of a version that a leaked key made and nobody announced", version=version
        )
        return True

    def _with_chains(self, sealed: list[int], newest: list[int]) -> list[int]:
        """`newest` and what they are based on, highest first."""
        found: dict[int, int | None] = {}
        todo = list(newest)
        while todo:
            version = todo.pop()
            if version not in found and version in sealed:
                try:
                    found |= bases(self._store, [version])
                except (NotFound, ValueError):  # `restore` says what is wrong with it
                    found[version] = None
                todo += [base for base in (found[version],) if base is not None]
        return sorted(found, reverse=True)

    def _waiting(self) -> list[int]:
        numbers = (keys.parse_version(path.name) for path in self._outbox.iterdir() if path.is_dir())
        return sorted({number for number in numbers if number is not None} - self._pending.keys() - self._unusable)

    def _follow_growing(self) -> None:
        """Cut a version while its trainer still writes it. Only the seal waits for its folder in the outbox, and nothing is announced before."""
        for version in growing_versions(self._outbox):
            try:
                growing = Growing(self._outbox, version, self._beat, telemetry.STOP.is_set)
            except (OSError, ValueError):
                continue  # handed over meanwhile, or begun again: the next turn finds it
            with growing:
                if identity(growing.folder) == self._left or self._store.exists(keys.version_weights(version)):
                    continue
                try:
                    self._cut_and_copy(version, growing.folder, growing)
                    growing.handed_over()
                except (Unfinished, OSError, cut.CannotCut) as error:
                    self._left = identity(growing.folder)
                    self._forget_cut()
                    self._log.warning("left a version that is being written", version=version, reason=str(error))
                    continue
            self._publish(version)
            self._send_announcements()

    def _publish(self, version: int) -> None:
        started = time.monotonic()
        folder = self._outbox / keys.version_name(version)
        try:
            if self._store.exists(keys.version_weights(version)) and not self._unseal_void(version):
                self._log.info("this version is sealed in the store; publishing its stored bytes", version=version)
                manifest = restore(self._store, self._tree, self._config.run, version, self._signer, self._beat)
            else:
                manifest = self._make(version, folder)
        except SealedMeanwhile:
            return  # the next turn finds it in the store
        except (cut.CannotCut, CannotRestore, BadPiece) as error:
            self._unusable.add(version)
            self._log.error("cannot publish this version", version=version, reason=str(error))
            return
        self._pend(version, manifest)
        self._tree.keep_newest(self._config.kept_versions)
        self._log.info("version published", version=version, seconds=round(time.monotonic() - started, 3))

    def _make(self, version: int, folder: Path) -> WeightsManifest:
        """Cut, serve shard by shard, copy each to the store meanwhile, seal there, seal here."""
        made = self._cut
        if made is None or made.manifest.version != version or made.folder != identity(folder):
            made = self._cut_and_copy(version, folder)
        manifest = made.manifest
        signed = sign(manifest, self._key)
        with telemetry.busy("store"):
            made.copy.seal(manifest, signed)
        self._forget_cut()
        seal(self._tree, version, manifest, signed.to_json())
        self._bases.made(manifest)
        return manifest

    def _cut_and_copy(self, version: int, folder: Path, growing: Growing | None = None) -> Cut:
        self._forget_cut()
        copy = StoreCopy(self._store, self._tree, version, self._beat)
        try:
            with telemetry.busy("cut"):
                base = self._bases.before(version)
                manifest = cut_into(
                    self._tree, folder, self._config, version, self._key, self._beat, base,
                    ready=growing.ready if growing is not None else at_once, visible=copy.begin,
                )  # fmt: skip
        except BaseException:
            copy.close()
            raise
        self._cut = Cut(identity(folder), copy, manifest)
        return self._cut

    def _forget_cut(self) -> None:
        if self._cut is not None:
            self._cut.copy.close()
            self._cut = None

    def _pend(self, version: int, manifest: WeightsManifest) -> None:
        data = self._tree.read(version, "open.json")
        assert data is not None
        record = Signed[VersionOpen].from_json(data).document
        self._pending[version] = VersionAnnouncement(
            run=manifest.run, version=version, weights_digest=manifest.sha256, total_size=record.total_size
        )

    def _send_announcements(self) -> None:
        """Announce in order; the outbox folder becomes the next base when its version is known to everyone."""
        for version, announcement in sorted(self._pending.items()):
            try:
                self._announce(announcement)
            except Refused as error:
                self._refusal = f"the orchestrator refused version {version}: {error}"
                raise
            self._refusal = None
            self._bases.keep(version)
            del self._pending[version]
            PUBLISHED.inc()
            NEWEST.set(version)
            self._log.info("version announced", version=version, weights_digest=announcement.weights_digest)


def stand_by() -> None:
    """Of a trainer with several pods only the first has versions to publish: the publishers of the others are healthy and do nothing."""
    telemetry.get_logger().info("on standby: only pod 0 of the trainer publishes")
    liveness = telemetry.Liveness(LIVENESS_SECONDS)
    telemetry.serve_health(ORIGIN_PORT, liveness, lambda: None)
    while not telemetry.STOP.is_set():
        liveness.progress()
        telemetry.STOP.wait(TURN_SECONDS)


def main() -> None:
    log = telemetry.start("publisher")
    telemetry.install_signals()
    if os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":  # set by Kubernetes in the pods of an Indexed Job
        stand_by()
        return
    config = load_run_config()
    telemetry.every_line(run=config.run)
    key = PrivateKey.load(home() / "secrets" / "role.pem")
    if key.public != config.trust.roster.keys["trainer"]:
        raise SystemExit("secrets/role.pem is not the roster's trainer key; no node would trust this origin")
    outbox = home() / "outbox"
    outbox.mkdir(exist_ok=True)
    liveness = telemetry.Liveness(LIVENESS_SECONDS)
    client = SignedClient(config.addresses.orchestrator, key)

    def announce(announcement: VersionAnnouncement) -> None:
        client.call("POST", "/v1/versions", announcement, deadline_seconds=ANNOUNCE_DEADLINE_SECONDS)

    store = open_store(config, deadline_seconds=STORE_DEADLINE_SECONDS)
    tree = Tree(home() / "www")
    publisher = Publisher(config, key, store, tree, outbox, announce, liveness.progress)
    gate = TokenGate(config.run, config.trust.of("relay").acting)
    KeysWatch(config.trust, config.addresses.orchestrator, gate.forget, mounted_roster).start(wait=True)
    REGISTRY.register(NginxStatus(status_socket(home())))
    telemetry.serve_health(ORIGIN_PORT, liveness, publisher.not_ready, {"/auth": gate.answer})
    log.info("publisher started", held=tree.held())

    def turn() -> float:
        liveness.progress()
        publisher.turn()
        return TURN_SECONDS

    failures = (StoreUnavailable, Unavailable, Refused, OSError)
    telemetry.until_stopped("publish", turn, failures, TURN_SECONDS, LONGEST_PAUSE_SECONDS)
    log.info("publisher stopped")


if __name__ == "__main__":
    main()
