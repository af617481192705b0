"""The kinds of store, each with a way to take it away and to bring it back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entra import CLIENT, EXCHANGE, TENANT, Entra
from gcs_stand_in import PROVIDER, Gcs, TokenService

from oidc import AUDIENCE, Issuer, role_arn
from samples import RUN, run_config
from servers import Azurite, S3Server
from shoal.contracts.run import RunConfig
from shoal.contracts.storage import AzureStorage, AzureWorkload, GcsStorage, GcsWorkload, S3Storage, WorkloadIdentity
from shoal.storage import Store
from shoal.storage.entra import entra_of
from shoal.storage.google import google_of
from shoal.storage.identity import TOKEN_FILE, identity_of
from shoal.storage.store import open_bucket, open_container, open_folder, open_gcs


class Folder:
    """A folder store below `home/store`; away means that the folder was moved."""

    kind = "folder"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "store"
        self.root.mkdir()

    def config(self) -> RunConfig:
        return run_config()

    def open(self, *, prefix: str = f"shoal/{RUN}", deadline_seconds: float = 20.0) -> Store:
        return open_folder(self.root, prefix, deadline_seconds=deadline_seconds)

    def take_away(self) -> None:
        self.root.rename(self.home / "moved")

    def bring_back(self) -> None:
        if not self.root.exists():
            (self.home / "moved").rename(self.root)


S3_KINDS = {
    "minio": ("MinIO", "static keys"),
    "minio-identity": ("MinIO", "web identity"),
    "versitygw": ("versitygw", "static keys"),
}
"""Server and way to its keys of each S3 store that the tests run on."""
IDENTITY_MODES = {mode for _, mode in S3_KINDS.values()} | {"Entra", "Google"}
"""Ways to reach a store over the network that the tests run on."""
READER = "readers.shoal.test"
"""Audience of tokens for the role that may only read."""


@dataclass(frozen=True)
class Trusting:
    """A MinIO that gives keys for an issuer's tokens: by their audience for a role that may write, or one that may only read."""

    server: S3Server
    issuer: Issuer

    def identity(self, **changes: Any) -> WorkloadIdentity:
        fields = {"service_account": "store", "role_arn": role_arn(AUDIENCE), "sts_endpoint": self.server.endpoint}
        return WorkloadIdentity(**fields | {"audience": AUDIENCE} | changes)


class S3:
    """An S3 server, asked with its root keys or as a workload; away means that it was killed. `prefix` keeps tests apart."""

    kind = "s3"

    def __init__(self, server: S3Server, home: Path, prefix: str, trusting: Trusting | None = None) -> None:
        self.server = server
        self.home = home
        self.prefix = prefix
        self.spec = S3Storage(endpoint=server.endpoint, bucket=server.bucket, credentials_secret="store")
        secrets = home / "secrets" / "store"
        secrets.mkdir(parents=True)
        if trusting is not None:
            self.spec = self.spec.model_copy(
                update={"credentials_secret": None, "workload_identity": trusting.identity()}
            )
            trusting.issuer.write(secrets / TOKEN_FILE)
            return
        (secrets / "accessKey").write_text(server.access_key + "\n")
        (secrets / "secretKey").write_text(server.secret_key + "\n")

    def config(self) -> RunConfig:
        config = run_config(s3=self.spec)
        return config.model_copy(update={"storage": config.storage.model_copy(update={"prefix": self.prefix})})

    def open(self, *, prefix: str = "", deadline_seconds: float = 20.0) -> Store:
        identity = identity_of(self.spec, self.home)
        return open_bucket(self.spec, prefix or f"{self.prefix}/{RUN}", identity, deadline_seconds=deadline_seconds)

    def take_away(self) -> None:
        self.server.kill()

    def bring_back(self) -> None:
        assert self.server.process is not None
        if self.server.process.poll() is not None:
            self.server.start()


@dataclass(frozen=True)
class Azuring:
    """An Azurite, and the stand-in for Entra whose access tokens it takes for those of an issuer's service account."""

    server: Azurite
    entra: Entra

    @property
    def issuer(self) -> Issuer:
        return self.entra.trusted

    def workload(self, **changes: Any) -> AzureWorkload:
        fields = {"service_account": "store", "tenant_id": TENANT, "client_id": CLIENT, "authority": self.entra.url}
        return AzureWorkload(**fields | changes)

    def spec(self, **changes: Any) -> AzureStorage:
        server = self.server
        return AzureStorage(
            account=server.account,
            container=server.container,
            endpoint=server.endpoint,
            workload_identity=self.workload(**changes),
        )


class Azure:
    """A container of Azurite, asked as a workload; away means that it was stopped. `prefix` keeps tests apart."""

    kind = "azure"

    def __init__(self, azuring: Azuring, home: Path, prefix: str) -> None:
        self.server = azuring.server
        self.home = home
        self.prefix = prefix
        self.spec = azuring.spec()
        self.token_file = home / "secrets" / "store" / TOKEN_FILE
        azuring.issuer.write(self.token_file, audience=EXCHANGE)

    def config(self) -> RunConfig:
        config = run_config()
        update = {"prefix": self.prefix, "azure": self.spec}
        return config.model_copy(update={"storage": config.storage.model_copy(update=update)})

    def open(self, *, prefix: str = "", deadline_seconds: float = 20.0) -> Store:
        identity = entra_of(self.spec, self.home)
        return open_container(self.spec, prefix or f"{self.prefix}/{RUN}", identity, deadline_seconds=deadline_seconds)

    def take_away(self) -> None:
        self.server.stop()  # in order: a killed Azurite forgets the writes of its last seconds

    def bring_back(self) -> None:
        assert self.server.process is not None
        if self.server.process.poll() is not None:
            self.server.start()


@dataclass(frozen=True)
class Googling:
    """The stand-ins for Google's store and token service, which trust an issuer's service account."""

    server: Gcs
    sts: TokenService

    @property
    def issuer(self) -> Issuer:
        return self.sts.trusted

    def workload(self, **changes: Any) -> GcsWorkload:
        fields = {"service_account": "store", "provider": PROVIDER, "sts_endpoint": f"{self.sts.url}/v1/token"}
        return GcsWorkload(**fields | changes)

    def spec(self, **changes: Any) -> GcsStorage:
        return GcsStorage(
            bucket=self.server.bucket, endpoint=self.server.url, workload_identity=self.workload(**changes)
        )


class Google:
    """A bucket of Google's stand-in, asked as a workload; away means that nothing is answered. `prefix` keeps tests apart."""

    kind = "gcs"

    def __init__(self, googling: Googling, home: Path, prefix: str) -> None:
        self.server = googling.server
        self.home = home
        self.prefix = prefix
        self.spec = googling.spec()
        self.token_file = home / "secrets" / "store" / TOKEN_FILE
        googling.issuer.write(self.token_file, audience=f"https:{PROVIDER}")

    def config(self) -> RunConfig:
        config = run_config()
        update = {"prefix": self.prefix, "gcs": self.spec}
        return config.model_copy(update={"storage": config.storage.model_copy(update=update)})

    def open(self, *, prefix: str = "", deadline_seconds: float = 20.0) -> Store:
        identity = google_of(self.spec, self.home)
        return open_gcs(self.spec, prefix or f"{self.prefix}/{RUN}", identity, deadline_seconds=deadline_seconds)

    def take_away(self) -> None:
        self.server.away = True

    def bring_back(self) -> None:
        self.server.away = False


Place = Folder | S3 | Azure | Google
