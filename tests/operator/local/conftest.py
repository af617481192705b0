"""A local cluster in a temporary folder, ticked by hand; whatever it started is gone after the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "run")
    yield made
    made.cluster.kill()
    made.table.stop_all(0)
    made.subnet.close()
