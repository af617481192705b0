"""`Store`: get, put, create-if-absent, list and ranges over a folder or a store of a cloud, with a deadline on every call.

Built on obstore, which gives both backends atomic puts and create-if-absent. What is added here: keys relative to one run, refusal of odd keys, and
retries. A store that is away (network, 5xx, a folder that vanished) is asked again with growing pauses, until `deadline_seconds`;
then `StoreUnavailable` says what was waited for and how long. The deadline of an upload, or of an object that is read in chunks, counts from the
last one that got further than any before: it may take hours, and ends when nothing comes through any more. While the store is away or slow, a line
each `WORD_SECONDS` says what is waited for. A missing key and a lost race are answers, not errors, and are never retried.
"""

import errno
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from shoal.contracts import keys
from shoal.contracts.run import RunConfig, home
from shoal.contracts.storage import AzureStorage, GcsStorage, S3Storage, StorageSpec
from shoal.retries import Backoff, Words, retrying
from shoal.storage.bearer import Bearer, BearerIdentity
from shoal.storage.entra import entra_of
from shoal.storage.google import google_of
from shoal.storage.identity import Identity, IdentityRefused, Keys, S3Identity, StaticKeys, identity_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSCredential, S3Credential

Answer = TypeVar("Answer")
Chunk = TypeVar("Chunk", bound=bytes | bytearray)

KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
S3_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""In the answer to one request, or of one object in the answer to a deletion of several, whose status is 200."""
MAX_KEY_LENGTH = 512  # S3 allows 1024 bytes; ours are far shorter
CHUNK_BYTES = 8 << 20  # a streamed read holds this much at a time, and so does each part of an upload on its way
READ_BYTES = 256 << 10  # of a streamed read that says how far it is; some seconds of a store that hardly answers
UPLOADS = 8
BEING_WRITTEN = re.compile(
    r"/\.[^/]+\.sgwtmp\.\d+$"
)  # versitygw lists an object that is being written by this name too
MAX_PARTS = 9000  # S3 takes 10,000 for an object
PAUSES = Backoff(0.1, 5.0)
KINDS = {LocalStore: "folder", S3Store: "s3", AzureStore: "azure", GCSStore: "gcs"}
WORD_SECONDS = 20.0
"""Between two lines about a store that is away or slow, of all threads of a process that ask it."""
SILENCE_SECONDS = 30.0  # a request on which nothing arrives for so long is asked again


class NotFound(KeyError):
    """There is no object under this key."""

    def __str__(self) -> str:
        return f"no object {self.args[0]!r} in the store"


class BadKey(ValueError):
    """A key that no contract of ours can make: refused before it reaches the store."""


class StoreUnavailable(RuntimeError):
    """The store did not answer until the deadline."""


class LocalDiskFull(StoreUnavailable):
    """An object finds no room on the disk here, however well its store answers."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object: key relative to the run, size in bytes, time of change in seconds since 1970."""

    key: str
    size: int
    modified_unix: float


