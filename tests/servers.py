"""Real servers for tests: Redis, MinIO, versitygw and Azurite on loopback addresses that this test run has for itself, and the waits around them.

`tests/conftest.py` turns these into fixtures. Every process that is started here dies with the test run (parent-death signal) and is ended by its own
pid; nothing is ever found by name.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, TypedDict, TypeVar

import pytest
from minio import Minio as MinioClient

from forked_python import ForkedProcess, imports_of, start_python

Value = TypeVar("Value")

ROOT = Path(__file__).resolve().parent.parent
STARTED_WITH = dict(os.environ)
"""The environment before any test, for processes that must not see the variables that an engine writes when it is loaded (`process_settings`)."""
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
STOP_SECONDS = 10.0
START_SECONDS = 60.0  # MinIO formats its folder at the first start; on two busy cores that has taken ten seconds
NETWORKS = [(second, third) for second in range(200, 251) for third in range(1, 255)]
HOSTS = 254
"""Addresses of one network."""


class OverPlainHttp(TypedDict):
    trust_env: bool
    verify: bool


PLAIN = OverPlainHttp(trust_env=False, verify=False)
"""For `httpx` and addresses of this machine without TLS: reading the well-known authorities takes 25 ms of CPU a client, and tests make thousands."""


def wait_until(what: str, poll: Callable[[], Value | None], seconds: float = 60.0, interval: float = 0.02) -> Value:
    """Call `poll` until it gives something that is neither None nor False; fail the test with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = poll()
        if value is not None and value is not False:
            return value
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds:.0f} s for {what}", pytrace=True)
        time.sleep(interval)


def lacking(what: str, how: str) -> NoReturn:
    """This machine lacks something: skip here, fail in CI, and say how to get it."""
    message = f"{what} is not here: {how}"
    if IN_CI:
        pytest.fail(f"{message} (CI must have it)", pytrace=False)
    pytest.skip(message)


class Loopback:
    """Addresses of networks 127.x.y.0/24 that no other test run of this machine uses while their lock files are held."""

    def __init__(self) -> None:
        self._locks: list[IO[bytes]] = []
        self._network = ""
        self._next = HOSTS

    def address(self) -> str:
        """An address that was not given out before. When a network is used up, another one is claimed."""
        if self._next >= HOSTS:
            lock, self._network = self._claim()
            self._locks.append(lock)
            self._next = 0
        self._next += 1
        return f"{self._network}.{self._next}"

    @staticmethod
    def _claim() -> tuple[IO[bytes], str]:
        folder = Path(tempfile.gettempdir())
        # Starting at a place of our own keeps two runs from fighting over the same first files.
        start = os.getpid() % len(NETWORKS)
        for second, third in NETWORKS[start:] + NETWORKS[:start]:
            try:
                lock = (folder / f"shoal-test-127.{second}.{third}.lock").open("ab")
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            return lock, f"127.{second}.{third}"
        raise RuntimeError(f"every test network is taken; stale lock files would lie in {folder}")

    @staticmethod
    def port(address: str) -> int:
        """A port that is free on `address` now."""
        with socket.socket() as probe:
            probe.bind((address, 0))
            return int(probe.getsockname()[1])

    def close(self) -> None:
        """Give the networks back."""
        for lock in self._locks:
            Path(lock.name).unlink(missing_ok=True)
            lock.close()


def answers(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def structured_lines(text: str, **fields: object) -> list[dict[str, Any]]:
    """Every line of a process of ours; fails at one that is no event with time, level and these fields."""
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            said = json.loads(line)
        except ValueError:
            pytest.fail(f"line {number} is no JSON: {line[:300]}", pytrace=False)
        assert isinstance(said, dict)
        assert {"event", "level", "timestamp", "role", "pod"} <= set(said), f"line {number}: {line[:300]}"
        assert said | fields == said, f"line {number}: {line[:300]}"
        lines.append(said)
    assert lines, "nothing was said"
    return lines


def started(
    command: Sequence[str], *, env: Mapping[str, str], log: IO[bytes], cwd: Path | None = None
) -> subprocess.Popen[bytes] | ForkedProcess:
    """A process in a session of its own. A test run that is killed takes it along. A program of ours is forked behind its imports."""
    if imported := imports_of(command):
        return start_python(command[1:], imported, env=env, stdout=log.fileno(), cwd=cwd, start_new_session=True)
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


@dataclass
class Server:
    """One process with one port: start, pause, kill and start again, as often as a test likes. The log lies in `folder/log`."""

    command: list[str]
    address: str
    port: int
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def start(self) -> None:
        """Start and wait until the port answers; fails with the end of the log."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environment}
        with (self.folder / "log").open("ab") as log:
            self.process = started(self.command, env=env, log=log, cwd=self.folder)
        wait_until(f"{Path(self.command[0]).name} on {self.address}:{self.port}", self._is_up, START_SECONDS)

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            tail = (self.folder / "log").read_text(errors="replace")[-2000:]
            pytest.fail(f"{self.command[0]} ended with {self.process.returncode}:\n{tail}", pytrace=False)
        return answers(self.address, self.port)

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP): connections hang. On a busy machine its threads run on for a while, so this waits for them."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        self.process.send_signal(signal.SIGSTOP)
        wait_until(
            "every thread to stop",
            lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks.glob("*/stat")),
        )

    def resume(self) -> None:
        """Let a paused process go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL): connections are refused."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """End it in order, or at once when it does not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass
