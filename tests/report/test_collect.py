"""Figures of the report equal those computed by hand from a small store and a handful of readings."""

from collections.abc import Sequence

import pytest
from run_documents import NODE, RunFolder, sample, step_metrics, verdict

from ledger_samples import fact
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.ledger.entries import GENESIS, LedgerEntry
from shoal.report.collect import ReportData, collect, first_and_last, utilisation
from shoal.report.facts import StoreFacts, StoreReader
from shoal.report.records import SessionRecord, samples_of

BUSY = 'shoal_busy_seconds_total{phase="%s"}'
SERVED = "shoal_relay_served_bytes_total"


def facts(steps: int = 10) -> StoreFacts:
    return StoreFacts(kind="folder", steps=[step_metrics(step, task_reward=step / 10) for step in range(steps)])


def report(records: Sequence = (), found: StoreFacts | None = None) -> ReportData:
    return collect("demo", 10, found or facts(), list(records))


def test_reward_start_is_the_mean_of_the_first_three_steps_and_reward_end_of_the_last_five() -> None:
    data = report()
    assert data.reward_start == pytest.approx((0.0 + 0.1 + 0.2) / 3)
    assert data.reward_end == pytest.approx((0.5 + 0.6 + 0.7 + 0.8 + 0.9) / 5)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([], (None, None)),
        ([0.5], (0.5, 0.5)),
        ([0.2, 0.6], (0.2, 0.6)),
        ([0.0, 0.2, 0.4], (0.0, 0.3)),
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], (0.1, 0.45)),
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], (0.1, 0.6)),
    ],
)
def test_a_short_run_is_parted_in_its_middle(rewards: list[float], expected: tuple[float | None, float | None]) -> None:
    found = first_and_last(rewards)
    assert found == (pytest.approx(expected[0]), pytest.approx(expected[1]))


def test_a_run_of_one_step_says_that_its_first_is_its_last() -> None:
    data = report(found=facts(1))
    assert data.reward_start == data.reward_end
    assert any("only one step" in note for note in data.notes)
    assert not any("step" in note for note in report(found=facts(2)).notes)


def test_a_run_without_steps_has_no_reward_and_says_so() -> None:
    data = report(found=facts(0))
    assert data.reward_start is None
    assert data.reward_end is None
    assert any(note.startswith("no step was trained") for note in data.notes)


def test_files_and_groups_are_counted_from_what_lies_in_the_store(tmp_path) -> None:
    run = RunFolder(tmp_path)
    for step in range(2):
        run.add_step(step_metrics(step, completion_tokens=500), groups=32, dropped=3)
    for number, (outcome, reason) in enumerate([("accept", None)] * 4 + [("reject", "computation"), ("expired", None)]):
        run.add_verdict(verdict(number, outcome, reason))
    run.add_version(1, {"model.safetensors": b"x" * 3000})
    data = report(found=StoreReader(run.store).read())
    assert data.to_json() | {
        "files_accepted": 4, "files_rejected": 1, "files_expired": 1, "files_inconclusive": 0,
        "reject_reasons": {"computation": 1}, "groups_used": 64, "groups_dropped": 6, "completion_tokens": 1000,
        "versions": 1, "last_version": 1, "store": "folder",
    } == data.to_json()  # fmt: skip


def test_a_ledger_that_disagrees_with_the_verdicts_is_a_note(tmp_path) -> None:
    run = RunFolder(tmp_path)
    run.add_verdict(verdict(0, "accept"))
    for number in range(2):
        entry = LedgerEntry(number=number, previous=GENESIS, run="demo", unix=1.0, fact=fact("accepted", node=NODE))
        run.store.put(keys.ledger_entry(number), sign(entry, run.role_keys["orchestrator"]).to_json())
    notes = report(found=StoreReader(run.store).read()).notes
    assert "the ledger has 2 entries 'accepted', the store 1 verdicts 'accept'; the report counts verdicts" in notes


def test_an_object_that_is_not_readable_is_left_out_and_named(tmp_path) -> None:
    run = RunFolder(tmp_path)
    run.add_step(step_metrics(0))
    run.store.put(keys.step_metrics(1), b'{"step": "one"}')
    found = StoreReader(run.store).read()
    assert [metrics.step for metrics in found.steps] == [0]
    assert found.notes[0].startswith("steps/000001/metrics.json cannot be read and was left out")


def test_missing_readings_are_null_with_a_note_and_never_invented() -> None:
    document = report().to_json()
    for key in ("bytes_broadcast", "engine", "relay", "wall_seconds", "busy_seconds", "phase_seconds", "model"):
        assert document[key] is None
        assert any(note.startswith(f"missing: {key}") for note in document["notes"])


def test_bytes_broadcast_adds_up_over_relays_and_over_restarts() -> None:
    records = [
        sample(0, "sync", "demo-relay-0", metrics={SERVED: 100.0}),
        sample(5, "sync", "demo-relay-0", metrics={SERVED: 250.0}),
        sample(10, "sync", "demo-relay-0", pid=2, metrics={SERVED: 300.0}),  # goes on from what was saved
        sample(15, "sync", "demo-relay-0", pid=3, metrics={SERVED: 40.0}),  # a new pod with an empty folder
        sample(5, "sync", "demo-relay-1", metrics={SERVED: 7.0}),
        sample(5, "publisher", "demo-trainer-1-0", metrics={SERVED: 1e9}),  # the origin serves relays, not nodes
    ]
    assert report(records).bytes_broadcast == 300 + 40 + 7


