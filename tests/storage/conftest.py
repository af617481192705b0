"""The fixture that runs every test of a store twice: on a folder and on a real MinIO."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from places import S3, Folder, Place

from servers import Minio
from shoal.storage import Store, open_store


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a store is, empty at the start of every test; `SHOAL_HOME` is this test's own folder."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made: Place
    if request.param == "folder":
        made = Folder(tmp_path)
    else:
        made = S3(request.getfixturevalue("minio_server"), tmp_path, f"t{abs(hash(request.node.nodeid)) % 10**12}")
    yield made
    made.bring_back()


@pytest.fixture
def s3(
    minio_server: Minio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[S3]:
    """MinIO only, for what a folder cannot do."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made = S3(minio_server, tmp_path, f"t{abs(hash(request.node.nodeid)) % 10**12}")
    yield made
    made.bring_back()


@pytest.fixture
def store(place: Place) -> Store:
    """The store of this test, opened as every role opens it."""
    return open_store(place.config(), deadline_seconds=20.0)
