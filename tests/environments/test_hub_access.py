"""The ways to a hub, each tried in a process of its own, as prepare is: behind a proxy, and with a certificate of the admin's own authority."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hub import Hub
from servers import ROOT

sys.path.insert(0, str(ROOT / "tests" / "broadcast"))
from broadcast_certificates import Authority

READ = """
import sys
from pathlib import Path
from shoal.transport.authorities import trust_also
trust_also(Path(sys.argv[1]), Path(sys.argv[2]))
from huggingface_hub import snapshot_download
print(sorted(path.name for path in Path(snapshot_download("me/model", revision="main", local_dir=sys.argv[3])).glob("*.json")))
"""
WAYS = ("PROXY", "SSL_", "CA_BUNDLE", "HF_", "_OFFLINE")


def read(folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What prepare does with `me/model`: the certificates of `ca/ca.crt` first, then the download."""
    own = {name: value for name, value in os.environ.items() if not any(way in name.upper() for way in WAYS)}
    places = [str(folder / "ca" / "ca.crt"), str(folder / "tmp" / "bundle.pem"), str(folder / "model")]
    line = [sys.executable, "-c", READ, *places]
    return subprocess.run(
        line,
        env=own | {"HOME": str(folder)} | dict(variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the admin's")


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[Hub]:
    authority.issue(tmp_path / "tls", "127.0.0.1")
    files = (tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    with Hub(tmp_path / "hub", certificate=files) as running:
        running.add("me/model", {"config.json": b"{}"})
        yield running


def test_a_hub_of_any_name_is_reached_through_a_proxy(tmp_path: Path) -> None:
    with Hub(tmp_path / "hub") as hub:
        hub.add("me/model", {"config.json": b"{}"})
        variables = hub.environment() | {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.url, "NO_PROXY": ""}
        done = read(tmp_path, variables)
        assert done.stdout == "['config.json']\n", done.stderr
        assert all(asked.via_proxy for asked in hub.requests)


def test_a_hub_whose_authority_is_given_is_trusted(secured: Hub, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.crt").write_bytes(authority.pem)
    done = read(tmp_path, secured.environment())
    assert done.stdout == "['config.json']\n", done.stderr
    bundle = (tmp_path / "tmp" / "bundle.pem").read_bytes()
    assert bundle.count(b"BEGIN CERTIFICATE") > 50, "the system's authorities are trusted as before"


def test_a_hub_whose_authority_is_not_given_is_not_trusted(secured: Hub, tmp_path: Path) -> None:
    done = read(tmp_path, secured.environment())
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
    assert not secured.requests


def test_a_secret_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.crt").write_text("nonsense")
    assert "ca.crt has no readable certificate: put the PEM of the authority there" in read(tmp_path, {}).stderr
