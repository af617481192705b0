"""The client's way to a version: which versions must be fetched, oldest first, so that the newest can be assembled.

In: the version wanted, what is held with its digests, the sources. Out: opening records in the order of fetching, or None when they were not
available. `storage.chains` decides; here is the reading. Called by `fetch`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from shoal import telemetry
from shoal.broadcast.documents import Documents
from shoal.broadcast.download import Downloader
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.sources import Sources
from shoal.contracts.weights import DeltaBase, VersionOpen
from shoal.storage import chains

WAIT_SECONDS = 60.0
"""For one opening record. A relay that has a version has its chain too, or will have it soon."""


def find_way(
    wanted: WantedVersion,
    sources: Sources,
    downloader: Downloader,
    held: Mapping[int, str],
    keep_on: Callable[[float], bool],
) -> list[VersionOpen] | None:
    """Records to fetch, the last one of `wanted`; None when one was not available in time, or `keep_on` (seconds waited) said no.

    `held`: finished versions with the SHA-256 of their streams. One that is not what a delta was made against does not count.
    """
    records: dict[int, VersionOpen] = {}
    usable: set[int] = set()
    number: int | None = wanted.version
    while number is not None and len(records) <= chains.MAX_CHAIN:
        record = _read(Documents(replace(wanted, version=number), sources, downloader), keep_on)
        if record is None:
            telemetry.get_logger().warning("no relay has an opening record", version=number, wanted=wanted.version)
            return None
        records[number] = record
        usable |= _usable(record, held)
        number = chains.next_wanted(records, usable, wanted.version)
    return [records[number] for number in chains.plan(records, usable, wanted.version)]


def against(record: VersionOpen, held: Mapping[int, str]) -> DeltaBase | None:
    """What this version is made from, where `held` are the finished versions with their digests; None: from nothing, in full."""
    return chains.against(record, _usable(record, held))


def _usable(record: VersionOpen, held: Mapping[int, str]) -> set[int]:
    bases = (record.base, record.beside)
    return {base.version for base in bases if base is not None and held.get(base.version) == base.sha256}


def _read(documents: Documents, keep_on: Callable[[float], bool]) -> VersionOpen | None:
    started = time.monotonic()
    while (signed := documents.opening()) is None:
        waited = time.monotonic() - started
        if waited > WAIT_SECONDS or not keep_on(waited) or telemetry.STOP.wait(documents.pause):
            return None
    return signed.document
