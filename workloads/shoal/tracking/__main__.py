"""Entry point of the pod `<run>-tracker` (`spec.trackers`): `python -m shoal.tracking SETTINGS`, whose argument is `Trackers` as JSON.

It reads the store and holds no key of the run. Files lie in `tracks/`, which outlives the pod. After SIGTERM it sends what the trainer wrote last.
Health is on port 9109.
"""

import sys
from functools import partial

from pydantic import ValidationError

from shoal import telemetry
from shoal.contracts.run import home, load_run_config
from shoal.contracts.trackers import Trackers
from shoal.storage import StoreUnavailable, open_store
from shoal.tracking.follower import StepFollower
from shoal.tracking.sinks import RunLabel, open_sink
from shoal.transport.authorities import trust_also

PORT = 9109
LOOK_SECONDS = 5.0
"""A step takes seconds at least, and a person looks at curves less often."""
SILENT_SECONDS = 900.0
"""Longest time within one look: a tracker's own retries, or a long run read from its beginning."""
STORE_DEADLINE_SECONDS = 60.0


def main() -> None:
    """Follow until SIGTERM."""
    log = telemetry.start("tracker")
    telemetry.install_signals()
    config = load_run_config()
    telemetry.every_line(run=config.run)
    try:
        trackers = Trackers.from_json(sys.argv[1])
    except (IndexError, ValidationError) as error:
        sys.exit(f"the argument must be the trackers of a run as JSON: {error}")
    trust_also(home() / "ca" / "ca.crt", home() / "tmp" / "ca-bundle.pem")
    liveness = telemetry.Liveness(SILENT_SECONDS)
    telemetry.serve_health(PORT, liveness, lambda: None)
    store = open_store(config, deadline_seconds=STORE_DEADLINE_SECONDS)
    label = RunLabel.of(config)
    follower = StepFollower(
        store, [partial(open_sink, trackers, name, label, home() / "tracks") for name in trackers.named]
    )
    log.info("tracker started", trackers=trackers.named)
    while True:
        last = telemetry.STOP.is_set()
        try:
            if sent := follower.follow(patient=not last):
                log.info("steps sent", points=sent)
            liveness.progress()
        except StoreUnavailable as error:
            log.warning("the store is away, its steps come later", error=str(error)[:500])
        if last:
            break
        telemetry.STOP.wait(LOOK_SECONDS)
    follower.close()
    log.info("stopped")


if __name__ == "__main__":
    main()
