"""The two kinds of store, each with a way to take it away and to bring it back."""

from pathlib import Path

from samples import RUN, run_config
from servers import Minio
from shoal.contracts.recipe import S3Storage
from shoal.contracts.run import RunConfig
from shoal.storage import Store
from shoal.storage.store import open_folder, open_s3


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


class S3:
    """A MinIO; away means that the server was killed. `prefix` keeps tests apart."""

    kind = "s3"

    def __init__(self, server: Minio, home: Path, prefix: str) -> None:
        self.server = server
        self.home = home
        self.prefix = prefix
        self.spec = S3Storage(endpoint=server.endpoint, bucket=server.bucket, credentials_secret="store")
        secrets = home / "secrets" / "store"
        secrets.mkdir(parents=True)
        (secrets / "accessKey").write_text(server.access_key + "\n")
        (secrets / "secretKey").write_text(server.secret_key + "\n")

    def config(self) -> RunConfig:
        config = run_config(s3=self.spec)
        return config.model_copy(update={"storage": config.storage.model_copy(update={"prefix": self.prefix})})

    def open(self, *, prefix: str = "", deadline_seconds: float = 20.0) -> Store:
        return open_s3(
            self.spec,
            prefix or f"{self.prefix}/{RUN}",
            self.server.access_key,
            self.server.secret_key,
            deadline_seconds=deadline_seconds,
        )

    def take_away(self) -> None:
        self.server.kill()

    def bring_back(self) -> None:
        assert self.server.process is not None
        if self.server.process.poll() is not None:
            self.server.start()


Place = Folder | S3
