"""Fixtures that all areas share: loopback addresses, one Redis, one MinIO, nginx, and waits with a deadline.

All are per test run (session): starting them once is what keeps `make test` inside its minutes. A test that breaks a shared server mends it
before it ends. With CI set, a skipped test fails the run unless it is marked `gpu`: what CI must have is never quietly left out.
"""

import gc
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from array_types import SHAPED
from servers import IN_CI, ROOT, Loopback, Minio, Redis, lacking, minio, redis, wait_until
from shoal.accelerators import LIBRARY

jaxtyping.install_import_hook(SHAPED, "array_types.checked")

hypothesis.settings.register_profile(
    "untimed", deadline=None
)  # machines are shared: how long an example took says nothing
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def loopback() -> Iterator[Loopback]:
    """`loopback.address()` gives an address 127.x.y.z that nothing else on this machine binds; `loopback.port(address)` a free port."""
    network = Loopback()
    yield network
    network.close()


@pytest.fixture(scope="session")
def deadline() -> Callable[..., object]:
    """`deadline("what is awaited", poll, seconds=20)`: the first value of `poll` that is neither None nor False, or a failure that says what."""
    return wait_until


@pytest.fixture(scope="session")
def redis_server(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A running Redis; `redis_server.url`. Shared: use keys of your own, or flush before your test."""
    server = redis(loopback.address(), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def minio_server(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """A running MinIO with its bucket; `endpoint`, `bucket`, `access_key`, `secret_key`. Shared: use a prefix of your own."""
    server = minio(loopback.address(), tmp_path_factory.mktemp("minio"))
    server.start_with_bucket()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def nginx_bin() -> Path:
    """The nginx program."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if found is None:
        lacking("nginx", "run `make setup`")
    return Path(found)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that finds two GPUs of a kind: NVIDIA's management library, of which only the words are real."""
    folder = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "accelerators" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / LIBRARY, source], check=True)
    told = {"GPUS": "2", "NAME": "NVIDIA L4", "BYTES": str(23034 << 20), "CUDA": "13000"}
    return {"LD_LIBRARY_PATH": str(folder), **{f"STAND_IN_{name}": value for name, value in told.items()}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*/*/out.yaml anew instead of comparing"
    )
    parser.addoption(
        "--kubeconfig",
        metavar="FILE",
        help="run tests/operator/cluster on this cluster, not on a control plane of its own",
    )


LAST = ("tests/operator/cluster/", "tests/system/")
"""Whole systems that stay up to the end of the session, once they are started: they come last. tools/test.sh runs the two one after the other."""


FIRST = [
    *(f"tests/{name}/" for name in ("training", "inference", "broadcast", "environments", "validation", "cli")),
    "tests/operator/cluster/test_operator_lives.py",
]
"""What takes longest comes first where several processes share the tests: what comes last keeps one process alone at work."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """A folder's tests run in one process where there are several (pytest-xdist): they share what it has started. The operator's cluster
    mostly waits: there each process starts a control plane of its own, and takes one file after the other."""

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.startswith(LAST[0]) else file.rpartition("/")[0]

    return ByFolder(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of the files, but for whole systems, which come last. Of these the tests of the one that stays up are the very last, or it would work
    beside the others. What was asked for by name keeps its order within."""
    first = FIRST if hasattr(config, "workerinput") else []  # of pytest-xdist: one of several processes
    places = {folder: place - len(first) for place, folder in enumerate(first)} | {
        folder: place for place, folder in enumerate(LAST, 1)
    }
    items.sort(
        key=lambda item: (
            next((place for folder, place in places.items() if item.nodeid.startswith(folder)), 0),
            "system" in getattr(item, "fixturenames", ()),
        )
    )


gc.disable()  # until the tests are collected: each collection of garbage would look at all that is imported, and at the tests before


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there by now stays to the end: no collection of garbage looks at it again."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an accelerator; the only tests that CI may skip")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not IN_CI:
        return
    skipped = [report for report in reporter.stats.get("skipped", []) if "gpu" not in report.keywords]
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        names = "\n  ".join(report.nodeid for report in skipped)
        reporter.write_line(f"\nskipped in CI, which counts as failed:\n  {names}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
