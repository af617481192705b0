"""A publisher beside a rank that writes no versions: healthy, and needs nothing of what the first one needs."""

import os
import subprocess
import sys
from pathlib import Path

import httpx

from servers import PLAIN, Loopback, wait_until
from shoal.broadcast.nginx import ORIGIN_PORT


def test_only_the_first_pod_of_a_trainer_publishes(tmp_path: Path, loopback: Loopback) -> None:
    address = loopback.address()
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.broadcast.origin"],
        env=os.environ | {"SHOAL_HOME": str(tmp_path), "SHOAL_BIND": address, "JOB_COMPLETION_INDEX": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "on standby" in process.stdout.readline()
        with httpx.Client(**PLAIN) as client:

            def ready() -> bool:
                try:
                    return client.get(f"http://{address}:{ORIGIN_PORT}/readyz").status_code == 200
                except httpx.ConnectError:
                    return False

            wait_until("the publisher's /readyz", ready)
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
