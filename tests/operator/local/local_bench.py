"""A local cluster in a temporary folder, ticked by hand; whatever it started is gone after the test."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal_operator.local.addresses import lock_subnet
from shoal_operator.local.cluster import LocalCluster
from shoal_operator.local.processes import ProcessTable


class Bench:
    """The cluster under test and how to wait on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.subnet = lock_subnet()
        self.table = ProcessTable(folder / "processes")
        self.cluster = LocalCluster(folder, self.subnet, self.table)

    def until(self, what: str, holds: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Tick until `holds()` is true, and return it; fails with `what` after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.cluster.tick()
            found = holds()
            if found:
                return found
            time.sleep(0.05)
        pytest.fail(f"not within {seconds} s: {what}; pods: {self.cluster.pods()}")

    def pod(self, name: str) -> Any:
        return next((pod for pod in self.cluster.pods() if pod.name == name), None)
