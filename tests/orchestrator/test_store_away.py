"""An orchestrator whose store is away answers from memory, and says since when."""

from pathlib import Path

import pytest

from bad_minutes import store_away
from run_states import Orchestrator
from servers import Redis
from shoal.orchestrator.background import catch_up
from shoal.orchestrator.progress import run_progress
from shoal.storage import StoreUnavailable


def test_since_when_the_store_is_away_is_told_until_it_is_back(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    catch_up(run.state)
    assert b"store_away_since" not in run_progress(run.state).to_json()
    began = run.clock.now
    with store_away(run.folder / "store"):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                catch_up(run.state)
            run.clock.now += 60.0
        assert run_progress(run.state).store_away_since == began
    catch_up(run.state)
    assert run_progress(run.state).store_away_since is None
