"""Opening a copy of a store to be audited, with nothing but the run's key, also after keys were changed."""

from pathlib import Path

import pytest

from changed_keys import RunKeys
from samples import NOW, RUN, key, run_config
from shoal.contracts import keys
from shoal.contracts.roster import ROLES, KeyHolder
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import sign
from shoal.errors import InputWrong
from shoal.report.ledger_sources import open_for_audit
from shoal.storage.store import open_folder


class Download:
    """A folder store with a roster and the settings that an orchestrator left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ledger").mkdir(parents=True)
        self.store = open_folder(folder, "")
        self.keys = RunKeys(RUN, key(1), {role: key(20 + number) for number, role in enumerate(ROLES)}, fixed=key(2))
        self.write()

    def write(self, run_key: str = key(1).public) -> None:
        """As the orchestrator does when it starts."""
        self.config = run_config(roster=self.keys.roster, run_key=run_key)
        self.store.put(keys.ROSTER, self.keys.roster.to_json())
        self.store.put(keys.SETTINGS, sign(self.config, self.keys.roles["orchestrator"]).to_json())

    def opened(self, run_key: str | None = key(1).public) -> RunConfig:
        return open_for_audit(
            str(self.folder), self.folder, run_key=run_key, join=None, endpoint=None, credentials=None
        )[1]


@pytest.mark.parametrize("holder", ["run", "orchestrator"])
def test_the_settings_of_a_run_are_found_after_a_change_of_keys(holder: KeyHolder, tmp_path: Path) -> None:
    download = Download(tmp_path)
    assert download.opened() == download.config
    download.keys.change(holder, NOW, leaked=True)
    download.store.put(keys.ROSTER, download.keys.roster.to_json())
    newest = download.keys.run_key.public
    for run_key in (key(1).public, newest, None):
        assert download.opened(run_key) == download.config  # which the key before signed: nothing was started again yet
    download.write(newest)
    for run_key in (key(1).public, newest, None):
        assert download.opened(run_key) == download.config


def test_settings_of_another_run_or_of_a_stranger_are_refused(tmp_path: Path) -> None:
    download = Download(tmp_path)
    download.store.put(keys.SETTINGS, sign(download.config, key(77)).to_json())
    with pytest.raises(InputWrong, match=r"run\.json of the store is not signed by this run's orchestrator"):
        download.opened()
    download.write(key(78).public)
    with pytest.raises(InputWrong, match=r"give the run\.json of this run with --join"):
        download.opened()
    with pytest.raises(InputWrong, match="this is not the roster of the run with that key"):
        download.opened(key(79).public)
