"""Opens what a run on this machine left: its configuration and its object store. The report's only knowledge of the run folder's layout.

`open_run` is for a run of this machine. Of a run elsewhere only the store is known: `access_of` has no configuration of it.

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
from shoal.errors import InputWrong
from shoal.ledger.audit import BadLedger
from shoal.ledger.reading import newest_roster
from shoal.ledger.source import LedgerSource
from shoal.storage import NotFound, StoreUnavailable
from shoal.storage.store import Store, open_in
from shoal.text import plain

STORE_DEADLINE_SECONDS = 20.0
"""Shorter than for the run's own parts: a person waits for the report."""


class NoRun(ValueError):
    """The folder holds no run that got as far as having a configuration and a store."""


@dataclass(frozen=True)
class RunAccess:
    """A run's configuration (None where only its store is known), store and keys (checked against the run key)."""

    config: RunConfig | None
    store: Store
    trust: TrustedKeys

    @property
    def roster(self) -> Roster:
        """The newest that is known."""
        return self.trust.roster

    @property
    def trainer(self) -> Signer:
        """Who signs versions: the trainer's keys, earlier ones as far as the store's own notice vouches for them."""
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
    if config.storage.is_folder and not (home / "store").is_dir():
        raise NoRun(f"{home / 'store'} does not exist: somebody removed the run's object store")
    prefix = f"{config.storage.prefix}/{config.run}"
    store = open_in(config.storage, prefix, home, home / "store", deadline_seconds=STORE_DEADLINE_SECONDS)
    return RunAccess(config, store, config.trust)


def access_of(source: LedgerSource) -> RunAccess:
    """A run whose store alone is known, with its newest roster; raises `InputWrong` for a roster that is not the run's."""
    try:
        signed, _ = newest_roster(source.store, source.trust)
    except (BadLedger, StoreUnavailable) as error:
        raise InputWrong(plain(error, 400)) from None
    return RunAccess(None, source.store, TrustedKeys(signed, source.trust.run_key))
