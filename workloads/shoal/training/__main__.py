"""Entry point of the container `trainer`: `python -m shoal.training`. Health and metrics on port 9100.

Exit code 0 means that the run is trained and its last version announced. After SIGTERM it is 143, so that nobody takes a stop for
the end of the run.
"""

import os
import sys

from shoal import telemetry
from shoal.contracts.identity import PrivateKey
from shoal.contracts.run import home, load_run_config, pod_name

PORT = 9100
SILENT_SECONDS = 900.0
"""Longest time without a finished micro-batch or a store's answer: above the store's deadline."""
STORE_DEADLINE_SECONDS = 600.0
EXIT_TERMINATED = 143


def main() -> None:
    log = telemetry.start("trainer")
    telemetry.install_signals()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the store; nobody is asked on the network
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # without an accelerator the cores are shared with workers and validators
    from shoal.storage import open_store  # what follows imports torch, which reads the environment
    from shoal.training.base_model import fetch_base_model
    from shoal.training.loop import Trainer
    from shoal.training.progress import Progress
    from shoal.transport import SignedClient

    config = load_run_config()
    liveness = telemetry.Liveness(SILENT_SECONDS)
    starting: list[str] = ["the base model is being loaded"]
    telemetry.serve_health(PORT, liveness, lambda: starting[0] if starting else None)
    store = open_store(config, deadline_seconds=STORE_DEADLINE_SECONDS)
    key = PrivateKey.load(home() / "secrets" / "role.pem")
    progress = Progress(config.run, SignedClient(config.addresses.orchestrator, key), store)
    try:
        base = fetch_base_model(store, home() / "tmp" / "base", liveness)
        trainer = Trainer(
            config, store, base, home() / "outbox", home() / "tmp" / "state", progress, pod_name(), liveness
        )
        starting.clear()
        log.info("trainer started", steps=config.steps)
        trainer.run()
    except telemetry.Stopped as stopped:
        log.info("stopped", reason=str(stopped))
        sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
