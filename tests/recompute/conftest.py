"""The recorded run, made once for all tests of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_world import World

from servers import Redis


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> World:
    """Three steps of a run, trained and scored."""
    made = World(tmp_path_factory.mktemp("world") / "run", redis_server.url)
    made.play()
    return made
