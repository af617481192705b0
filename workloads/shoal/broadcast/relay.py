"""The relay's sync agent: pulls versions from the origin into `www/`, checks every piece, and answers nginx's token checks.

`python -m shoal.broadcast.relay`. In: the origin, or other relays, over HTTP with a token of the relay role. Out: `www/versions/`, `/auth` for nginx,
metrics. The newest version comes first, shard by shard while the publisher is still cutting; older ones are filled in when there is nothing newer.
A kill at any point loses at most the shards in flight.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pydantic
from prometheus_client import REGISTRY, Gauge, Histogram

from shoal import telemetry
from shoal.broadcast import pieces
from shoal.broadcast.documents import Documents
from shoal.broadcast.download import Denied, Downloader, NotYet, SourceFailed
from shoal.broadcast.exclusions import DEADLINE_SECONDS, Exclusion
from shoal.broadcast.gate import TokenGate
from shoal.broadcast.nginx import RELAY_PORT, log_folder, reload_mark
from shoal.broadcast.nginx_status import NginxStatus, status_socket
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.relay_target import TreeTarget, unseal_torn
from shoal.broadcast.sources import Sources
from shoal.broadcast.traffic import Traffic
from shoal.broadcast.transfer import Transfer, TransferOutcome
from shoal.broadcast.tree import INDEX, WEIGHTS, Tree
from shoal.contracts import keys, relay_token
from shoal.contracts.protocol import RELAY_TOKEN_SECONDS, RelayToken
from shoal.contracts.relays import RelayConfig, load_relay_config
from shoal.contracts.run import RunConfig, home, load_run_config, mounted_roster
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionIndex, WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.storage import chains
from shoal.transport import SignedClient
from shoal.transport.keys_watch import KeysWatch

TURN_SECONDS = 0.5
"""Between looks at the origin's index: short against a broadcast, nothing for an nginx."""
LONGEST_PAUSE_SECONDS = 8.0
LIVENESS_SECONDS = 180.0  # a turn is a look at the index or one poll of a transfer; a hanging origin costs 20 s each
COUNT_SECONDS = 1.0
TOKEN_MARGIN_SECONDS = 10

HELD = Gauge("shoal_relay_versions_held", "Complete versions on this relay.")
NEWEST = Gauge("shoal_relay_newest_version", "Newest sealed version on this relay, -1 when there is none.")
LAG = Gauge("shoal_relay_sync_lag_seconds", "Seconds since the origin has had a newer version than this relay.")

SYNC_SECONDS = Histogram(
    "shoal_relay_sync_seconds",
    "Time until a version was complete on this relay, by outcome; exemplars name the version.",
    ["outcome"],
    buckets=(1, 3, 10, 30, 100, 300, 600, 900, 1800, 3600),  # the paper's 62 GB took 14 minutes
)


class OwnToken:
    """The relay role's own token for the origin, made again before it expires."""

    def __init__(self, run: str, key: PrivateKey) -> None:
        self._run = run
        self._key = key
        self._word = ""
        self._expires = 0

    def __call__(self) -> str:
        now = int(time.time())
        if now > self._expires - TOKEN_MARGIN_SECONDS:
            self._expires = now + RELAY_TOKEN_SECONDS
            token = RelayToken(run=self._run, node=self._key.public, expires_unix=self._expires)
            self._word = relay_token.encode(token, self._key)
        return self._word


