"""Bad days of a running system: each part killed, the store away, work without validators or relays; nothing is lost or counted twice.

The tests share one system and leave it running. Each waits for two further versions, which needs every part: workers, relays, store, validator,
orchestrator, trainer.
"""

import time

import pytest
from invariants import assert_nothing_lost_or_counted_twice
from local_system import LocalSystem

from bad_minutes import store_away
from shoal.contracts import keys
from shoal.contracts.run import Prepared
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import Verdict

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def published(system: LocalSystem) -> dict[int, str | None]:
    """Weights digest of every announced version."""
    return {
        entry.version: entry.digest
        for entry in system.ledger()
        if entry.kind == "version-published" and entry.version is not None
    }


def test_a_worker_killed_while_it_generates_is_replaced_and_its_lease_freed(system: LocalSystem) -> None:
    system.until("work is leased", lambda: (progress := system.progress()) is not None and progress.pending_groups > 0)
    before = system.restarts("pool", "worker")
    system.kill("pool", "worker")
    system.until("the worker is started again", lambda: system.restarts("pool", "worker") > before)
    system.advance()
    system.until("it is ready again", lambda: all(pod.ready for pod in system.pods("pool")))
    assert_nothing_lost_or_counted_twice(system)


def test_a_trainer_killed_in_a_step_trains_that_step_again_and_announced_versions_keep_their_bytes(
    system: LocalSystem,
) -> None:
    def in_a_step() -> bool:
        """A batch is sealed that has no metrics yet."""
        return len(system.sealed_steps()) > len(system.metrics())

    before = published(system)
    system.until("a step is being trained", in_a_step)
    system.kill("trainer", "trainer")
    system.advance()
    after = published(system)
    assert {version: after[version] for version in before} == before
    assert_nothing_lost_or_counted_twice(system)


def test_a_publisher_killed_while_a_version_is_cut_publishes_it_with_the_same_bytes(system: LocalSystem) -> None:
    before = published(system)
    newest = system.latest_version()
    system.until("a version is on its way", lambda: len(system.metrics()) > newest)
    system.kill("trainer", "publisher")
    system.advance()
    after = published(system)
    assert {version: after[version] for version in before} == before


def test_a_relay_killed_while_versions_are_fetched_does_not_hold_up_the_workers(system: LocalSystem) -> None:
    for container in ("nginx", "sync"):
        newest = system.advance(1)
        system.kill("relay", container)
        system.until("a worker holds the newest version", lambda goal=newest: system.worker_version() >= goal)
    system.advance(1)
    system.until("the relay is ready again", lambda: all(pod.ready for pod in system.pods("relay")))


def test_a_file_whose_validator_was_killed_is_checked_by_its_successor(system: LocalSystem) -> None:
    system.until("a file waits", lambda: (progress := system.progress()) is not None and progress.files_pending > 0)
    system.kill("validator", "validator")
    system.advance()
    assert_nothing_lost_or_counted_twice(system)


def test_the_orchestrator_and_redis_killed_lose_nothing(system: LocalSystem) -> None:
    system.kill("orchestrator", "orchestrator")
    system.kill("redis", "redis")
    system.until("the orchestrator answers", lambda: system.progress())
    system.advance()
    assert_nothing_lost_or_counted_twice(system)


def test_a_store_that_is_away_for_20_seconds_is_waited_for(system: LocalSystem) -> None:
    with store_away(system.store_folder):
        time.sleep(20)
    system.until("the orchestrator answers", lambda: system.progress())
    system.advance()
    assert_nothing_lost_or_counted_twice(system)


def test_without_a_validator_no_step_completes(system: LocalSystem) -> None:
    system.edit(lambda spec: spec["validator"].update(replicas=0))
    system.until("the validator is gone", lambda: not system.pods("validator"))
    sealed, files = len(system.sealed_steps()), len([e for e in system.ledger() if e.kind == "accepted"])
    system.until("files wait", lambda: (progress := system.progress()) is not None and progress.files_pending > 0)
    time.sleep(15)
    assert len(system.sealed_steps()) == sealed
    assert len([e for e in system.ledger() if e.kind == "accepted"]) == files
    system.edit(lambda spec: spec["validator"].update(replicas=1))
    system.advance()
    assert_nothing_lost_or_counted_twice(system)


