"""Cache of the cluster: every object of the watched kinds, and which keys a change concerns.

In:
events of informers and kopf, whole lists, and the answers to our own writes; the newest resourceVersion stays. Out: objects for reconcile, without
a request, and keys for the work queue. Objects are kept as compact JSON: a tenth of the memory of dicts, and each reader gets a copy of its own.
"""

import sys
import threading
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import orjson

from shoal_operator.children.names import RUN_LABEL, SET_LABEL
from shoal_operator.engine.cluster import TOO_DEEP, Object
from shoal_operator.engine.kinds import OWN_KINDS, STATUS_APART, Key

INDEXED_LABELS = (RUN_LABEL, SET_LABEL)
"""Labels by which reconcile lists: pods of one workload, Jobs of one run."""

MAX_GRAVES = 20_000
"""Deletions that are remembered, so that a late event or answer does not bring an object back. The oldest half goes when there are more."""

MAX_FAILED_PODS = 4
"""Pods of a run that failed and were replaced, as they were last: a StatefulSet replaces one within milliseconds, before anybody looks. 2 kB each."""

LARGEST_STRANGER = 1 << 18
"""Bytes of a ConfigMap or Secret with our label that nothing of ours owns. Of larger ones only metadata is kept: nobody reads more of them."""

OWN_WRITE_DELAY_SECONDS = 2.0
"""After one of our writes of a child its owner is reconciled once more: others may have written between our read and our write."""

_POD_STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
_POD_SPEC = ("nodeName", "schedulerName", "readinessGates")
_POD_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "ownerReferences",
    "creationTimestamp",
    "finalizers",
    "deletionTimestamp",
)


Controller = tuple[()] | tuple[Key | None]
"""Whose objects to look for: those that this one controls, None for those that nothing does. Empty: whoever does."""

FAILED = b'"phase":"Failed"'
"""In the data of a pod that failed."""


class CachedObject(NamedTuple):
    """One object as it is kept."""

    version: int
    uid: str
    generation: int
    owner: Key | None
    """What controls it: one of our kinds, or for a pod its workload."""
    run: str
    """Name of the run that an object of ours serves, or that a child is labelled with."""
    labels: dict[str, str]
    data: bytes
    body: int
    """Another number whenever anything but the status has changed, of a kind in `STATUS_APART`; of other kinds the version."""
    stalled: str | None = None
    """Reason of a run's condition `Stalled` while it is True, empty while it is not; None where nobody has looked at the run yet."""


def trimmed(found: Object) -> Object:
    """The object without unread fields: `managedFields`, and for pods all except identity and status."""
    metadata = found["metadata"]
    if found.get("kind") != "Pod":
        return {**found, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}
    status = found.get("status", {})
    return {
        "apiVersion": found.get("apiVersion", "v1"),
        "kind": "Pod",
        "metadata": {key: metadata[key] for key in _POD_METADATA if key in metadata},
        "spec": {key: value for key, value in found.get("spec", {}).items() if key in _POD_SPEC},
        "status": {key: status[key] for key in _POD_STATUS if key in status},
    }


