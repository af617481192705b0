"""Entry point of the container `validator`: `python -m shoal.validation`. Health and metrics on port 9106."""

import os

from shoal import telemetry
from shoal.contracts.run import home, load_run_config, pod_name
from shoal.crypto.keys import PrivateKey
from shoal.rewards.sandbox import use_runners

PORT = 9106
SILENT_SECONDS = 600.0
"""Longest time between two signs of progress in one file (a scored row, a batch of proofs): ten
times what the paper gives a file, since only a restart follows."""


def main() -> None:
    log = telemetry.start("validator")
    telemetry.install_signals()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the store; nobody is asked on the network
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a prefill must not take the cores from the workers beside it
    from shoal.storage import open_store  # these import torch, which reads the environment
    from shoal.validation.service import ValidatorProcess

    config = load_run_config()
    telemetry.every_line(run=config.run)
    use_runners(config.addresses.runners)
    liveness = telemetry.Liveness(SILENT_SECONDS)
    key = PrivateKey.load(home() / "secrets" / "role.pem")
    validator = ValidatorProcess(config, key, open_store(config), home() / "tmp" / "validation", pod_name(), liveness)
    telemetry.serve_health(PORT, liveness, lambda: validator.not_ready)
    log.info("validator started")
    try:
        validator.run()
    except telemetry.Stopped as stopped:
        log.info("stopped", reason=str(stopped))


if __name__ == "__main__":
    main()
