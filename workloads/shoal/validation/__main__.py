"""Entry point of the container `validator`: `python -m shoal.validation`, or `torchrun ... -m shoal.validation` for several GPUs. Health and metrics
on port 9106, of rank 0."""

import os
import signal
import sys

from shoal import accelerators, telemetry
from shoal.contracts.run import home, load_run_config, pod_name
from shoal.crypto.keys import PrivateKey
from shoal.rewards.sandbox import use_runners

PORT = 9106
SILENT_SECONDS = 600.0
"""Longest time between two signs of progress in one file (a scored row, a batch of proofs): ten
times what the paper gives a file, since only a restart follows."""


def main() -> None:
    log = telemetry.start("validator")
    telemetry.end_with_torchrun()
    telemetry.install_signals()
    # Before `require`, which imports torch, and torch reads the environment once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the store; nobody is asked on the network
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a prefill must not take the cores from the workers beside it
    accelerators.require()
    from shoal.storage import open_store  # these import torch too
    from shoal.validation import group
    from shoal.validation.service import ValidatorProcess

    config = load_run_config()
    telemetry.every_line(run=config.run)
    try:
        with group.joined() as processes:
            if not group.leads():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pod's stop: rank 0 finishes its file first
                telemetry.every_line(rank=int(os.environ["RANK"]))
                return group.follow(processes)
            use_runners(config.addresses.runners)
            liveness = telemetry.Liveness(SILENT_SECONDS)
            key = PrivateKey.load(home() / "secrets" / "role.pem")
            scratch = home() / "tmp" / "validation"
            validator = ValidatorProcess(config, key, open_store(config), scratch, pod_name(), liveness, processes)
            telemetry.serve_health(PORT, liveness, lambda: validator.not_ready)
            log.info("validator started", processes=processes)
            try:
                validator.run()
            except telemetry.Stopped as stopped:
                log.info("stopped", reason=str(stopped))
            validator.end()
    except group.RankLost as lost:
        log.error("the validator ends", reason=str(lost))
        sys.stdout.flush()
        os._exit(1)  # the end of an interpreter waits for ranks that are gone


if __name__ == "__main__":
    main()