class Redis(Server):
    """A Redis without persistence. `url` is what `RunConfig.addresses.redis` holds."""

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"


def redis(address: str, folder: Path) -> Redis:
    """A Redis server on its usual port of `address`, not yet started."""
    program = shutil.which("redis-server")
    if program is None:
        lacking("redis-server", "run `make setup`")
    options = ["--bind", address, "--port", "6379", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    return Redis([program, *options], address, 6379, folder)


@dataclass
class S3Server(Server):
    """An S3 server with one bucket. The keys are made up for this run."""

    access_key: str = "shoal-test"
    secret_key: str = "shoal-test-secret"
    bucket: str = "rollouts"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    def start_with_bucket(self) -> None:
        """Start and make the bucket, as soon as the server takes requests."""
        self.start()
        place = f"{self.address}:{self.port}"
        client = MinioClient(place, self.access_key, self.secret_key, secure=False, region="us-east-1")

        def bucket_is_made() -> bool:
            try:
                if not client.bucket_exists(self.bucket):
                    client.make_bucket(self.bucket)
            except Exception:  # it listens before it serves
                return False
            return True

        wait_until(f"bucket {self.bucket}", bucket_is_made, 60.0, interval=0.2)


class Minio(S3Server):
    """A MinIO, the S3 server of most tests."""


def built(tool: str) -> str:
    """Path of a pinned program that `make tools` built."""
    found = subprocess.run([ROOT / "tools/build.sh", "--path", tool], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        lacking(tool, found.stderr.strip() or "run `make tools`, it builds the pinned program (3 minutes)")
    return found.stdout.strip()


def versitygw(address: str, folder: Path) -> S3Server:
    """A versitygw over a folder of this machine, not yet started."""
    data = folder / "data"
    data.mkdir()
    server = S3Server([built("versitygw"), "--port", f"{address}:7070", "posix", str(data)], address, 7070, folder)
    server.environment = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}
    return server


@dataclass
class Azurite(Server):
    """An Azurite with one account and one container, over TLS by a certificate in `folder`."""

    account: str = "research"
    key: str = base64.b64encode(b"shoal-test-account-key".ljust(64)).decode()
    container: str = "rollouts"

    @property
    def endpoint(self) -> str:
        return f"https://{self.address}:{self.port}/{self.account}"


def azurite(address: str, folder: Path) -> Azurite:
    """An Azurite that takes access tokens, not yet started. It wants `tls.crt` and `tls.key` in `folder`."""
    server = Azurite([], address, 10000, folder)
    server.command = [
        built("azurite"), "--blobHost", address, "--blobPort", "10000", "--location", str(folder), "--oauth", "basic",
        "--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key"), "--disableTelemetry", "--skipApiVersionCheck",
        "--silent",
    ]  # fmt: skip
    server.environment = {"AZURITE_ACCOUNTS": f"{server.account}:{server.key}"}
    return server


def minio(address: str, folder: Path) -> Minio:
    """A MinIO server on `address`, not yet started."""
    data = folder / "data"
    data.mkdir()
    console = Loopback.port(address)
    server = Minio([], address, 9000, folder)
    server.command = [
        built("minio"), "server", "--address", f"{address}:9000", "--console-address", f"{address}:{console}",
        "--certs-dir", str(folder / "certs"), str(data),
    ]  # fmt: skip
    server.environment = {
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",  # asks nobody whether there is a newer one
        "MINIO_CI_CD": "1",  # a folder on the system disk is good enough for a test
    }
    return server
