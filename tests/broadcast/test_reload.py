"""The process beside nginx: a changed file has the configuration read again, one that was awaited ends nginx, so that it starts with another."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.broadcast import reload
from shoal.broadcast.nginx import awaited_certificate

MASTER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, lambda *_: os._exit(3))
signal.signal(signal.SIGQUIT, lambda *_: os._exit(4))
subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), *sys.argv[2:]])
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Stands for nginx: its exit code says which signal came."""


@pytest.mark.parametrize(("awaited", "code"), [(False, 3), (True, 4)])
def test_a_file_that_comes_is_told_nginx(tmp_path: Path, awaited: bool, code: int) -> None:
    path = tmp_path / "file"
    watched = f"{reload.AWAITED}{path}" if awaited else str(path)
    master = subprocess.Popen(
        [sys.executable, "-c", MASTER, reload.__file__, watched], stdout=subprocess.PIPE, text=True
    )
    assert master.stdout is not None
    try:
        assert master.stdout.readline() == "ready\n"
        # Written until it is seen: a first look may come after a first writing.
        for number in range(60):
            path.write_text(str(number) * (number + 1))
            try:
                assert master.wait(timeout=1) == code
                return
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("nobody told nginx")
    finally:
        master.kill()
        master.wait()
        master.stdout.close()


def test_a_certificate_is_awaited_where_the_pod_has_a_place_for_it(tmp_path: Path) -> None:
    assert awaited_certificate(tmp_path) is None
    place = tmp_path / "secrets" / "tls"
    place.mkdir(parents=True)
    assert awaited_certificate(tmp_path) == place / "tls.crt"
    (place / "tls.crt").write_text("here")
    assert awaited_certificate(tmp_path) is None
