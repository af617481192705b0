"""`shoal ui`: serves the page of a run (`shoal.ui`) on this machine until Ctrl-C.

Opens the run as `shoal ledger` does (a run of this machine, a copy, an S3 URL). The
live state is the snapshot that `shoal up` writes into the run's folder, or for a run elsewhere its orchestrator's answer (`--orchestrator`). Beyond
loopback the page needs a token, which is printed once.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts.vine import VineSettings
from shoal.errors import InputWrong
from shoal.ledger.source import LedgerSource
from shoal.report.access import NoRun, open_run
from shoal.report.ledger_sources import open_source
from shoal.report.progress import ProgressReader
from shoal.report.run_folders import LIVE_FILE, find_run, still_prepares
from shoal.report.snapshot import Snapshot, parse_snapshot
from shoal.storage import StoreUnavailable
from shoal.text import plain
from shoal.ui.access import Access, BadPageToken, access_for
from shoal.ui.app import make_app
from shoal.ui.serving import server
from shoal.ui.watch import RunWatch

LOOK_SECONDS = 1.0
PREPARE_SECONDS = 3600.0
"""Seconds to wait for a run in preparation: most models are fetched within this time."""
STALE_SECONDS = 15.0
"""`shoal up` writes each second; an older snapshot is of a run that has ended."""


@dataclass(frozen=True)
class PageAddress:
    """Where the page is served; certificate and key make it HTTPS."""

    host: str
    port: int
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def serve(
    source: str | None,
    runs_dir: Path,
    place: PageAddress,
    say: Callable[[str], None],
    *,
    orchestrator: str | None = None,
    run_key: str | None = None,
    join: Path | None = None,
    endpoint: str | None = None,
    credentials: Path | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; raises `InputWrong` for what cannot be opened or bound."""
    if (place.certificate is None) != (place.key is None):
        raise InputWrong("--certificate and --key need each other: give both, or neither")
    access = _access(place)
    is_url = source is not None and source.startswith("s3://")
    folder = None if is_url else _run_folder(source, runs_dir)
    if folder is not None:
        wait_for_orchestrator(folder, say)
    opened = open_source(source, runs_dir, run_key=run_key, join=join, endpoint=endpoint, credentials=credentials)
    snapshot = _remote(opened, orchestrator) if folder is None or orchestrator else _local(folder)
    listener = _bind(place)
    watch = RunWatch(opened, snapshot, vine=_vine(folder))
    try:
        watch.start()
    except StoreUnavailable as error:
        raise InputWrong(plain(error, 400)) from None
    scheme = "https" if place.certificate else "http"
    name = f"[{place.host}]" if ":" in place.host else place.host
    address = f"{scheme}://{name}:{listener.getsockname()[1]}/"
    say(f"{plain(watch.seen.snapshot.run, 60)}: {address}" + (f"#token={access.token}" if access.token else ""))
    if access.token and scheme == "http":
        say("the token is sent unencrypted: give --certificate and --key, or put a proxy with HTTPS in front")
    say("Ctrl-C stops the page, not the run")
    app = make_app(watch, access, secure_cookie=scheme == "https")
    server(app, ssl_certfile=place.certificate, ssl_keyfile=place.key).run(sockets=[listener])


def wait_for_orchestrator(folder: Path, say: Callable[[str], None], most_seconds: float = PREPARE_SECONDS) -> None:
    """Wait while `shoal up` makes the run's base model and task table: until then there is nothing to show."""
    if not still_prepares(folder):
        return
    say(
        f"{plain(folder, 200)}: waiting until `shoal up` has made the run's base model and task table; then this command serves the page"
    )
    end = time.monotonic() + most_seconds
    while still_prepares(folder) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _access(place: PageAddress) -> Access:
    try:
        return access_for(place.host, place.token_file)
    except BadPageToken as error:
        raise InputWrong(plain(error, 400)) from None
    except OSError as error:
        raise InputWrong(f"--token-file {plain(place.token_file, 200)}: {error.strerror}") from None


def _bind(place: PageAddress) -> socket.socket:
    """The listening socket, open before anything is read, so that a port in use is reported at once."""
    for file in (place.certificate, place.key):
        if file is not None and not file.is_file():
            raise InputWrong(f"{plain(file, 200)} is not there: --certificate and --key are PEM files")
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.host, place.port))
        listener.listen()  # whoever opens the printed address before the service has started waits a moment
    except OSError as error:
        raise InputWrong(
            f"cannot listen on {plain(place.host, 100)} port {place.port}: {error.strerror or error}; give another --port (0: any)"
        ) from None
    return listener


def _run_folder(source: str | None, runs_dir: Path) -> Path | None:
    """The folder of a run of this machine; None for a copy."""
    try:
        return find_run(source, runs_dir)
    except InputWrong:
        return None


def _vine(folder: Path | None) -> VineSettings | None:
    """Settings of continuations of a run on this machine; None for a run elsewhere."""
    try:
        config = open_run(folder).config if folder is not None else None
    except NoRun:
        return None
    return config.recipe.vine if config is not None else None


def _local(folder: Path) -> Callable[[], Snapshot]:
    """The newest snapshot of `shoal up`; without one, a snapshot from the configuration."""
    try:
        opened = open_run(folder)
    except NoRun as error:
        raise InputWrong(plain(error, 400)) from None
    steps = opened.config.steps if opened.config is not None else 0

    def newest() -> Snapshot:
        now = time.time()
        try:
            found = parse_snapshot((folder / LIVE_FILE).read_bytes())
            if now - found.unix < STALE_SECONDS:
                return found
        except (OSError, ValidationError):
            pass
        return Snapshot(
            0.0, opened.run, steps, message="`shoal up` is not running; start it with the run's manifest to resume"
        )

    return newest


def _remote(source: LedgerSource, orchestrator: str | None) -> Callable[[], Snapshot]:
    """The orchestrator's answers, if its address was given; the name is that of the roster."""
    run = source.trust.roster.document.run
    if orchestrator is None:
        return lambda: Snapshot(0.0, run, 0, message="the live state is unknown: give --orchestrator URL")
    reader = ProgressReader(lambda: orchestrator.rstrip("/"))
    reader.start()

    def newest() -> Snapshot:
        progress = reader.newest()
        total = progress.steps_total if progress else 0
        return Snapshot(
            time.time(), run, total, progress=progress, message="" if progress else "the orchestrator does not answer"
        )

    return newest