class Relay:
    """Keeps one tree like that of its sources."""

    def __init__(
        self, config: RunConfig, relay_config: RelayConfig, key: PrivateKey, tree: Tree, beat: Callable[[], None]
    ) -> None:
        """`beat` is called several times a second while a version is being pulled."""
        self._config = config
        self._tree = tree
        self._beat = beat
        self._trainer_key = config.trust.of("trainer")
        self._kept_versions = relay_config.kept_versions
        # The origin, or the relays that feed this one; every piece is checked, so it makes no difference which.
        self._upstream = relay_config.sources or [config.addresses.origin]
        self._downloader = Downloader(OwnToken(config.run, key))
        self._sources = Sources(self._upstream, random.Random(config.seed))
        self._behind_since: float | None = None
        self._targets: dict[tuple[int, bool], TreeTarget] = {}
        """Of the versions that are not whole here, and of the deltas beside them; they know what was checked."""
        self._stalled: int | None = None
        """A version that upstream has not sealed and had nothing new of for long, as when its trainer ended while writing it."""
        self._log = telemetry.get_logger()
        LAG.set_function(self.lag_seconds)  # asked when it is read: a turn lasts as long as a version's transfer

    def lag_seconds(self) -> float:
        """For how long upstream has had a version that is not whole here; 0 when there is none, or when it stands still there too."""
        since = self._behind_since
        return 0.0 if since is None else time.monotonic() - since

    def turn(self) -> bool:
        """Look upstream and try to bring the most wanted version here; True when that was done, so that there may be more to do.

        Raises `SourceFailed`, `Denied` or `NotYet` when nobody upstream can be asked, `OSError` when the disk is full.
        """
        self._drop_void()
        available = self._index()
        missing = self._missing(available)
        self._measure(available)
        if not missing:
            self._tree.keep_newest(self._kept_versions)
            return False
        # The newest first. If upstream has no more of it, another comes before it is looked at again: clients need what is announced.
        if self._goes_on():
            self._stalled = None
        version = max((number for number in missing if number != self._stalled), default=missing[-1])
        outcome = self._sync(version)
        if outcome is TransferOutcome.STALLED and self._is_sealed_upstream(version) is False:
            self._stalled = version
        elif outcome is TransferOutcome.SEALED:
            self._stalled = None
        self._targets = {key: target for key, target in self._targets.items() if key[0] in missing}
        dropped = self._tree.keep_newest(self._kept_versions)
        if dropped:
            self._log.info("dropped old versions", versions=dropped)
        self._measure(available)
        return outcome is TransferOutcome.SEALED

    def _drop_void(self) -> None:
        """After a change of keys: drop versions that nobody believes, so that they come again as the trainer's new key seals them."""
        if not self._config.trust.roster.changes_of("trainer"):
            return
        for version in self._tree.held():
            seal = self._tree.read(version, WEIGHTS) or self._tree.read(version, keys.seal_name(beside=True))
            if seal is not None and self._trainer_key.is_void(Signed[WeightsManifest].from_json(seal)):
                self._tree.drop(version)
                self._log.warning("dropped a version that a leaked key sealed", version=version)

    def not_ready(self) -> str | None:
        """None, or why clients get nothing here."""
        return None if self._tree.sealed() else "no version is complete here yet: waiting for the origin"

    def _index(self) -> list[int]:
        """Versions that are available upstream, ascending; raises when none of the sources can be asked."""
        found: set[int] = set()
        trouble: Exception | None = None
        answers = 0
        for source in self._upstream:
            try:
                found |= self._index_of(source)
                answers += 1
            except (SourceFailed, Denied, NotYet) as error:
                trouble = error
        if not answers and trouble is not None:
            raise trouble
        return sorted(found)

    def _index_of(self, source: str) -> set[int]:
        data = self._downloader.document(source, keys.VERSIONS + INDEX, pieces.MAX_INDEX_BYTES)
        try:
            return set(VersionIndex.from_json(data).versions)
        except pydantic.ValidationError as error:
            raise SourceFailed(f"the index of {source} cannot be read: {error.errors()[0]['msg']}") from error

    def _missing(self, available: list[int]) -> list[int]:
        """Versions to pull, ascending: those that would be kept and are not whole here. What one is based on shows once it is opened here."""
        sealed, bases = self._tree.sealed(), self._tree.bases()
        known = {number: bases.get(number) for number in {*available, *sealed}}
        kept = chains.must_keep(known, self._kept_versions, chains.newest_whole(known, sealed))
        return [number for number in available if number in kept and number not in sealed]

    def _goes_on(self) -> bool:
        """Whether upstream has sealed the version that stood still."""
        return self._stalled is not None and self._is_sealed_upstream(self._stalled) is True

    def _is_sealed_upstream(self, version: int) -> bool | None:
        """None where no source can be asked."""
        found: bool | None = None
        for source in self._upstream:
            try:
                self._downloader.document(source, keys.version_weights(version), pieces.MAX_MANIFEST_BYTES)
                return True
            except NotYet:
                found = False
            except (SourceFailed, Denied):
                continue
        return found

    def _sync(self, version: int) -> TransferOutcome:
        """Bring a version here; of one in full the delta beside it first, which who has the version before waits for."""
        wanted = WantedVersion(self._config.run, version, self._trainer_key)
        opened = Documents(wanted, self._sources, self._downloader).opening()
        if opened is None:  # the index has it, so it was opened: look again
            return TransferOutcome.ABANDONED
        seal = keys.seal_name(beside=True)
        if opened.document.beside is not None and self._tree.size(version, seal) is None:
            outcome = self._pull(replace(wanted, beside=True))
            if outcome is not TransferOutcome.SEALED:
                return outcome
        return self._pull(wanted)

    def _pull(self, wanted: WantedVersion) -> TransferOutcome:
        version = wanted.version
        # What is only filled in gives way to a newer version: an older one, or one in full whose delta is here. Nothing else is given up half way.
        followed = self._tree.size(version, keys.seal_name(beside=True)) is not None
        filling_in = followed or any(number > version for number in self._tree.held())
        looked_at = time.monotonic()

        def keep_on(_: float) -> bool:
            nonlocal looked_at
            self._beat()
            if not filling_in or time.monotonic() - looked_at < 2 * TURN_SECONDS:
                return True
            looked_at = time.monotonic()
            try:
                newest = max(self._index(), default=version)
                return newest <= max(self._tree.held(), default=version) and not self._goes_on()
            except (SourceFailed, Denied, NotYet):
                return True

        started = time.monotonic()
        target = self._targets.setdefault((version, wanted.beside), TreeTarget(self._tree, wanted, self._beat))
        with telemetry.busy("sync"):
            transfer = Transfer(wanted, self._sources, self._downloader, target, keep_on=keep_on)
            outcome = transfer.run()
        if outcome in (TransferOutcome.CHANGED, TransferOutcome.SEALED):
            del self._targets[version, wanted.beside]
        if outcome is TransferOutcome.CHANGED:
            self._tree.drop(version)
        seconds = time.monotonic() - started
        SYNC_SECONDS.labels(outcome.value).observe(seconds, exemplar={"version": str(version)})
        self._log.info(
            "finished the sync of a version",
            version=version,
            beside=wanted.beside,
            outcome=outcome.value,
            seconds=round(seconds, 3),
        )
        return outcome

    def _measure(self, available: list[int]) -> None:
        sealed = self._tree.sealed()
        newest = max(sealed, default=-1)
        HELD.set(len(sealed))
        NEWEST.set(newest)
        if max((number for number in available if number != self._stalled), default=-1) <= newest:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = time.monotonic()


