"""When things of a run happened, as the store tells it: the times at which leases, submissions and versions were written.

A store on S3 tells whole seconds. Used by the timeline of the page and by traces.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.contracts import keys
from shoal.storage import Store
from shoal.storage.store import ObjectInfo

LEASE = re.compile(r"leases/([0-9]{1,9})/([0-9a-f]{64})/([0-9]{1,9})\.json")
SUBMISSION = re.compile(r"submissions/([0-9a-f]{64})/([0-9a-f]{64})\.json")
VERSION_FILE = re.compile(r"versions/v([0-9]{6})/(open|weights)\.json")


@dataclass(frozen=True)
class StoreTimes:
    """When things were written, in unix seconds: leases by (node, step, submission), submissions by (node, file), versions by number."""

    leased: dict[tuple[str, int, int], float] = field(default_factory=dict)
    submitted: dict[tuple[str, str], float] = field(default_factory=dict)
    opened: dict[int, float] = field(default_factory=dict)
    sealed: dict[int, float] = field(default_factory=dict)


def read_times(store: Store) -> StoreTimes:
    """List the store; raises `storage.StoreUnavailable`."""
    return store_times(info for folder in (keys.LEASES, keys.SUBMISSIONS, keys.VERSIONS) for info in store.list(folder))


def store_times(infos: Iterable[ObjectInfo]) -> StoreTimes:
    """Times of the objects whose names say what they are; others are left out."""
    times = StoreTimes()
    for info in infos:
        if found := LEASE.fullmatch(info.key):
            times.leased[found[2], int(found[1]), int(found[3])] = info.modified_unix
        elif found := SUBMISSION.fullmatch(info.key):
            times.submitted[found[1], found[2]] = info.modified_unix
        elif found := VERSION_FILE.fullmatch(info.key):
            (times.opened if found[2] == "open" else times.sealed)[int(found[1])] = info.modified_unix
    return times
