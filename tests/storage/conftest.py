"""The fixtures that run every test of a store on a folder and on real S3 servers: MinIO with static keys and with a workload's, and versitygw."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from places import READER, S3, S3_KINDS, Folder, Place, Trusting

from oidc import AUDIENCE, Issuer
from servers import Loopback, S3Server, minio, versitygw, wait_until
from shoal.storage import Store, open_store
from shoal.storage.identity import IdentityRefused, TokenServiceAway, WebIdentity


@pytest.fixture(scope="session")
def versitygw_server(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running versitygw with its bucket."""
    server = versitygw(loopback.address(), tmp_path_factory.mktemp("versitygw"))
    server.start_with_bucket()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def trusting(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusting]:
    """A running MinIO whose token service gives keys for the tokens of an issuer of this machine; its role may read and write."""
    issuer = Issuer(loopback.address())
    server = minio(loopback.address(), tmp_path_factory.mktemp("minio-identity"))
    server.environment |= {
        "MINIO_IDENTITY_OPENID_CONFIG_URL": issuer.config_url,
        "MINIO_IDENTITY_OPENID_CLIENT_ID": AUDIENCE,
        "MINIO_IDENTITY_OPENID_ROLE_POLICY": "readwrite",
        "MINIO_IDENTITY_OPENID_CONFIG_URL_READER": issuer.config_url,
        "MINIO_IDENTITY_OPENID_CLIENT_ID_READER": READER,
        "MINIO_IDENTITY_OPENID_ROLE_POLICY_READER": "readonly",
    }
    server.start_with_bucket()
    made = Trusting(server, issuer)
    token = server.folder / "token"
    issuer.write(token)

    def gives_keys() -> bool:
        try:
            WebIdentity(made.identity(), token, "start").keys()
        except (IdentityRefused, TokenServiceAway):  # it serves before it has read its own policies
            return False
        return True

    wait_until("MinIO to give keys", gives_keys, 60.0, interval=0.2)
    yield made
    server.stop()
    issuer.close()


def an_s3(kind: str, request: pytest.FixtureRequest, home: Path) -> S3:
    """One of the S3 servers, with a prefix of this test's own."""
    prefix = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    if kind == "minio-identity":
        trusting: Trusting = request.getfixturevalue("trusting")
        return S3(trusting.server, home, prefix, trusting)
    return S3(request.getfixturevalue(f"{kind}_server"), home, prefix)


@pytest.fixture(params=["folder", "minio", "versitygw"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a store is, empty at the start of every test; `SHOAL_HOME` is this test's own folder."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made: Place = Folder(tmp_path) if request.param == "folder" else an_s3(request.param, request, tmp_path)
    yield made
    made.bring_back()


@pytest.fixture(params=S3_KINDS)
def s3(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """S3 servers only, for what a folder cannot do."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made = an_s3(request.param, request, tmp_path)
    yield made
    made.bring_back()


@pytest.fixture
def store(place: Place) -> Store:
    """The store of this test, opened as every role opens it."""
    return open_store(place.config(), deadline_seconds=20.0)


@pytest.fixture
def strange_service(loopback: Loopback) -> Iterator[Callable[[int, bytes], str]]:
    """Serves one answer to every request; gives its URL."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        servers.append(ThreadingHTTPServer((loopback.address(), 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        host, port = servers[-1].server_address[:2]
        return f"http://{host!s}:{port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
