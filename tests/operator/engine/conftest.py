"""An API server that misbehaves on request."""

from collections.abc import Iterator

import pytest
from hostile_api import ScriptedApi

from servers import Loopback


@pytest.fixture
def hostile(loopback: Loopback) -> Iterator[ScriptedApi]:
    made = ScriptedApi(loopback.address())
    yield made
    made.close()
