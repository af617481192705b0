"""Entry point of the container `trainer`: `python -m shoal.training`, or `torchrun ... -m shoal.training` for several processes.

Health and metrics are on port 9100, served by the first process of each machine; the leader's are the run's. Exit code 0 means that the run is
trained and its last version announced. After SIGTERM it is 143, so that nobody takes a stop for the end of the run.
"""

import os
import sys

from shoal import accelerators, telemetry
from shoal.contracts.run import home, load_run_config, mounted_roster, pod_name
from shoal.crypto.keys import PrivateKey
from shoal.errors import EXIT_INPUT_WRONG

PORT = 9100
SILENT_SECONDS = 900.0
"""Longest time without a finished micro-batch or a store's answer: above the store's deadline."""
STORE_DEADLINE_SECONDS = 600.0
EXIT_TERMINATED = 143


def main() -> None:
    log = telemetry.start("trainer")
    telemetry.end_with_torchrun()
    telemetry.install_signals()
    # Before `require`, which imports torch, and torch reads the environment once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the store; nobody is asked on the network
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # without an accelerator the cores are shared with workers and validators
    accelerators.require()
    from shoal.storage import open_store  # what follows imports torch too
    from shoal.training.base_model import base_weights, fetch_base_model
    from shoal.training.context import TrainerContext
    from shoal.training.custom_objective import BadObjective
    from shoal.training.extensions.enabled import enabled_extensions
    from shoal.training.loop import Trainer
    from shoal.training.objectives import source_losses
    from shoal.training.parallel import BadDivision, start_ranks
    from shoal.training.progress import ProgressReporter
    from shoal.transport import SignedClient
    from shoal.transport.keys_watch import KeysWatch

    config = load_run_config()
    telemetry.every_line(run=config.run)
    try:
        source_losses(config.recipe)  # before the base model is fetched, which may take minutes
    except BadObjective as error:
        log.error("the run's objective cannot be used", field="spec.recipe.algorithm.custom", reason=str(error))
        sys.exit(EXIT_INPUT_WRONG)
    liveness = telemetry.Liveness(SILENT_SECONDS)
    starting: list[str] = ["the base model is being loaded"]
    if os.environ.get("LOCAL_RANK", "0") == "0":
        telemetry.serve_health(PORT, liveness, lambda: starting[0] if starting else None)
    try:
        ranks = start_ranks(context_parallel=config.trainer.sharing)
    except BadDivision as error:
        log.error("packs cannot be shared", field="spec.trainer.settings.contextParallel", reason=str(error))
        sys.exit(EXIT_INPUT_WRONG)
    if ranks.world > 1:
        telemetry.every_line(rank=ranks.rank)
    store = open_store(config, deadline_seconds=STORE_DEADLINE_SECONDS)
    believed = None
    if config.mode != "SFT":  # which reads nothing that a role signed
        watch = KeysWatch(config.trust, config.addresses.orchestrator, mounted=mounted_roster)
        believed = watch.start(wait=True).believed
    extensions = enabled_extensions(config, store, STORE_DEADLINE_SECONDS)
    state_store = extensions.state_store(store)
    orchestrator = None
    if ranks.leader and extensions.publishes:
        key = PrivateKey.load(home() / "secrets" / "role.pem")
        orchestrator = SignedClient(config.addresses.orchestrator, key)
    progress = ProgressReporter(config.run, orchestrator, state_store)
    base = home() / "tmp" / "base"
    try:
        ranks.each_does(
            "the base model to be fetched",
            lambda: fetch_base_model(store, base, liveness),
            liveness.progress,
            first_of_node=True,
        )
        context = TrainerContext(
            config=config,
            store=store,
            state_store=state_store,
            base=base,
            outbox=home() / "outbox",
            scratch=home() / "tmp" / "state",
            attempt=pod_name(),
            progress=progress,
            liveness=liveness,
            ranks=ranks,
            signers=believed,
            weights=base_weights(store),
        )
        trainer = Trainer(context, extensions)
        starting.clear()
        log.info("trainer started", steps=config.steps, ranks=ranks.world, device=str(ranks.device))
        trainer.live()
    except telemetry.Stopped as stopped:
        log.info("stopped", reason=str(stopped))
        sys.stdout.flush()
        # Not `sys.exit`: a thread that still uploads inside of native code would abort the interpreter's own end.
        os._exit(EXIT_TERMINATED)
    ranks.close()


if __name__ == "__main__":
    main()