def without_status(found: Object) -> Object:
    """The object without its status and without the version that changes with it."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
    return {key: value for key, value in found.items() if key != "status"} | {"metadata": metadata}


def interned(kind: str, namespace: str, name: str) -> Key:
    """A key whose texts all indexes share: otherwise each object brings its own, 200 bytes."""
    return Key(sys.intern(kind), sys.intern(namespace), sys.intern(name))


def owner_of(metadata: Mapping[str, Any]) -> Key | None:
    """The key of an object's controller. A ReplicaSet, which is not watched, stands for its Deployment: the name without the pod template's hash."""
    for owner in metadata.get("ownerReferences", ()):
        if owner.get("controller"):
            if owner["kind"] == "ReplicaSet":
                return interned("Deployment", metadata["namespace"], owner["name"].rpartition("-")[0])
            return interned(owner["kind"], metadata["namespace"], owner["name"])
    return None


def entry_of(found: Object) -> CachedObject:
    """An object as it is kept; raises KeyError or ValueError for what is not an object of an API server."""
    metadata = found["metadata"]
    # The same few hundred strings in every object of every run: one copy of each.
    labels = {sys.intern(label): sys.intern(value) for label, value in (metadata.get("labels") or {}).items()}
    version, owner, kept = int(metadata["resourceVersion"]), owner_of(metadata), trimmed(found)
    data = _written(kept)
    body = hash(_written(without_status(kept))) if found["kind"] in STATUS_APART else version
    ours = owner is not None and owner.kind in OWN_KINDS
    if found["kind"] in ("ConfigMap", "Secret") and not ours and len(data) > LARGEST_STRANGER:
        data = _written({key: value for key, value in kept.items() if key in ("apiVersion", "kind", "metadata")})
    run = found.get("spec", {}).get("run", "") if found["kind"] in OWN_KINDS else labels.get(RUN_LABEL, "")
    return CachedObject(
        version=version,
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        owner=owner,
        run=run if isinstance(run, str) else "",
        labels=labels,
        data=_exact(data),
        body=body,
        stalled=_stalled(found) if found["kind"] == "TrainingRun" else None,
    )


def _written(found: Object) -> bytes:
    """JSON of an object. What one tenant nests too deep must not keep the operator from the objects of others, and its status says so."""
    try:
        return orjson.dumps(found)
    except (TypeError, RecursionError):
        return orjson.dumps({**found, "spec": TOO_DEEP})


def _exact(data: bytes) -> bytes:
    """The same bytes in no more memory than they need: what `orjson.dumps` returns keeps the buffer that it was written in, 10 KiB for 2."""
    return bytes(memoryview(data))


def _stalled(run: Object) -> str | None:
    conditions = run.get("status", {}).get("conditions", [])
    found = (
        str(each["reason"]) if each["status"] == "True" else "" for each in conditions if each["type"] == "Stalled"
    )
    return next(found, None)


class Queue(Protocol):
    """Takes the keys that a change concerns; `queue.WorkQueue` in the operator."""

    def add(self, key: Key) -> None: ...
    def add_routine(self, key: Key) -> None: ...
    def add_after(self, key: Key, seconds: float) -> None: ...
    def add_settling(self, key: Key) -> None: ...


class Cache:
    """Objects by key; each key that a change concerns goes to the queue. Safe for threads."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.RLock()
        self._entries: dict[Key, CachedObject] = {}
        self._graves: dict[Key, int] = {}
        self._failed: dict[tuple[str, str], deque[bytes]] = {}  # (namespace, run) -> pods
        self._names: dict[tuple[str, str], dict[str, None]] = {}  # (kind, namespace) -> names
        self._by_label: dict[
            tuple[str, str, str, str], dict[str, None]
        ] = {}  # (kind, namespace, label, value) -> names
        self._by_owner: dict[Key, dict[Key, None]] = {}  # one of ours -> its children
        self._by_run: dict[tuple[str, str], dict[Key, None]] = {}  # (namespace, run) -> objects of ours that serve it

    # Reading takes no lock: each look is one operation of a dict, and entries never change. With a lock, threads that wait for it while its holder
    # waits for the interpreter took two thirds of the operator's time under many events.

    def get(self, key: Key) -> Object | None:
        """A copy of an object, or None."""
        entry = self._entries.get(key)
        return None if entry is None else orjson.loads(entry.data)

    def entry(self, key: Key) -> CachedObject | None:
        """An object as it is kept, which is cheaper."""
        return self._entries.get(key)

    def stalled(self) -> list[tuple[Key, str]]:
        """Runs by why they are stalled, or empty where they are not: a look at each run, without parsing any."""
        places = [at for at in list(self._names) if at[0] == "TrainingRun"]
        keys = [Key(*at, name) for at in places for name in list(self._names.get(at, {}))]
        entries = ((key, self._entries.get(key)) for key in keys)
        return [(key, entry.stalled) for key, entry in entries if entry is not None and entry.stalled is not None]

    def knows(self, key: Key, version: int) -> bool:
        """Whether the cache has seen this version of an object, a later one, or its deletion."""
        entry = self._entries.get(key)
        return (entry is not None and entry.version >= version) or self._graves.get(key, 0) >= version

    def find(self, kind: str, namespace: str, labels: Mapping[str, str], controller: Controller = ()) -> list[Object]:
        """Objects that carry all these labels, by name; those of one controller only, where one is given."""
        return [orjson.loads(entry.data) for _, entry in self.entries(kind, namespace, labels, controller)]

    def entries(
        self, kind: str, namespace: str, labels: Mapping[str, str], controller: Controller = ()
    ) -> list[tuple[str, CachedObject]]:
        """The same as they are kept, with their names, which is cheaper."""
        found: list[dict[str, None]] = [self._names.get((kind, namespace), {})]
        found += [
            self._by_label.get((kind, namespace, label, labels[label]), {})
            for label in INDEXED_LABELS
            if label in labels
        ]
        if controller and controller[0] is not None and controller[0].kind in OWN_KINDS:
            children = list(self._by_owner.get(controller[0], ()))  # a copy at one blow, as below
            found.append({child.name: None for child in children if child.kind == kind})
        fewest = min(found, key=len)
        entries = [
            (name, entry)
            for name in list(fewest)  # a copy at one blow: another thread may add a name meanwhile
            if (entry := self._entries.get(Key(kind, namespace, name))) is not None
            and (not controller or entry.owner == controller[0])
            and labels.items() <= entry.labels.items()
        ]
        return sorted(entries, key=itemgetter(0))

    def serving(self, kind: str, namespace: str, run: str) -> list[str]:
        """Names of objects of one of our kinds that serve a run. Others of the namespace, hundreds where tenants share it, are not looked at."""
        return sorted(key.name for key in list(self._by_run.get((namespace, run), ())) if key.kind == kind)

    def failed_pods(self, namespace: str, run: str) -> list[Object]:
        """Pods of a run that failed and are gone, the oldest first."""
        return [orjson.loads(data) for data in list(self._failed.get((namespace, run), ()))]

    # Learning.

    def observe(self, event: str, found: Object) -> None:
        """One event of a watch: ADDED, MODIFIED or DELETED, or anything else for an object that was listed.

        A known version, such as that of our own write, changes nothing and queues no key. What an operator that starts lists goes behind what was
        edited while none ran.
        """
        metadata = found["metadata"]
        key = interned(found["kind"], metadata["namespace"], metadata["name"])
        known = self._entries.get(key)
        if event != "DELETED" and known is not None and known.version == int(metadata["resourceVersion"]):
            return
        entry = entry_of(found)
        with self._lock:
            before = self._entries.get(key)
            if event == "DELETED":
                if before is None or before.version > entry.version:
                    self._bury(key, entry.version)
                    return
                self._remove(key, entry.version)
            else:
                if entry.version <= self._graves.get(key, 0) or (
                    before is not None and before.version == entry.version
                ):
                    return
                # An older one is someone's write that a write of ours overtook: it is in what we have, but nobody looked at it.
                if before is None or entry.version > before.version:
                    self._put(key, entry)
            concerned = self._concerned(key, entry)
        known_before = event == "LISTED" and is_applied(found)
        for each in concerned:
            if each != key:
                self._queue.add_settling(each)
            elif known_before:
                self._queue.add_routine(each)
            else:
                self._queue.add(each)

    def retain(self, kind: str, namespace: str | None, listed: set[Key], version: int) -> None:
        """A whole list of a kind (in one namespace, or in all) was `listed`, as of `version`: older objects that are not on it are gone."""
        concerned: set[Key] = set()
        with self._lock:
            gone = [
                key
                for key, entry in self._entries.items()
                if key.kind == kind
                and namespace in (None, key.namespace)
                and key not in listed
                and entry.version <= version
            ]
            for key in gone:
                entry = self._entries[key]
                self._remove(key, version)
                concerned |= self._concerned(key, entry)
        for each in concerned:
            self._queue.add(each)

    def forget(self, kind: str, namespace: str | None) -> None:
        """Objects of a kind (in one namespace, or in all) cannot be seen any more. They are not known to be gone, and come back as they were."""
        concerned: set[Key] = set()
        with self._lock:
            for key in [key for key in self._entries if key.kind == kind and namespace in (None, key.namespace)]:
                self._unlink(key)
                concerned |= self._concerned(key, self._entries.pop(key))
        for each in concerned:
            self._queue.add(each)

    def wrote(self, found: Object, by: Key) -> None:
        """What the API server returned to a write by the reconcile of `by`, which sees it at once."""
        entry = entry_of(found)
        key = interned(found["kind"], found["metadata"]["namespace"], found["metadata"]["name"])
        with self._lock:
            before = self._entries.get(key)
            if entry.version <= self._graves.get(key, 0) or (before is not None and before.version >= entry.version):
                return
            self._put(key, entry)
            concerned = self._concerned(key, entry)
        spec_changed = before is None or before.generation != entry.generation
        for each in concerned - {by}:
            # An object of ours whose spec we changed carries somebody's edit on.
            (self._queue.add if each == key and spec_changed else self._queue.add_routine)(each)
        # The answer may hold an edit of the spec whose event is not news any more when it comes.
        if key != by or before is None:
            self._queue.add_after(by, OWN_WRITE_DELAY_SECONDS)
        elif before.generation != entry.generation:
            self._queue.add(by)
        elif _metadata(before) != _metadata(entry):
            self._queue.add_after(by, OWN_WRITE_DELAY_SECONDS)
        # Otherwise we wrote a status, and nobody else anything: what is in the answer is what the reconcile knew.

    def _put(self, key: Key, entry: CachedObject) -> None:
        before = self._entries.get(key)
        if before is not None and (before.labels, before.owner, before.run) == (entry.labels, entry.owner, entry.run):
            self._entries[key] = entry  # as it is indexed already
            return
        self._unlink(key)
        self._entries[key] = entry
        self._names.setdefault((key.kind, key.namespace), {})[key.name] = None
        for label in INDEXED_LABELS:
            if label in entry.labels:
                self._by_label.setdefault((key.kind, key.namespace, label, entry.labels[label]), {})[key.name] = None
        if entry.owner is not None and entry.owner.kind in OWN_KINDS:
            self._by_owner.setdefault(entry.owner, {})[key] = None
        if key.kind in OWN_KINDS and entry.run:
            self._by_run.setdefault((key.namespace, entry.run), {})[key] = None

    def _remove(self, key: Key, version: int) -> None:
        self._unlink(key)
        entry = self._entries.pop(key, None)
        if key.kind == "TrainingRun":
            self._failed.pop((key.namespace, key.name), None)
        elif key.kind == "Pod" and entry is not None and FAILED in entry.data:
            run = Key("TrainingRun", key.namespace, entry.labels.get(RUN_LABEL, ""))
            if run in self._entries:
                self._failed.setdefault((run.namespace, run.name), deque(maxlen=MAX_FAILED_PODS)).append(entry.data)
        self._bury(key, version)

    def _bury(self, key: Key, version: int) -> None:
        self._graves[key] = max(version, self._graves.pop(key, 0))
        if len(self._graves) > MAX_GRAVES:
            for old in list(self._graves)[: MAX_GRAVES // 2]:
                del self._graves[old]

    def _unlink(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        _discard(self._names, (key.kind, key.namespace), key.name)
        for label in INDEXED_LABELS:
            if label in entry.labels:
                _discard(self._by_label, (key.kind, key.namespace, label, entry.labels[label]), key.name)
        if entry.owner is not None:
            _discard(self._by_owner, entry.owner, key)
        if entry.run:
            _discard(self._by_run, (key.namespace, entry.run), key)

    def _concerned(self, key: Key, entry: CachedObject) -> set[Key]:
        """Keys to reconcile when an object changed: itself or its owner, the run that it serves, and all that read a run's ConfigMap."""
        if key.kind in OWN_KINDS:
            run = Key("TrainingRun", key.namespace, entry.run)
            return {key, run} if run in self._entries else {key}
        owner = entry.owner
        # A pod's owner is a workload, whose owner is ours. Two steps are the most there are.
        for _ in range(2):
            if owner is not None and owner.kind not in OWN_KINDS:
                above = self._entries.get(owner)
                owner = None if above is None else above.owner
        if key.kind == "Pod" and owner is None:
            # What a LeaderWorkerSet's controller puts between it and its pods is not watched.
            above = self._entries.get(Key("LeaderWorkerSet", key.namespace, entry.labels.get(SET_LABEL, "")))
            owner = None if above is None else above.owner
        concerned = set() if owner is None or owner.kind not in OWN_KINDS else {owner}
        if key.kind == "ConfigMap" and entry.run:
            concerned |= set(self._by_run.get((key.namespace, entry.run), {}))
        return concerned


def is_applied(found: Object) -> bool:
    """Whether the newest spec of an object of ours was reconciled before."""
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"].get("generation", 0))


def _metadata(entry: CachedObject) -> Object:
    """Metadata without its version."""
    metadata: Object = orjson.loads(entry.data)["metadata"]
    return {**metadata, "resourceVersion": None}


def _discard(index: dict[Any, dict[Any, None]], at: Any, member: Any) -> None:
    members = index.get(at)
    if members is not None:
        members.pop(member, None)
        if not members:
            del index[at]
