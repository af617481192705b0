"""Entry point of the page's pod on a cluster (`spec.ui`): `python -m shoal.ui` serves the page of the run in `config/run.json` on `SHOAL_BIND`.

It reads the store, `GET /v1/run` of the orchestrator and what the operator says of the parts, and holds no key of the run. Whoever looks shows the
token of `secrets/token`. On one machine `shoal ui` is the program.
"""

import sys

from shoal.contracts.run import bind_address, home, load_run_config
from shoal.ledger.source import LedgerSource, Trust
from shoal.report.progress import ProgressReader
from shoal.storage import open_store
from shoal.telemetry import every_line, start
from shoal.text import plain
from shoal.ui.access import Access, BadPageToken, access_for
from shoal.ui.app import make_app
from shoal.ui.parts import snapshots
from shoal.ui.serving import server
from shoal.ui.watch import RunWatch

PORT = 8082
STORE_SECONDS = 20.0
"""A person waits: the page says that the store is away after this, and continues."""


def main() -> None:
    """Serve until SIGTERM."""
    log = start("ui")
    config = load_run_config()
    every_line(run=config.run)
    access = _access()
    store = open_store(config, deadline_seconds=STORE_SECONDS)
    source = LedgerSource(store, Trust(config.run_key, config.roster, "the run's own configuration", given=True))
    reader = ProgressReader(lambda: config.addresses.orchestrator.rstrip("/"))
    watch = RunWatch(
        source, snapshots(config, home() / "config" / "parts.json", reader.newest), vine=config.recipe.vine
    )
    reader.start()
    log.info("page starts", port=PORT, store=store.kind)
    try:
        watch.start()
        server(make_app(watch, access, probed=True), host=bind_address(), port=PORT).run()
    finally:
        watch.stop()
        reader.stop()


def _access() -> Access:
    """The token is always wanted, whatever address is bound."""
    path = home() / "secrets" / "token"
    try:
        return access_for(bind_address(), path)
    except BadPageToken as error:
        sys.exit(plain(error, 400))
    except OSError as error:
        sys.exit(f"secrets/token cannot be read: {error.strerror}; the operator makes it as Secret <run>-ui-token")


if __name__ == "__main__":
    main()
