"""A cluster in memory with one TrainingRun applied."""

from pathlib import Path

import pytest
from memory_cluster import MemoryCluster
from run_story import put


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    made = MemoryCluster(tmp_path)
    put(made)
    return made
