"""Opens what a run on this machine left: its configuration and its object store. The report's only knowledge of the run folder's layout.

`open_run` is for a run of this machine. Of a run elsewhere only the store is known, and `RunAccess` then has no configuration.

A run folder has a folder for every pod (`pods/<pod>/`, its `SHOAL_HOME`), which outlives the pod. The orchestrator's has `config/run.json`,
`store/` for a folder store and `secrets/store/` for an S3 store.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.roster import Roster
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signer
from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.storage import NotFound
from shoal.storage.store import Store, open_folder, open_s3

STORE_DEADLINE_SECONDS = 20.0
"""Shorter than for the run's own parts: a person waits for the report."""


class NoRun(ValueError):
    """The folder holds no run that got as far as having a configuration and a store."""


@dataclass(frozen=True)
class RunAccess:
    """A run's configuration (None where only its store is known), roster (checked against the run key) and store."""

    config: RunConfig | None
    roster: Roster
    store: Store
    trust: TrustedKeys | None = None

    @property
    def trainer(self) -> Signer:
        """Who signs versions: the trainer's keys as far as the store's own notice vouches for earlier ones, or the one key that is known."""
        if self.trust is None or not self.roster.changes:
            return self.roster.keys["trainer"]
        with suppress(NotFound, ValueError):
            self.trust.take(KeysNotice.from_json(self.store.get(keys.KEYS_NOTICE)))
        return self.trust.of("trainer")

    @property
    def run(self) -> str:
        return self.roster.run


def open_run(run_dir: Path) -> RunAccess:
    """Open the run in `run_dir`; raises `NoRun` saying what is missing."""
    if has_orchestrator(run_dir):
        return open_home(_home(run_dir))
    raise NoRun(
        f"{run_dir} has no orchestrator yet: the run ended before its base model was prepared, so there is nothing to report"
    )


def has_orchestrator(run_dir: Path) -> bool:
    """Whether the run got as far as an orchestrator, which is made when the base model and the task table are there."""
    return (_home(run_dir) / "config" / "run.json").is_file()


def _home(run_dir: Path) -> Path:
    return run_dir / "pods" / f"{run_dir.name}-orchestrator-0"


def open_home(home: Path) -> RunAccess:
    """Open a run through the folder of a trusted pod."""
    path = home / "config" / "run.json"
    try:
        config = RunConfig.from_json(path.read_bytes())
    except ValidationError as error:
        raise NoRun(f"{path} is of another version of shoal: {error.error_count()} fields do not fit") from error
    prefix = f"{config.storage.prefix}/{config.run}"
    if config.storage.s3 is None:
        root = home / "store"
        if not root.is_dir():
            raise NoRun(f"{root} does not exist: somebody removed the run's object store")
        store = open_folder(root, prefix, deadline_seconds=STORE_DEADLINE_SECONDS)
    else:
        folder = home / "secrets" / "store"
        access_key, secret_key = ((folder / name).read_text().strip() for name in ("accessKey", "secretKey"))
        store = open_s3(config.storage.s3, prefix, access_key, secret_key, deadline_seconds=STORE_DEADLINE_SECONDS)
    return RunAccess(config, config.trust.roster, store, config.trust)
