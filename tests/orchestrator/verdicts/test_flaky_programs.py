"""Programs that answer differently each time evict no honest node, however many files have them. The benchmark of 10,000 files, with few of them."""

from pathlib import Path

from benchmarks.trust import flaky_programs

from servers import Redis
from shoal.environments import Score, Unscorable


def test_no_honest_node_is_evicted_for_programs_that_disagree(tmp_path: Path, redis_server: Redis) -> None:
    coin = [Score(1.0, "", 0.1), Score(0.0, "", 0.1), Unscorable("too close to its limit", 0.1)]
    outcomes = dict.fromkeys(flaky_programs.FLAKY, coin) | {
        flaky_programs.RIGHT: coin[:1],
        flaky_programs.WRONG: coin[1:2],
    }
    found = flaky_programs.judged(tmp_path, redis_server.url, outcomes, 60)
    assert found["evicted"] == 0
    assert found["files_accepted"] == 60
    assert found["files_whose_rewards_were_not_as_claimed"] > 10
    assert found["rows_left_out"] > 10