def main() -> None:
    log = telemetry.start("relay")
    telemetry.install_signals()
    config = load_run_config()
    telemetry.every_line(run=config.run)
    relay_config = load_relay_config(config)
    key = PrivateKey.load(home() / "secrets" / "role.pem")
    tree = Tree(home() / "www", relay_config.disk_bytes)
    unseal_torn(tree)
    traffic = Traffic(log_folder(home()))
    liveness = telemetry.Liveness(LIVENESS_SECONDS)
    counted_at = 0.0

    def beat() -> None:
        nonlocal counted_at
        liveness.progress()
        if time.monotonic() - counted_at >= COUNT_SECONDS:
            counted_at = time.monotonic()
            traffic.count()

    relay = Relay(config, relay_config, key, tree, beat)
    gate = TokenGate(config.run, config.trust.of("relay").acting, config.trust.of("orchestrator").acting)
    KeysWatch(config.trust, config.addresses.orchestrator, gate.forget, mounted_roster).start()
    client = SignedClient(config.addresses.orchestrator, key, timeout_seconds=DEADLINE_SECONDS)
    exclusion = Exclusion(client, gate, reload_mark(home()))
    threading.Thread(target=exclusion.follow, name="exclusions", daemon=True).start()
    REGISTRY.register(NginxStatus(status_socket(home())))
    telemetry.serve_health(RELAY_PORT, liveness, relay.not_ready, {"/auth": gate.answer})
    log.info("relay started", held=tree.held(), pid=os.getpid())

    def turn() -> float:
        beat()
        return 0.0 if relay.turn() else TURN_SECONDS

    failures = (SourceFailed, Denied, NotYet, OSError)
    telemetry.until_stopped("sync", turn, failures, TURN_SECONDS, LONGEST_PAUSE_SECONDS)
    log.info("relay stopped")


if __name__ == "__main__":
    main()
