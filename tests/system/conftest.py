"""One running local system for all fault tests: starting it is what costs, so everything that can go wrong goes wrong on the same one."""

from collections.abc import Iterator

import pytest
from local_system import EXAMPLE, SMALL, TWO_SOURCES, LocalSystem, brought_model, write_manifest


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """The running system, past its first version. It trains on a mixture."""
    folder = tmp_path_factory.mktemp("system")
    changes = SMALL | {"model": brought_model(), "tasks": TWO_SOURCES}
    manifest = write_manifest(EXAMPLE, folder / "run.yaml", name="bad-days", **changes)
    running = LocalSystem(manifest, folder / "runs")
    running.start()
    try:
        running.until("the base model is announced", lambda: running.latest_version() >= 0, 600)
        running.until("the first step is trained", lambda: running.latest_version() >= 1, 600)
        yield running
    finally:
        running.stop()
