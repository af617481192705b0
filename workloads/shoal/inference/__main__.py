"""Entry point of the container `worker`: `python -m shoal.inference`. Health and metrics on port 9105."""

import os

from shoal import accelerators, telemetry
from shoal.contracts.hosts import engine_host
from shoal.contracts.run import home, load_node_config, pod_name
from shoal.inference.process_settings import set_engine_variables, set_log_variables
from shoal.rewards.sandbox import use_runners
from shoal.transport.restarts import end_when_restarted

PORT = 9105
SILENT_SECONDS = 600.0
"""Longest time without a decoding step or a poll: the start of the engine, which may compile the model, is the longest
of them.
"""


def main() -> None:
    log = telemetry.start("worker")
    telemetry.install_signals()
    accelerators.require(engine=True)
    end_when_restarted(home() / "run" / "agent.sock")
    config = load_node_config()
    telemetry.every_line(run=config.run, pool=config.pool)
    settings = config.engine
    use_runners(config.runners)
    set_log_variables()
    set_engine_variables(settings.compiled)
    from shoal.inference.hosts import (
        Followers,
        FurtherHost,
    )  # import vLLM, which reads the environment and takes seconds
    from shoal.inference.worker import Worker

    liveness = telemetry.Liveness(SILENT_SECONDS)
    host = engine_host(pod_name(), settings.hosts, os.environ)
    if host is not None and not host.leads:
        # Ready at once: of an engine whose pods are replaced one by one, the others wait for this one.
        telemetry.serve_health(PORT, liveness, lambda: None)
        FurtherHost(home(), host, config, liveness).run()
        return
    followers = Followers(host, settings) if host is not None else None
    worker = Worker(home(), liveness, settings, config.trust, followers)
    telemetry.serve_health(PORT, liveness, lambda: worker.not_ready)
    log.info("worker started")
    worker.run()


if __name__ == "__main__":
    main()
