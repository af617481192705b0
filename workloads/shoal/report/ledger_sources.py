"""Where a ledger lies, and whose it is: opens a run, a folder, a downloaded copy or an S3 URL to be read, and finds the key to trust.

Comes in: what the user typed. Goes out: `LedgerSource`, a store with the signed roster and the run's public key. Nothing is ever written. Credentials
of an S3 store come from the environment or from files. They never come from the command line, where other users of the machine could read them.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.roster import Roster
from shoal.contracts.run import NodeConfig, RunConfig
from shoal.contracts.signed import Signed
from shoal.contracts.storage import S3Storage
from shoal.contracts.trust import HeldKeys
from shoal.errors import InputWrong
from shoal.ledger.audit import BadLedger
from shoal.ledger.reading import newest_roster
from shoal.ledger.source import LedgerSource, Trust
from shoal.report.access import NoRun, open_run
from shoal.report.run_folders import find_run, is_run, no_run_yet
from shoal.storage import BadKey, NotFound, Store, StoreUnavailable
from shoal.storage.store import open_folder, open_s3
from shoal.text import plain

STORE_DEADLINE_SECONDS = 20.0
"""A person waits: a store that is away is named after this."""
DEEPEST_LEDGER = 3
"""Folders between the one that was named and `ledger/`: a folder store has `<prefix>/<run>/` before it, its pod `store/` before that."""


def open_source(
    source: str | None,
    runs_dir: Path,
    *,
    run_key: str | None,
    join: Path | None,
    endpoint: str | None,
    credentials: Path | None,
) -> LedgerSource:
    """Open a ledger; raises `InputWrong` saying what is missing and how to give it."""
    try:
        store, own = open_place(source, runs_dir, endpoint, credentials)
        described = own if join is None else read_join(join)
        votes = described.validation.slash_votes if isinstance(described, RunConfig) else None
        return LedgerSource(store, _trust(store, run_key, join, described), configured_votes=votes)
    except StoreUnavailable as error:
        raise InputWrong(plain(error, 400)) from None


def open_for_audit(
    source: str | None,
    runs_dir: Path,
    *,
    run_key: str | None,
    join: Path | None,
    endpoint: str | None,
    credentials: Path | None,
) -> tuple[LedgerSource, RunConfig]:
    """Open a run to be recomputed: its ledger, and its configuration from `--join`, the run's folder, or the store, where its orchestrator signed it.

    Raises `InputWrong` as `open_source` does, and where no configuration is available.
    """
    try:
        store, own = open_place(source, runs_dir, endpoint, credentials)
        described = own if join is None else read_join(join)
        trust = _trust(store, run_key, join, described)
        signed, roster = newest_roster(store, trust)
        config = described if isinstance(described, RunConfig) else _stored_config(store, roster)
    except (StoreUnavailable, BadLedger) as error:
        raise InputWrong(plain(error, 400)) from None
    if config.run != roster.run or config.run_key not in roster.run_keys(signed.signer):
        raise InputWrong(
            f"the configuration is of run {config.run} with key {config.run_key[:16]}..., the ledger of {plain(roster.run)} with key"
            f" {trust.run_key[:16]}...; give the run.json of this run with --join"
        )
    return LedgerSource(store, trust, configured_votes=config.validation.slash_votes), config


def _stored_config(store: Store, roster: Roster) -> RunConfig:
    """The configuration as the run's orchestrator left it in the store. An earlier key may have signed it: the ledger declares what it must say."""
    try:
        return Signed[RunConfig].from_json(store.get(keys.SETTINGS)).verified(HeldKeys(roster, "orchestrator"))
    except NotFound:
        why = f"the store has no {keys.SETTINGS}, which orchestrators write since this release"
    except (ValueError, KeyError) as error:
        why = f"{keys.SETTINGS} of the store is not signed by this run's orchestrator, or of another release: {str(error).splitlines()[0]}"
    raise InputWrong(
        plain(
            f"{why}. To recompute a run takes its settings: give --join run.json, from its ConfigMap <run>-config", 500
        )
    ) from None


def open_place(
    source: str | None, runs_dir: Path, endpoint: str | None, credentials: Path | None
) -> tuple[Store, RunConfig | None]:
    """The store of a run, of a copy of a store or of an S3 URL, and the configuration where it is known. Nothing of it is checked yet."""
    if source is not None and source.startswith("s3://"):
        return open_s3_url(source, endpoint, credentials), None
    folder = Path(source) if source is not None else None
    if folder is not None and folder.is_dir() and not is_run(folder):
        return _open_copy(folder), None
    run_dir = find_run(source, runs_dir)
    try:
        access = open_run(run_dir)
    except NoRun as error:
        raise InputWrong(no_run_yet(run_dir, error)) from None
    return access.store, access.config


