"""A run with three versions, one of them scored, in a folder of this machine or in MinIO, and the program asked about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_documents import RunFolder
from typer.testing import CliRunner, Result

from samples import BENCHMARK, EVALUATION
from servers import Minio
from shoal.cli.main import app
from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.storage import S3Storage
from shoal.errors import InputWrong, RunFailed
from shoal.evaluation.scores import Answer, AnsweredTask, scores
from shoal.report.access import RunAccess, open_run
from shoal.storage.store import open_s3


def files_of(version: int) -> dict[str, bytes]:
    """A checkpoint of three shards; its weights are of this version alone."""
    return {
        "config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "model.safetensors": bytes([version]) * 3000,
    }


@dataclass
class Served:
    """The run, how the program is told of it, and its store."""

    run: RunFolder
    arguments: tuple[str, ...]
    folder: Path

    @property
    def access(self) -> RunAccess:
        return RunAccess(self.run.config, self.run.store, open_run(self.run.path).trust)

    def call(self, verb: str, *more: str) -> Result:
        return CliRunner().invoke(app, ["serving", verb, *self.arguments, *more])

    def said(self, verb: str, *more: str) -> str:
        done = self.call(verb, *more)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    def refused(self, verb: str, *more: str) -> str:
        """What the program says of an error, which `main` prints."""
        error = self.call(verb, *more).exception
        assert isinstance(error, InputWrong | RunFailed), repr(error)
        return f"{type(error).__name__}: {error}"

    def score(self, version: int, reward: float) -> None:
        """A finished evaluation of a version."""
        made = EVALUATION.model_copy(
            update={
                "run": "demo",
                "version": version,
                "slices_done": BENCHMARK.slices,
                "scores": scores([AnsweredTask("a", [Answer(reward, 20, False), Answer(reward, 20, False)])], 2),
            }
        )
        self.run.store.put(keys.evaluation(version, BENCHMARK.name), made.to_json())

    def best(self, version: int) -> None:
        """What the orchestrator says of the benchmark that decides."""
        found = BestVersion(version=version, benchmark=BENCHMARK.name, value=0.5)
        self.run.store.put(keys.BEST_VERSION, found.to_json())

    def lose(self, version: int) -> None:
        """Delete one shard."""
        self.run.store.delete(keys.version_shard(version, 1))


def make_run(runs_dir: Path) -> RunFolder:
    run = RunFolder(runs_dir)
    run.store.put(keys.ROSTER, run.config.roster.to_json())
    return run


@pytest.fixture(params=["folder", "minio"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    run = make_run(tmp_path / "runs")
    arguments: tuple[str, ...] = ("demo", "--runs-dir", str(tmp_path / "runs"))
    if request.param == "minio":
        server: Minio = request.getfixturevalue("minio_server")
        prefix = f"serving-{tmp_path.name}"
        run.store = open_s3(
            S3Storage(endpoint=server.endpoint, bucket=server.bucket), f"{prefix}/demo", server.access_key,
            server.secret_key, deadline_seconds=20.0,
        )  # fmt: skip
        run.store.put(keys.ROSTER, run.config.roster.to_json())
        credentials = tmp_path / "credentials"
        credentials.mkdir()
        (credentials / "accessKey").write_text(server.access_key)
        (credentials / "secretKey").write_text(server.secret_key)
        arguments = (
            f"s3://{server.bucket}/{prefix}/demo", "--endpoint", server.endpoint, "--credentials", str(credentials),
            "--run-key", run.config.run_key,
        )  # fmt: skip
    for version in range(3):
        run.add_version(version, files_of(version))
    made = Served(run, arguments, tmp_path / "models")
    made.score(1, 1.0)
    made.score(2, 0.0)
    return made


Promote = Callable[[int], str]


@pytest.fixture
def promote(served: Served) -> Promote:
    """Promote a version by hand."""
    return lambda version: served.said("promote", "--version", str(version), "--reason", "a test", "--by", "ann")
