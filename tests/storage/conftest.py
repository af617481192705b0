"""The fixtures that run every test of a store on a folder, on S3 servers (MinIO with static keys and with a workload's, versitygw), on Azurite and
on a stand-in for Google's store.
"""

import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from entra import EXCHANGE, Entra
from gcs_stand_in import Gcs, TokenService
from places import READER, S3, S3_KINDS, Azure, Azuring, Folder, Google, Googling, Place, Trusting

from oidc import AUDIENCE, Issuer
from servers import ROOT, Loopback, S3Server, azurite, minio, versitygw, wait_until
from shoal.storage import Store, open_store
from shoal.storage.entra import entra_identity
from shoal.storage.identity import IdentityRefused, TokenServiceAway, WebIdentity

sys.path.insert(0, str(ROOT / "tests" / "broadcast"))
from broadcast_certificates import Authority


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


@pytest.fixture(scope="session")
def azuring(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azuring]:
    """A running Azurite with its container, and who gives access tokens for it. This process trusts its certificate."""
    address, folder = loopback.address(), tmp_path_factory.mktemp("azurite")
    with pytest.MonkeyPatch.context() as patch:
        authority = Authority("tests")
        authority.issue(folder, address)
        trusted = folder / "ca.crt"
        trusted.write_bytes(authority.pem)
        patch.setenv("SSL_CERT_FILE", str(trusted))
        issuer = Issuer(address)
        made = Azuring(azurite(address, folder), Entra(address, issuer))
        made.server.start()
        issuer.write(folder / "token", audience=EXCHANGE)
        make_container(made)
        yield made
        made.server.stop()
        made.entra.close()
        issuer.close()


@pytest.fixture(scope="session")
def googling(loopback: Loopback) -> Iterator[Googling]:
    """The stand-ins for Google's store and token service."""
    address = loopback.address()
    issuer = Issuer(address)
    made = Googling(Gcs(address, issuer), TokenService(address, issuer))
    yield made
    made.server.close()
    made.sts.close()
    issuer.close()


def make_container(azuring: Azuring) -> None:
    """One request as the workload: no client of Azure's is needed for it."""
    identity = entra_identity(azuring.workload(), azuring.server.folder / "token")
    headers = {"Authorization": f"Bearer {identity.keys().token}", "x-ms-version": "2023-11-03"}
    url = f"{azuring.server.endpoint}/{azuring.server.container}?restype=container"
    with httpx.Client(
        trust_env=False, verify=ssl.create_default_context(cafile=azuring.server.folder / "ca.crt")
    ) as client:
        answer = client.put(url, headers=headers)
    assert answer.status_code == 201, answer.text


def an_s3(kind: str, request: pytest.FixtureRequest, home: Path) -> S3:
    """One of the S3 servers, with a prefix of this test's own."""
    prefix = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    if kind == "minio-identity":
        trusting: Trusting = request.getfixturevalue("trusting")
        return S3(trusting.server, home, prefix, trusting)
    return S3(request.getfixturevalue(f"{kind}_server"), home, prefix)


@pytest.fixture(params=["folder", "minio", "versitygw", "gcs", pytest.param("azure", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a store is, empty at the start of every test; `SHOAL_HOME` is this test's own folder."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made: Place
    if request.param == "folder":
        made = Folder(tmp_path)
    elif request.param == "azure":
        made = an_azure(request, tmp_path)
    elif request.param == "gcs":
        made = a_google(request, tmp_path)
    else:
        made = an_s3(request.param, request, tmp_path)
    yield made
    made.bring_back()


def an_azure(request: pytest.FixtureRequest, home: Path) -> Azure:
    """The container, with a prefix of this test's own."""
    return Azure(request.getfixturevalue("azuring"), home, f"t{abs(hash(request.node.nodeid)) % 10**12}")


def a_google(request: pytest.FixtureRequest, home: Path) -> Google:
    """The bucket, with a prefix of this test's own."""
    return Google(request.getfixturevalue("googling"), home, f"t{abs(hash(request.node.nodeid)) % 10**12}")


@pytest.fixture
def google(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """Google's alone, for what others do not do."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made = a_google(request, tmp_path)
    yield made
    made.bring_back()


@pytest.fixture
def azure(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    """Azure alone, for what others do not do."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    made = an_azure(request, tmp_path)
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
