"""Entry point of the container `trainer` of a run of mode `Generate`: `python -m shoal.collection`.

Health and metrics are on port 9100. Exit code 0 means that the data set is written and announced; after SIGTERM it is 143, so that nobody takes a
stop for the end of the run.
"""

import os
import sys

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.run import Prepared, home, load_run_config, mounted_roster
from shoal.crypto.keys import PrivateKey
from shoal.storage import find, open_store
from shoal.transport import SignedClient

PORT = 9100
SILENT_SECONDS = 900.0
"""Longest time without a slice or a store's answer: above the store's deadline."""
STORE_DEADLINE_SECONDS = 600.0
PREPARE_DEADLINE_SECONDS = 3600.0
EXIT_TERMINATED = 143


def main() -> None:
    log = telemetry.start("trainer")
    telemetry.install_signals()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the store; nobody is asked on the network
    from shoal.collection.collector import Collector
    from shoal.environments.prompts import load_tokenizer
    from shoal.environments.tokens import eos_token_ids
    from shoal.transport.keys_watch import KeysWatch

    config = load_run_config()
    telemetry.every_line(run=config.run)
    liveness = telemetry.Liveness(SILENT_SECONDS)
    starting: list[str] = ["the tokenizer is being loaded"]
    telemetry.serve_health(PORT, liveness, lambda: starting[0] if starting else None)
    store = open_store(config, deadline_seconds=STORE_DEADLINE_SECONDS)
    key = PrivateKey.load(home() / "secrets" / "role.pem")
    try:
        prepared = telemetry.wait_for(
            "prepared.json in the store",
            lambda: find(store, keys.PREPARED, Prepared.from_json),
            deadline_seconds=PREPARE_DEADLINE_SECONDS,
            interval_seconds=1.0,
            liveness=liveness,
        )
        watch = KeysWatch(config.trust, config.addresses.orchestrator, mounted=mounted_roster).start(wait=True)
        base = home() / "tmp" / "base"
        base.mkdir(parents=True, exist_ok=True)
        for info in store.list(keys.BASE_MODEL):
            name = info.key.removeprefix(keys.BASE_MODEL)
            if not name.endswith(".safetensors"):
                store.get_to_file(info.key, base / name)
        collector = Collector(
            config,
            prepared,
            store,
            load_tokenizer(base),
            eos_token_ids(base),
            SignedClient(config.addresses.orchestrator, key),
            liveness,
            watch.believed,
        )
        starting.clear()
        log.info("collector started", tasks=prepared.task_count, dataset=config.generate.dataset)
        collector.run(home() / "outbox")
    except telemetry.Stopped as stopped:
        log.info("stopped", reason=str(stopped))
        sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
