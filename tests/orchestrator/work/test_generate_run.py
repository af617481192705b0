"""A run of mode Generate, and the cap on sampling of mode Train, at the orchestrator: real Redis, real store, a clock moved by hand."""

import hashlib
from pathlib import Path

import pytest

from protocol_stack import GROUP_SIZE, GROUPS, NEEDED, RUN, TASKS, ledger, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import DatasetAnnouncement
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepBatch
from shoal.orchestrator import announcements
from shoal.orchestrator.http.service import public_run
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.work import handout
from shoal.orchestrator.work.open_work import openable_steps
from shoal.sampling.draw import slice_tasks

SLICES = len(TASKS) // GROUPS


@pytest.fixture
def generating(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, mode="Generate", steps=0, generate=GenerateSettings(dataset="sums"))


def served(run: Orchestrator, node: str) -> int:
    info = handout.step_for(run.state, node)
    assert info is not None
    assert (info.min_version, info.max_version) == (0, 0)
    return info.step


def sample_all(run: Orchestrator, node: str) -> None:
    """Every slice, each handed in and accepted; wrong answers count as well as right ones."""
    for _ in range(SLICES):
        run.hand_in(node, served(run, node))
        run.judge(verdict_on(run.claimed(), rewards=[0.0] * GROUP_SIZE * GROUPS))


def announcement(run: Orchestrator, data: bytes = b"card", name: str = "sums") -> DatasetAnnouncement:
    return DatasetAnnouncement(run=RUN, name=name, card_digest=hashlib.sha256(data).hexdigest())


def test_nodes_get_slices_of_their_own_and_a_given_up_one_goes_to_the_next(generating: Orchestrator) -> None:
    first, second = generating.join(), generating.join()
    generating.announce(0)
    lease = generating.lease(first, served(generating, first))
    assert served(generating, second) == 1
    with pytest.raises(Refusal, match="enough-under-way"):
        generating.lease(second, 0)
    generating.clock.now = lease.expires_unix + 1
    generating.beat(first)
    generating.beat(second)
    assert served(generating, second) == 0


def test_every_task_is_sampled_once_and_the_run_is_complete_with_its_data_set(generating: Orchestrator) -> None:
    node = generating.join()
    generating.announce(0)
    assert public_run(generating.state).steps == SLICES
    sample_all(generating, node)
    assert handout.step_for(generating.state, node) is None
    batches = [StepBatch.from_json(generating.store.get(keys.step_batch(step))) for step in range(SLICES)]
    drawn = [index for batch in batches for file in batch.files for index in file.prompt_indices]
    assert sorted(drawn) == list(range(len(TASKS)))
    assert all(
        set(file.prompt_indices) == set(slice_tasks(batch.step, len(TASKS), GROUPS))
        for batch in batches
        for file in batch.files
    )
    assert "data set 'sums' to be written" in run_progress(generating.state).waiting_for
    generating.store.put(keys.dataset_card("sums"), b"card")
    announcements.announce_dataset(generating.state, announcement(generating))
    announcements.announce_dataset(generating.state, announcement(generating))  # asked again after a lost answer
    assert run_progress(generating.state).complete
    assert [entry.detail for entry in ledger(generating.store) if entry.kind == "dataset-published"] == ["sums"]
    assert run_progress(generating.restarted()).complete


def test_a_restarted_orchestrator_goes_on_with_the_slices_that_are_left(generating: Orchestrator) -> None:
    node = generating.join()
    generating.announce(0)
    for _ in range(3):
        generating.hand_in(node, served(generating, node))
        generating.judge(verdict_on(generating.claimed(), rewards=[1.0, 0.0] * GROUPS))
    lease = generating.lease(node, served(generating, node))
    generating.redis.flushall()
    generating.restarted()
    assert openable_steps(generating.state)[0] == 3
    assert run_progress(generating.state).pending_groups == GROUPS, "the lease was written before it was given"
    assert generating.confirm(lease, generating.upload(lease)).status == "queued"


def test_a_data_set_that_comes_too_early_or_is_another_is_refused(generating: Orchestrator) -> None:
    node = generating.join()
    generating.announce(0)
    with pytest.raises(Refusal, match="dataset-not-stored"):
        announcements.announce_dataset(generating.state, announcement(generating))
    generating.store.put(keys.dataset_card("sums"), b"card")
    with pytest.raises(Refusal, match="dataset-too-early: step 0 has no batch yet"):
        announcements.announce_dataset(generating.state, announcement(generating))
    with pytest.raises(Refusal, match="dataset-changed"):
        announcements.announce_dataset(generating.state, announcement(generating, b"other"))
    with pytest.raises(Refusal, match="no-such-dataset: data set 'others' is not what run"):
        announcements.announce_dataset(generating.state, announcement(generating, name="others"))
    assert served(generating, node) == 0


def test_a_run_that_generates_takes_no_second_version(generating: Orchestrator) -> None:
    generating.announce(0)
    with pytest.raises(Refusal, match=r"version-too-early.*mode Generate"):
        generating.announce(1)


def test_a_step_without_signal_stalls_at_the_cap_and_goes_on_with_a_higher_one(
    tmp_path: Path, redis_server: Redis
) -> None:
    recipe = Recipe(prompts_per_step=NEEDED, group_size=GROUP_SIZE, max_sequence_length=128, sampling_cap=2)
    run = Orchestrator(tmp_path, redis_server.url, recipe=recipe, async_level=0)
    node = run.join()
    run.announce(0)
    for _ in range(2 * NEEDED // GROUPS):
        assert run_progress(run.state).stalled_on_signal == ""
        run.hand_in(node)
        run.judge(verdict_on(run.claimed(), rewards=[1.0] * GROUP_SIZE * GROUPS))
    told = run_progress(run.state)
    assert told.stalled_on_signal.startswith(f"step 0: {2 * NEEDED} groups were sampled and 0 of {NEEDED} carry signal")
    assert "Raise spec.recipe.samplingCap to continue" in told.stalled_on_signal
    assert (told.judged_groups, told.groups_accepted_total, told.groups_dropped_total) == (2 * NEEDED, 0, 2 * NEEDED)
    with pytest.raises(Refusal, match="step-stalled"):
        run.lease(node)
    run.config = run.config.model_copy(update={"recipe": recipe.model_copy(update={"sampling_cap": 3})})
    run.restarted()
    assert run_progress(run.state).stalled_on_signal == ""
    assert run.lease(node).step == 0
