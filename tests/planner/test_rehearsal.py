"""The rehearsal of the smallest shape: nothing that clients handed in is lost or counted twice, every shard comes through the relay unchanged."""

import json
import subprocess
import sys

import pytest

from servers import ROOT

pytestmark = pytest.mark.soak  # minutes of a processor


def test_nothing_is_lost_doubled_or_damaged_in_a_rehearsal() -> None:
    command = [sys.executable, "-m", "benchmarks.rehearse", "--shape", "one-gpu-0.6b", "--steps", "4", "--no-result"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert (found["lost"], found["doubled"], found["shards_bad"]) == (0, 0, 0)
    assert found["files_accepted"] > 0
    assert found["shards_fetched"] > 0
