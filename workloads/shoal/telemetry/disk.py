"""Room on the volumes of a pod, as metrics: the folders of `$SHOAL_HOME` that fill up while a run continues. Read when somebody scrapes."""

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shoal.contracts.run import home

FOLDERS = ("store", "outbox", "www", "weights", "data", "tmp")
"""Volumes of docs/architecture.md that are written to; a pod has some of them."""


class DiskSpace(Collector):
    """Size and free bytes of the file system under each of `FOLDERS` that is in `root`. A folder that is not there has no series."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def collect(self) -> Iterator[GaugeMetricFamily]:
        size = GaugeMetricFamily("shoal_disk_size_bytes", "Size of the volume of a folder.", labels=["folder"])
        free = GaugeMetricFamily("shoal_disk_free_bytes", "Bytes that are free on it.", labels=["folder"])
        for folder in FOLDERS:
            try:
                found = os.statvfs(self._root / folder)
            except OSError:
                continue
            size.add_metric([folder], found.f_blocks * found.f_frsize)
            free.add_metric([folder], found.f_bavail * found.f_frsize)
        yield size
        yield free


_watching: list[DiskSpace] = []


def watch_disks() -> None:
    """Register the volumes of this process's `$SHOAL_HOME`, once."""
    if not _watching:
        _watching.append(DiskSpace(home()))
        REGISTRY.register(_watching[0])