def test_without_relays_workers_stay_on_their_version_and_the_run_waits_for_them(system: LocalSystem) -> None:
    system.edit(lambda spec: spec["relayServer"].update(replicas=0))
    try:
        system.until("the relays are gone", lambda: not system.pods("relay"))

        # What was opened before the relays went may have been fetched ahead of its announcement; nothing later can arrive.
        newest_that_can_arrive = max(published(system)) + 1

        def held() -> int:
            return max(system.worker_version(0), system.worker_version(1))

        # Asynchrony lets the trainer go on for as many versions as the async level, then its batches lack fresh enough rollouts.
        system.until("the run goes on without its workers", lambda: system.latest_version() >= held() + 2)
        time.sleep(10)
        left_behind = held()
        assert left_behind <= newest_that_can_arrive
        assert max(published(system)) <= left_behind + 3
    finally:
        system.edit(lambda spec: spec["relayServer"].update(replicas=2))
    system.until("workers hold a newer version", lambda: held() > left_behind)
    system.advance()


def test_scaling_the_pool_stops_and_starts_workers_without_losing_work(system: LocalSystem) -> None:
    system.edit(lambda spec: spec["inferencePools"][0].update(replicas=1))
    system.until("one worker is left", lambda: len(system.pods("pool")) == 1)
    system.advance(1)
    system.edit(lambda spec: spec["inferencePools"][0].update(replicas=2))
    system.until("both are ready", lambda: len(system.pods("pool")) == 2 and all(p.ready for p in system.pods("pool")))
    assert_nothing_lost_or_counted_twice(system)


def test_suspend_stops_every_part_and_resume_goes_on_from_the_last_version(system: LocalSystem) -> None:
    before = published(system)
    system.edit(lambda spec: spec.update(suspend=True))
    system.until(
        "every part has stopped", lambda: not any(system.pods(c) for c in ("pool", "relay", "validator", "trainer"))
    )
    steps_before = dict(system.metrics())
    system.edit(lambda spec: spec.update(suspend=False))
    system.until("the orchestrator answers", lambda: system.progress())
    system.advance()
    after, steps_after = published(system), system.metrics()
    assert {version: after[version] for version in before} == before
    assert {step: steps_after[step] for step in steps_before} == steps_before
    assert_nothing_lost_or_counted_twice(system)


def test_every_accepted_file_has_a_signed_verdict_and_rewards_come_from_it(system: LocalSystem) -> None:
    validators = {entry.digest: entry.node for entry in system.ledger() if entry.kind == "accepted"}
    assert validators
    for digest, node in validators.items():
        assert node is not None
        assert digest is not None
        signed = Signed[Verdict].from_json(system.store.get(keys.verdict(node, digest)))
        verdict = signed.verified(signed.signer)
        assert verdict.outcome == "accept"
        assert len(verdict.rewards) == verdict.rows
    progress = system.progress()
    assert progress is not None
    assert progress.files_rejected == 0, f"honest workers were rejected: {progress.reject_reasons}"


def test_every_step_samples_both_sources_of_the_mixture_in_equal_shares(system: LocalSystem) -> None:
    prepared = Prepared.from_json(system.store.get(keys.PREPARED))
    assert [(each.name, each.task_count) for each in prepared.mixture] == [("sums", 512), ("more-sums", 512)]
    system.advance()
    steps = [
        int(info.key.removeprefix(keys.STEPS).partition("/")[0])
        for info in system.store.list(keys.STEPS)
        if info.key.endswith("/batch.json")
    ]
    assert steps
    for step in steps:
        batch = StepBatch.from_json(system.store.get(keys.step_batch(step)))
        assert batch.by_source["sums"].sampled == batch.by_source["more-sums"].sampled > 0
    told = [each for metrics in system.metrics().values() for each in metrics.by_task_type.values()]
    assert {each.sampled_share for each in told} == {0.5}