class Store:
    """Objects of one run. Safe to use from several threads."""

    def __init__(
        self,
        backend: LocalStore | S3Store | AzureStore | GCSStore,
        prefix: str,
        *,
        root: Path | None = None,
        identity: Identity | None = None,
        deadline_seconds: float = 120.0,
    ) -> None:
        """`prefix` is put before every key; `root` is the folder of a folder store (its absence means the store is away).

        `identity` is who a store over the network is asked as: its refusals are said as they are, before the store is asked.
        """
        self._backend = backend
        self._prefix = prefix.strip("/")
        self._root = root
        self._identity = identity
        self._deadline_seconds = deadline_seconds
        self._bucket_seen = False
        self._words = Words(WORD_SECONDS)

    @property
    def kind(self) -> str:
        """`folder`, `s3`, `azure` or `gcs`."""
        return next(name for backend, name in KINDS.items() if isinstance(self._backend, backend))

    def local_path(self, key: str) -> Path:
        """Where a folder store keeps `key`; raises TypeError for others, where there is no such place."""
        if self._root is None:
            raise TypeError(f"the {self.kind} store has no local paths")
        return self._root / self._full(key)

    def get(self, key: str) -> bytes:
        """The whole object; raises `NotFound`."""
        return self._call(f"read {key}", key, lambda full: bytes(obstore.get(self._backend, full).bytes()))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, fewer when it ends before; raises `NotFound`, and ValueError when `start` lies outside of it."""
        wrong = f"range {start} to {end} is outside object {key}"
        if not 0 <= start <= end:
            raise ValueError(wrong)

        def read(full: str) -> bytes:
            try:
                if start < end:
                    return bytes(obstore.get_range(self._backend, full, start=start, end=end))
                size = int(obstore.head(self._backend, full)["size"])
            except NotFoundError:
                raise
            except BaseError:
                # Both kinds of store report a start past the end as an error like any other; asking again would not mend it.
                size = int(obstore.head(self._backend, full)["size"])
                if start < size:
                    raise
            if start == end <= size:
                return b""
            raise ValueError(wrong)

        return self._call(f"read {key}", key, read)

    def get_to_file(self, key: str, path: Path, beat: Callable[[], None] = lambda: None) -> None:
        """Copy an object to a file, a chunk at a time; the file appears whole or not at all. Raises `LocalDiskFull` at once.

        `beat` is called for each of `READ_BYTES`.
        """
        partial = path.with_name(path.name + ".partial")
        progress = Furthest()

        def download(full: str) -> None:
            try:
                with partial.open("wb") as file:
                    for chunk in self._chunks_of(full, f"read {key}", progress, beat):
                        file.write(chunk)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):  # of the disk here: no store is asked again for it
                    raise LocalDiskFull(f"cannot fetch {key}: the disk of {path.parent} is full") from error
                raise

        try:
            self._call(f"read {key}", key, download, progress)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing what was there; readers see the old or the new bytes, never a mixture."""
        self._call(f"write {key}", key, lambda full: obstore.put(self._backend, full, data))

    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file, in parts when it is large; raises FileNotFoundError when there is no such file."""
        if not path.is_file():
            raise FileNotFoundError(f"cannot write {key}: there is no file {path}")
        size = path.stat().st_size
        if size <= CHUNK_BYTES:
            self._call(f"write {key}", key, lambda full: obstore.put(self._backend, full, path))
        else:
            self.put_chunks(key, lambda: _chunks(path), size)

    def put_chunks(self, key: str, chunks: Callable[[], Iterable[bytes | bytearray]], size: int) -> None:
        """Write an object of `size` bytes, at least one, from what `chunks` gives, in parts as it comes; each try calls it again."""
        part = max(CHUNK_BYTES, -(-size // MAX_PARTS))
        progress = Furthest(UPLOADS * part)
        what = f"write {key}"
        self._call(
            what,
            key,
            lambda full: obstore.put(
                self._backend,
                full,
                self._told(what, progress.through(chunks()), size),
                chunk_size=part,
                max_concurrency=UPLOADS,
            ),
            progress,
        )

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none under this key; False when there was one. Of several writers exactly one gets True.

        When an answer was lost and the call repeated, the object that it finds is compared: our own bytes count as ours.
        """
        tries = 0

        def attempt(full: str) -> bool:
            nonlocal tries
            tries += 1
            try:
                obstore.put(self._backend, full, data, mode="create")
            except AlreadyExistsError:
                return tries > 1 and bytes(obstore.get(self._backend, full).bytes()) == data
            return True

        return self._call(f"create {key}", key, attempt)

    def copy_if_absent(self, source: str, target: str) -> bool:
        """Give the bytes of `source` a second name unless `target` exists; False when it does. Raises `NotFound` without `source`.

        The store copies by itself: a folder makes a hard link, S3 a copy that is finished only while nothing has the name. No byte comes here.
        When an answer was lost and the call repeated, the object that it finds is compared: our own bytes count as ours.
        """
        to = self._full(target)
        tries = 0

        def attempt(full: str) -> bool:
            nonlocal tries
            tries += 1
            try:
                obstore.copy(self._backend, full, to, overwrite=False)
            except AlreadyExistsError:
                if tries == 1:
                    return False
                self._require_copied(full, to)
                return self.sha256(source) == self.sha256(target)
            self._require_copied(full, to)
            return True

        return self._call(f"copy {source} to {target}", source, attempt)

    def _require_copied(self, source: str, target: str) -> None:
        """Raise OSError while Azure copies: it may answer before it has, and shows an empty object until then."""
        if isinstance(self._backend, AzureStore):
            whole, there = (int(obstore.head(self._backend, each)["size"]) for each in (source, target))
            if whole != there:
                raise OSError(f"its copy has {there} of {whole} bytes")

    def size(self, key: str) -> int | None:
        """Size in bytes, or None when there is no such object."""
        try:
            return self._call(f"look at {key}", key, lambda full: int(obstore.head(self._backend, full)["size"]))
        except NotFound:
            return None

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose key begins with the folder `prefix` (`uploads/`), in the order of their keys."""
        folder = self._full(prefix.rstrip("/"))
        strip = len(self._prefix) + 1 if self._prefix else 0

        def collect(_: str) -> list[ObjectInfo]:
            began, found = time.monotonic(), list[ObjectInfo]()
            for batch in obstore.list(self._backend, folder):
                found += [
                    ObjectInfo(str(meta["path"])[strip:], int(meta["size"]), meta["last_modified"].timestamp())
                    for meta in batch
                    if not BEING_WRITTEN.search(str(meta["path"]))
                ]
                self._tell(f"list {prefix}", began, objects=len(found))
            return sorted(found, key=lambda info: info.key)

        return self._call(f"list {prefix}", prefix.rstrip("/"), collect)

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        try:
            self._call(f"delete {key}", key, lambda full: obstore.delete(self._backend, full))
        except NotFound:
            return

    def stream(self, key: str) -> Iterator[bytes]:
        """The object in chunks. Only the first chunk is retried; a break later raises, because chunks were handed out."""
        stream = self._call(
            f"read {key}",
            key,
            lambda full: iter(obstore.get(self._backend, full).stream(min_chunk_size=CHUNK_BYTES)),
        )
        for chunk in stream:
            yield bytes(chunk)

    def sha256(self, key: str, beat: Callable[[], None] = lambda: None) -> tuple[str, int]:
        """SHA-256 (hex) and size (bytes) of an object as it lies in the store; raises `NotFound`. `beat` as for `get_to_file`."""
        progress = Furthest()

        def digest(full: str) -> tuple[str, int]:
            running, size = hashlib.sha256(), 0
            for chunk in self._chunks_of(full, f"hash {key}", progress, beat):
                running.update(chunk)
                size += len(chunk)
            return running.hexdigest(), size

        return self._call(f"hash {key}", key, digest, progress)

    def _chunks_of(self, full: str, what: str, progress: "Furthest", beat: Callable[[], None]) -> Iterator[bytes]:
        """An object in chunks, as it comes."""
        found = obstore.get(self._backend, full)
        stream = (bytes(chunk) for chunk in found.stream(min_chunk_size=READ_BYTES))
        for chunk in self._told(what, progress.through(stream), int(found.meta["size"])):
            beat()
            yield chunk

    def _told(self, what: str, chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
        """The same chunks. Says now and then how far a transfer is that takes long, of `size` bytes."""
        began, done = time.monotonic(), 0
        for chunk in chunks:
            done += len(chunk)
            self._tell(what, began, bytes=done, of_bytes=size)
            yield chunk

    def _tell(self, what: str, began: float, **how_far: int) -> None:
        """Say of what began long ago (monotonic seconds) how far it is, unless something was said lately."""
        if self._words.due(began):
            waited = round(time.monotonic() - began, 1)
            structlog.get_logger().info("waiting for the store", what=what, waited_seconds=waited, **how_far)

    def _full(self, key: str) -> str:
        if len(key) > MAX_KEY_LENGTH or not KEY_PATTERN.fullmatch(key):
            raise BadKey(f"object key {key[:80]!r} is not of the form name/name: letters, digits, '.', '_' and '-'")
        return f"{self._prefix}/{key}" if self._prefix else key

    def _call(self, what: str, key: str, action: Callable[[str], Answer], progress: "Furthest | None" = None) -> Answer:
        """Run `action` on the full key, again and again while the store is away, until the deadline after the start or the last `progress`."""
        full = self._full(key)

        def once() -> Answer:
            try:
                # A put would create a folder that somebody moved away, and its objects would be lost when it came back.
                if self._root is not None and not self._root.is_dir():
                    raise OSError(f"the store's folder {self._root.name!r} does not exist")
                if self._identity is not None:
                    self._identity.keys()
                return action(full)
            except IdentityRefused as error:
                raise StoreUnavailable(f"cannot {what}: {error}") from None
            except (BaseError, OSError) as error:
                absent = isinstance(error, NotFoundError | FileNotFoundError)
                problem = self._why_not_there(error) if absent else error
                if problem is None:
                    raise NotFound(key) from error
                refusals = ("403 Forbidden", "(code: AccessDenied)")
                refused = isinstance(problem, PermissionDeniedError | UnauthenticatedError)
                if refused or any(each in str(problem) for each in refusals):
                    code = S3_CODE.search(str(problem))
                    reason = f" ({code[1] or code[2]})" if code else ""
                    raise StoreUnavailable(f"cannot {what}: the store refuses our credentials{reason}") from problem
                raise problem from None

        def say(error: BaseException, waited: float) -> None:
            if self._words.due():
                log.warning("store away, waiting", what=what, waited_seconds=round(waited, 1), error=_short(error))

        log = structlog.get_logger()
        return retrying(
            (BaseError, OSError),
            PAUSES,
            deadline_seconds=self._deadline_seconds,
            news=(lambda: progress.at) if progress is not None else None,
            give_up=lambda error, waited: StoreUnavailable(
                f"cannot {what}: the {self.kind} store did not answer for {waited:.0f} s; last error: {_short(error)}"
            ),
            say=say,
        )(once)

    def _why_not_there(self, error: Exception) -> Exception | None:
        """The store's problem when an object is missing because the whole store is; None when the object alone is missing."""
        if self._root is not None:
            return None if self._root.is_dir() else error
        if not self._bucket_seen:
            try:
                # Looking at an object in a bucket that does not exist gives the same answer as a missing object; listing does not.
                next(iter(obstore.list(self._backend, self._prefix)), None)
            except (BaseError, OSError) as missing:
                return missing
            self._bucket_seen = True
        return None