def _open_copy(folder: Path) -> Store:
    """A folder that holds `ledger/`, itself or a few levels down, as folder stores and downloads have it."""
    patterns = ["ledger", *("/".join(["*"] * depth) + "/ledger" for depth in range(1, DEEPEST_LEDGER + 1))]
    found = [path.parent for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_dir()]
    if not found:
        raise InputWrong(
            f"{plain(folder, 200)} has no folder ledger/, and is not a run of `shoal up`: give the folder above ledger/"
        )
    if len(found) > 1:
        names = ", ".join(plain(path, 100) for path in found[:5])
        raise InputWrong(f"{plain(folder, 200)} holds {len(found)} ledgers; name one: {names}")
    return open_folder(found[0], "", deadline_seconds=STORE_DEADLINE_SECONDS)


def open_objects(option: str, place: str, endpoint: str | None, credentials: Path | None) -> Store:
    """What lies below the `storage.prefix` of runs, in a bucket or a folder that an option names; raises `InputWrong`."""
    if place.startswith("s3://"):
        return open_s3_url(place, endpoint, credentials, "s3://BUCKET/PREFIX")
    if not Path(place).is_dir():
        raise InputWrong(f"{option} {plain(place, 200)}: neither s3://BUCKET/PREFIX nor a folder that is there")
    return open_folder(Path(place), "", deadline_seconds=5.0)


def open_s3_url(
    url: str, endpoint: str | None, credentials: Path | None, form: str = "s3://BUCKET/PREFIX/RUN"
) -> Store:
    """The part of a bucket that a URL of this form names; raises `InputWrong`."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        raise InputWrong("an s3:// URL needs --endpoint URL, or AWS_ENDPOINT_URL in the environment")
    if not prefix or parts.query or parts.username:
        raise InputWrong(f"{plain(url, 200)}: write {form}; credentials come from the environment or files")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    access_key, secret_key = _credentials(credentials)
    try:
        spec = S3Storage(endpoint=endpoint, bucket=parts.netloc, region=region)
        return open_s3(spec, prefix, access_key, secret_key, deadline_seconds=STORE_DEADLINE_SECONDS)
    except (ValidationError, ValueError) as error:
        raise InputWrong(f"{plain(url, 200)} at {plain(endpoint, 200)} cannot be opened: {plain(error, 200)}") from None


def _credentials(folder: Path | None) -> tuple[str, str]:
    if folder is not None:
        try:
            return (folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip()
        except OSError as error:
            raise InputWrong(
                f"--credentials {plain(folder, 200)}: {error.strerror}; it holds accessKey and secretKey"
            ) from None
    found = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not found[0] or not found[1]:
        raise InputWrong(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --credentials DIR with accessKey and secretKey"
        )
    return found[0], found[1]


def _trust(store: Store, run_key: str | None, join: Path | None, described: RunConfig | NodeConfig | None) -> Trust:
    """Whom to believe. A key that was given counts over one from a file of the run, that over what the copy says of itself."""
    roster = described.roster if described is not None else _stored_roster(store)
    if run_key is not None:
        return Trust(checked_key(run_key), roster, "--run-key", given=True)
    if described is not None:
        return Trust(described.run_key, roster, str(join or "the run's own configuration"), given=True)
    return Trust(roster.signer, roster, "the copy itself", given=False)


def read_join(path: Path) -> RunConfig | NodeConfig:
    """`node.json`, which whoever joins a run is given, or `run.json`; raises `InputWrong`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputWrong(f"cannot read {plain(path, 200)}: {error.strerror}") from None
    try:
        return NodeConfig.from_json(data)
    except ValidationError:
        pass
    try:
        return RunConfig.from_json(data)
    except ValidationError:
        raise InputWrong(f"{plain(path, 200)} is neither node.json nor run.json of a run") from None


def checked_key(text: str) -> str:
    """A public key of 64 hex digits; raises `InputWrong`."""
    key = text.strip().lower()
    if len(key) != 64 or set(key) - set("0123456789abcdef"):
        raise InputWrong("--run-key is the run's public key: 64 hex digits, `run_key` in node.json")
    return key


def _stored_roster(store: Store) -> Signed[Roster]:
    try:
        return Signed[Roster].from_json(store.get(keys.ROSTER))
    except NotFound:
        raise InputWrong(
            f"the copy has no {keys.ROSTER}: give --join FILE (node.json, as it was given to join the run)"
        ) from None
    except (ValidationError, BadKey):
        raise InputWrong(f"{keys.ROSTER} of the copy is not readable: give --join FILE (node.json)") from None