def test_busy_seconds_are_cpu_seconds_by_part_over_pods_and_restarts() -> None:
    records = [
        sample(0, "worker", "demo-pool-0", cpu_seconds=1.0),
        sample(5, "worker", "demo-pool-0", cpu_seconds=4.5),
        sample(10, "worker", "demo-pool-0", pid=2, cpu_seconds=2.0),
        sample(5, "worker", "demo-pool-1", cpu_seconds=3.0),
        sample(5, "nginx", "demo-relay-0", cpu_seconds=0.25),
        sample(5, "nginx", "demo-trainer-1", cpu_seconds=0.5),
    ]
    assert report(records).busy_seconds == {"origin nginx": 0.5, "relay nginx": 0.25, "worker": 9.5}


def test_phases_come_from_each_part_s_own_counter() -> None:
    records = [
        sample(0, "trainer", metrics={BUSY % "update": 1.0, BUSY % "wait": 2.0}),
        sample(5, "trainer", metrics={BUSY % "update": 4.0, BUSY % "wait": 2.5}),
    ]
    assert report(records).phase_seconds == {"trainer": {"update": 4.0, "wait": 2.5}}


def test_engine_and_relay_are_what_the_processes_called_themselves() -> None:
    records = [
        sample(0, "worker", metrics={'shoal_engine_info{engine="vllm",version="0.32.0"}': 1.0}),
        sample(0, "sync", "demo-relay-0", metrics={'shoal_relay_server_info{server="nginx/1.22.1"}': 1.0}),
        sample(0, "publisher", "demo-trainer-1-0", metrics={'shoal_relay_server_info{server="caddy"}': 1.0}),
    ]
    data = report(records)
    assert (data.engine, data.relay) == ("vllm", "nginx")


def test_a_mixture_of_engines_is_shown_as_one() -> None:
    records = [
        sample(0, "worker", "demo-pool-0", metrics={'shoal_engine_info{engine="vllm"}': 1.0}),
        sample(0, "worker", "demo-pool-1", metrics={'shoal_engine_info{engine="hf"}': 1.0}),
    ]
    assert report(records).engine == "hf+vllm"


def test_wall_seconds_leave_out_the_pause_between_two_sessions_and_end_a_killed_one_at_its_last_reading() -> None:
    records = [
        SessionRecord(unix=100, event="start"),
        sample(140, "trainer"),  # then killed: no stop
        SessionRecord(unix=1000, event="start"),
        SessionRecord(unix=1030, event="stop", outcome="complete"),
    ]
    assert report(records).wall_seconds == 40 + 30


def test_utilisation_is_work_over_time_and_leaves_waiting_out() -> None:
    readings = samples_of(
        sample(t, "trainer", metrics={BUSY % "update": t * 0.5, BUSY % "wait": t * 0.5}) for t in range(0, 61, 5)
    )
    series = utilisation(readings, 0.0)["trainer"]
    assert [x for x, _ in series] == [7.5, 22.5, 37.5, 52.5]
    assert [y for _, y in series] == pytest.approx([0.5] * 4)


def test_utilisation_of_workers_is_their_mean() -> None:
    readings = samples_of(
        sample(t, "worker", pod, metrics={BUSY % "generate": t * share})
        for t in range(0, 31, 5)
        for pod, share in (("demo-pool-0", 1.0), ("demo-pool-1", 0.5))
    )
    assert [y for _, y in utilisation(readings, 0.0)["worker"]] == pytest.approx([0.75, 0.75])


def test_sampled_rewards_count_every_accepted_rollout_also_of_groups_that_were_dropped() -> None:
    found = facts(6)
    found.verdicts.extend(verdict(number, "accept").model_copy(update={"step": number}) for number in range(6))
    wrong = verdict(6, "accept").model_copy(update={"step": 0})
    wrong = wrong.model_copy(update={"rewards": [row.model_copy(update={"task_reward": 0.0}) for row in wrong.rewards]})
    found.verdicts.extend([wrong, verdict(7, "reject", "computation")])
    data = report(found=found)
    assert data.sampled_reward_start == pytest.approx((0.5 + 1.0 + 1.0) / 3)
    assert data.sampled_reward_end == pytest.approx(1.0)


def test_without_accepted_files_there_is_no_sampled_reward() -> None:
    assert report().sampled_reward_start is None


def test_a_run_whose_rewards_nobody_scored_again_says_so() -> None:
    found = facts()
    found.verdicts = [verdict(0, "accept", None).model_copy(update={"claimed_rows": 3}), verdict(1, "accept", None)]
    assert any(
        note.startswith("3 rows have the reward that their worker claimed") for note in report(found=found).notes
    )
    found.verdicts = found.verdicts[1:]
    assert not any("claimed" in note for note in report(found=found).notes)