class Furthest:
    """When a transfer, over all tries of it, last got further than before."""

    def __init__(self, ahead: int = 0) -> None:
        """`ahead`: bytes that are taken from us before the store has any; 0 where they come from it."""
        self.at = 0.0  # monotonic
        self._furthest = ahead

    def through(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks, of one try."""
        taken = 0
        for chunk in chunks:
            taken += len(chunk)
            if taken > self._furthest:
                self._furthest, self.at = taken, time.monotonic()
            yield chunk


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def find(store: Store, key: str, read: Callable[[bytes], Answer]) -> Answer | None:
    """What `read` makes of the object under `key`; None when there is no such object. Raises what `read` raises."""
    try:
        data = store.get(key)
    except NotFound:
        return None
    return read(data)


def open_store(config: RunConfig, *, deadline_seconds: float = 120.0) -> Store:
    """The store of a run, from `config/run.json` and, for S3, the credentials in `secrets/store/`."""
    return _open(config, f"{config.storage.prefix}/{config.run}", home() / "store", deadline_seconds)


def open_store_of(run: str, config: RunConfig) -> Store:
    """The store of another run with the same `storage`, to be read: the same bucket, or the other's volume at `others/<run>/`."""
    return _open(config, f"{config.storage.prefix}/{run}", home() / "others" / run)


def open_below_prefix(config: RunConfig) -> Store:
    """Everything below `storage.prefix`, for objects that people put there."""
    return _open(config, config.storage.prefix, home() / "store")


def not_told(config: RunConfig) -> str:
    """Why a command on somebody's machine does not read what lies below `storage.prefix`, and how it would."""
    storage = config.storage
    place = f"s3://{storage.s3.bucket}/{storage.prefix}" if storage.s3 is not None else "DIR, with a copy of it"
    return f"lies in the store of runs: give --store {place}; or name its file with `path`"


def open_island_store(config: RunConfig, island: str, deadline_seconds: float = 120.0) -> Store:
    """The part of a run's store that belongs to one of its islands, which keeps there what a trainer keeps."""
    prefix = f"{config.storage.prefix}/{config.run}/{keys.island(island)}"
    return _open(config, prefix, home() / "store", deadline_seconds)


def _open(config: RunConfig, prefix: str, folder: Path, deadline_seconds: float = 120.0) -> Store:
    return open_in(config.storage, prefix, home(), folder, deadline_seconds=deadline_seconds)


def open_in(storage: StorageSpec, prefix: str, pod: Path, folder: Path, *, deadline_seconds: float = 120.0) -> Store:
    """The store that a manifest names. `pod` is the pod's folder, for what it asks the store with; `folder` is the volume of a folder store."""
    if storage.s3 is not None:
        return open_bucket(storage.s3, prefix, identity_of(storage.s3, pod), deadline_seconds=deadline_seconds)
    if storage.azure is not None:
        return open_container(storage.azure, prefix, entra_of(storage.azure, pod), deadline_seconds=deadline_seconds)
    if storage.gcs is not None:
        return open_gcs(storage.gcs, prefix, google_of(storage.gcs, pod), deadline_seconds=deadline_seconds)
    return open_folder(folder, prefix, deadline_seconds=deadline_seconds)


def open_folder(root: Path, prefix: str, *, deadline_seconds: float = 120.0) -> Store:
    """A folder store. The folder must exist: one that is missing is a store that is away."""
    return Store(LocalStore(prefix=root, mkdir=True), prefix, root=root, deadline_seconds=deadline_seconds)


def open_s3(
    spec: S3Storage, prefix: str, access_key: str, secret_key: str, *, deadline_seconds: float = 120.0
) -> Store:
    """An S3-compatible store, asked with one pair of keys."""
    return open_bucket(spec, prefix, StaticKeys(access_key, secret_key), deadline_seconds=deadline_seconds)


def open_bucket(spec: S3Storage, prefix: str, identity: S3Identity, *, deadline_seconds: float = 120.0) -> Store:
    """An S3-compatible store, path-style (MinIO). obstore's own retries are off: ours say what they wait for, and `create` counts them."""
    backend = S3Store(
        bucket=spec.bucket,
        endpoint=spec.endpoint,
        region=spec.region,
        # obstore asks for each request once keys have less than five minutes to live; what is asked keeps them.
        credential_provider=lambda: _for_obstore(identity.keys()),
        virtual_hosted_style_request=False,
        copy_if_not_exists="multipart",  # a copy by parts may be completed on a condition, a plain one may not
        client_options=_client_options(spec.endpoint, deadline_seconds),
        retry_config={"max_retries": 0},
    )
    return Store(backend, prefix, identity=identity, deadline_seconds=deadline_seconds)


def open_container(
    spec: AzureStorage, prefix: str, identity: BearerIdentity, *, deadline_seconds: float = 120.0
) -> Store:
    """A container of Azure Blob Storage. What it is asked with is renewed as for S3."""
    backend = AzureStore(
        container_name=spec.container,
        account_name=spec.account,
        endpoint=spec.url,
        credential_provider=lambda: _of_bearer(identity.keys()),
        client_options=_client_options(spec.url, deadline_seconds),
        retry_config={"max_retries": 0},
    )
    return Store(backend, prefix, identity=identity, deadline_seconds=deadline_seconds)


def open_gcs(spec: GcsStorage, prefix: str, identity: BearerIdentity, *, deadline_seconds: float = 120.0) -> Store:
    """A bucket of Google Cloud Storage, by its XML API. What it is asked with is renewed as for S3."""
    backend = GCSStore(
        spec.bucket,
        base_url=spec.endpoint.rstrip("/"),
        credential_provider=lambda: _of_bearer(identity.keys()),
        client_options=_client_options(spec.endpoint, deadline_seconds),
        retry_config={"max_retries": 0},
    )
    return Store(backend, prefix, identity=identity, deadline_seconds=deadline_seconds)


def _client_options(endpoint: str, deadline_seconds: float) -> "ClientConfig":
    return {
        "allow_http": endpoint.startswith("http://"),
        # Of one request, body included: a checkpoint may be large, so only silence is bounded closely.
        "timeout": timedelta(hours=1),
        "read_timeout": timedelta(seconds=min(SILENCE_SECONDS, deadline_seconds)),
        "connect_timeout": timedelta(seconds=min(5.0, deadline_seconds)),
    }


def _of_bearer(held: Bearer) -> "GCSCredential":
    return {"token": held.token, "expires_at": datetime.fromtimestamp(held.expires_unix, UTC)}


def _for_obstore(keys_now: Keys) -> "S3Credential":
    expires = keys_now.expires_unix
    return {
        "access_key_id": keys_now.access_key,
        "secret_access_key": keys_now.secret_key,
        "token": keys_now.session_token,
        "expires_at": None if expires is None else datetime.fromtimestamp(expires, UTC),
    }


def _short(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
