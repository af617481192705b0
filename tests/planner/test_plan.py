"""Plans: cases computed by hand, and what must hold whatever the run is like."""

import bisect
import math
import random
from dataclasses import replace

import pytest

from shoal.broadcast.transfer import IN_FLIGHT
from shoal.cli.plan import Planned, lines
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.validation import Validation
from shoal.planner.disks import disks, served_bytes
from shoal.planner.facts import PoolFacts, RunFacts, Surroundings
from shoal.planner.findings import certain
from shoal.planner.lengths import CompletionLengths
from shoal.planner.memory import JUDGED_SHARE
from shoal.planner.model_shape import ModelShape
from shoal.planner.plan import Plan, Probation, as_json, pace, plan, probation
from shoal.planner.rates import CPU, GPUS, Gpu, gpu_named
from shoal.planner.step_parts import (
    CONNECTIONS,
    file_bytes,
    file_check_seconds,
    forward_units,
    lease,
    leases,
    publish_seconds,
    rows_looked_at,
    save_seconds,
    train_seconds,
    verify_seconds,
)
from shoal.validation.memory import GPU_SHARE
from shoal.validation.sequential import first_rows

GB, GIB = 10**9, 1 << 30
ROUND = Gpu("round", 100 * GB, 1000e12, 1e12, "made for tests")
SHAPE = ModelShape(
    parameters=10 * GB, hidden_size=1000, layers=10, vocabulary=1000, tied=False, key_values=500, layer_values=10_000
)
POOL = PoolFacts("pool", 4, False, 1, ROUND, 200 * GIB)
RUN = RunFacts(
    name="round", steps=100, prompts_per_step=100, group_size=10, rows_each=1, groups_per_file=10, sequence_tokens=2000,
    pack_tokens=2000, completion_tokens=1000, learning_rate=1e-6, async_level=2, filtered=False, old_share=1.0,
    reference=True, behaviour=False, benchmarks=False, method="Full", recomputes=True, kept_states=3, state_every=1,
    trainer_pods=1, trainer_ranks=10, trainer_gpus=10,
    trainer_gpu=ROUND, scratch=500 * GIB, store=None, anchor_every=8, shard_bytes=1 << 24, relays=2, relay_versions=5,
    relay_disk=500 * GIB, relay_requests=200, relay_connection_bytes=None, validators=1, validator_gpus=1,
    validator_gpu=ROUND, validator_weights=None, proof_share=0.1, proof_floor=4, probation_files=10,
    pools=(POOL,),
)  # fmt: skip
AROUND = Surroundings(
    SHAPE, ROUND, mean_tokens=1000.0, prompt_tokens=100.0, signal_share=0.5, uplink_mbit=50.0, downlink_mbit=500.0,
    relay_mbit=1000.0, store_mbit=10_000.0, delta_ratio=20.0, strangers={}, price=None, train_seconds=None,
)  # fmt: skip
PARTS = ["generate", "upload", "verify", "train", "save state", "publish", "broadcast"]


def seconds(made: Plan, name: str) -> float:
    return next(part.seconds for part in made.parts if part.name == name)


# Computed by hand.


def test_saving_sends_twelve_bytes_a_parameter_through_the_store_s_line() -> None:
    assert save_seconds(RUN, AROUND) == pytest.approx(120e9 * 8 / 10e9)
    assert save_seconds(replace(RUN, method="LoRA"), AROUND) == pytest.approx(0.01 * 96)
    matrices = 10 * GB - 2 * 1000 * 1000  # all but embedding and head
    assert save_seconds(replace(RUN, muon=True), AROUND) == pytest.approx((120e9 - 4 * matrices) * 8 / 10e9)
    assert save_seconds(replace(RUN, reward_model=True), AROUND) == pytest.approx(2 * 96)
    assert save_seconds(replace(RUN, islands=True), AROUND) == pytest.approx(20 / 12 * 96)
    assert save_seconds(replace(RUN, state_every=None), AROUND) == pytest.approx(96 / 4)


def test_a_version_is_written_cut_and_stored_side_by_side() -> None:
    full, stored = 20e9, 20e9 / 8 + 1e9
    cut_and_encoded = 8 / (1 / 0.668e9 + 1 / 0.659e9)
    assert publish_seconds(RUN, AROUND) == pytest.approx(full / cut_and_encoded)
    assert publish_seconds(replace(RUN, trainer_ranks=4), AROUND) == pytest.approx(full / (4 * 0.31e9))
    slow = replace(AROUND, store_mbit=100)
    assert publish_seconds(RUN, slow) == pytest.approx(stored * 8 / 100e6)


@pytest.mark.parametrize(("rows", "files"), [(64, 10), (100, 0), (3, 10), (1024, 1)])
def test_rows_of_a_new_node_s_file_are_those_that_validators_look_at(rows: int, files: int) -> None:
    validation = Validation(proof_rows_share=0.1, proof_rows_floor=4, probation_files=files)
    run = replace(RUN, prompts_per_step=rows, group_size=1, groups_per_file=rows, probation_files=files)
    for accepted in (0, 1, 9, 10, 11, 30, 99, 100, 5000):
        job = ValidationJob.model_construct(
            accepted_files=accepted, on_probation=accepted < files, second_opinion=False
        )
        assert rows_looked_at(run, accepted) == first_rows(rows, job, validation), accepted
    assert rows_looked_at(run) == rows_looked_at(run, 10**6)


SLOW_VALIDATOR = replace(RUN, validator_gpu=replace(ROUND, flops=1e11))
"""Beside its checks, nothing else of a step takes time."""


def test_validators_are_slower_until_nodes_have_shown_that_they_are_honest() -> None:
    def step(rows: int) -> float:
        return 10 * file_check_seconds(SLOW_VALIDATOR, AROUND, rows)  # ten files a step

    around = replace(AROUND, train_seconds=step(80))
    found = probation(SLOW_VALIDATOR, around)
    assert found.files == 4 * 13, "four nodes with 13 files each; of the next one 77 rows are looked at"
    after = [step(rows) for rows in (100, 91, 84)]  # 10, 11 and 12 accepted files
    assert found.seconds == pytest.approx(4 * (10 * step(100) + sum(after)) / 10)
    assert found.steps == pytest.approx(5.2)
    assert probation(SLOW_VALIDATOR, replace(AROUND, train_seconds=10 * step(100))) == Probation(0.0, 0.0, 0.0)
    short = probation(replace(SLOW_VALIDATOR, steps=1), around)
    assert (short.files, short.steps) == (10, 1.0), "no more files than the run has"
    assert probation(replace(RUN, validators=0), AROUND).files == 0


@pytest.mark.parametrize("validators", range(1, 30))
def test_validators_that_keep_exactly_the_later_pace_reach_it(validators: int) -> None:
    run = replace(
        SLOW_VALIDATOR, validators=validators, prompts_per_step=300, steps=3000, pools=(replace(POOL, replicas=200),)
    )
    assert pace(run, AROUND).step == verify_seconds(run, AROUND)
    assert probation(run, AROUND).files < run.steps * 30 / 2, "the rest is rounding"


@pytest.mark.parametrize("run", [RUN, SLOW_VALIDATOR])
@pytest.mark.parametrize("accepted", [0, 10, None])
def test_the_way_from_a_version_to_the_next_has_all_of_a_step_s_files_and_the_last_one_s_own_time(
    run: RunFacts, accepted: int | None
) -> None:
    (made,) = leases(run, AROUND)
    latency = made.latency_alone if accepted == 0 else made.latency
    last = latency + file_check_seconds(run, AROUND, rows_looked_at(run, accepted))
    found = pace(run, AROUND, accepted)
    stages = found.stages
    rollouts = max(stages["workers"], stages["validators"]) + last
    assert found.loop == pytest.approx(rollouts + stages["trainer"] + stages["handover"] + stages["relays"])


def test_on_probation_a_node_makes_one_file_after_the_other() -> None:
    around = replace(AROUND, mean_tokens=300.0)
    (made,) = leases(RUN, around)
    assert made.decode < made.alone < made.last_row
    files = 10 / RUN.pools[0].replicas
    workers = {rows: pace(RUN, around, rows).stages["workers"] for rows in (0, 9, 10)}
    assert workers[0] == workers[9] == pytest.approx(files * made.latency_alone, rel=1e-3)
    assert workers[10] < workers[9]


@pytest.mark.parametrize("workers", [1, 4, 400])
@pytest.mark.parametrize("mbit", [1.0, 10_000.0])
def test_the_store_s_line_bounds_all_uploads_on_probation_too(workers: int, mbit: float) -> None:
    run, around = replace(RUN, pools=(replace(POOL, replicas=workers),)), replace(AROUND, store_mbit=mbit)
    upload = 10 * file_bytes(run, around) * 8 / (mbit * 1e6)
    for accepted in (0, 10, None):
        parts = pace(run, around, accepted).parts
        assert parts["upload", "workers"] >= upload * 0.999
    assert pace(run, around, 0).stages["workers"] >= pace(run, around).stages["workers"] * 0.999


def test_rows_that_find_a_place_at_once_end_with_the_longest() -> None:
    around = replace(AROUND, spread=1e-6)
    assert lease(RUN, around, POOL, stranger=False).alone == pytest.approx(
        (1000 / 0.9 * 20e9 + 100_000 * 600 * 10_000) / 0.6e12, rel=1e-3
    )


def test_the_beginning_counts_in_the_run_s_time() -> None:
    run = replace(RUN, group_size=100, validator_gpu=replace(ROUND, flops=1e12), pools=(replace(POOL, replicas=400),))
    made = plan(run, AROUND)
    assert made.probation.seconds > made.probation.steps * made.step_seconds > 0
    later = (run.steps - made.probation.steps) * made.step_seconds
    assert made.run_seconds == pytest.approx(later + made.probation.seconds)
    said = "\n".join(lines(Planned(made, (), None)))
    assert "validators look at more rows of new nodes" in said
    assert "validators look at more rows" not in "\n".join(lines(Planned(plan(RUN, AROUND), (), None)))


def test_training_costs_six_forward_passes_of_a_token() -> None:
    around = replace(AROUND, spread=0.01)
    tokens = 1000 * 1100
    attention = 4 * CompletionLengths(1000, 1000, 0.01).mean_position * 1000 * 10
    assert train_seconds(RUN, around) == pytest.approx(tokens * (20e9 + attention) * 6 / (10 * 1000e12 * 0.4))
    assert train_seconds(replace(RUN, behaviour=True), around) == pytest.approx(train_seconds(RUN, around) * 7 / 6)
    few = replace(RUN, reference=False, old_share=0.0)
    assert forward_units(few, around) == 4
    assert forward_units(replace(few, reference=True, reward_model=True), around) == 10
    assert forward_units(replace(few, reward_model=True, method="LoRA", recomputes=False), around) == 2 + 3
    assert train_seconds(few, around) == pytest.approx(train_seconds(RUN, around) * 4 / 6)


def test_continuations_sample_half_an_answer_and_read_the_other_half() -> None:
    """VinePPO's defaults: thirteen rows for each completion, and seven times its tokens (docs/vineppo.md)."""
    vine = replace(RUN, rows_each=13, groups_per_file=1)
    one, all_rows = (lease(run, AROUND, POOL, stranger=False) for run in (replace(RUN, groups_per_file=1), vine))
    assert all_rows.upload == pytest.approx(7 * one.upload)
    assert all_rows.prefill == pytest.approx(13 * (100 + 6 / 13 * 1000) / 100 * one.prefill)
    assert vine.rows == RUN.rows  # continuations are not trained on


def test_decoding_reads_the_weights_for_each_token_of_a_place_and_the_cache_of_all() -> None:
    # Every row has 1,000 tokens: the limit is the mean. A token leaves 2 x 10 x 500 bytes, and sees 600 tokens on average.
    around = replace(AROUND, spread=1e-6)
    found = lease(RUN, around, POOL, stranger=False)
    assert found.slots == 100
    assert found.decode == pytest.approx((1000 / 0.9 * 20e9 + 100_000 * 600 * 10_000) / 0.6e12, rel=1e-4)
    assert found.prefill == pytest.approx(100 * 100 * 20e9 / 400e12)
    assert found.upload == pytest.approx(1_400_000 * 8 / 10e9)


def test_rows_that_do_not_fit_into_the_cache_wait_for_others() -> None:
    found = lease(RUN, replace(AROUND, spread=1e-6), replace(POOL, max_sequences=25), stranger=False)
    assert found.slots == 25
    assert found.decode == pytest.approx((4000 / 0.9 * 20e9 + 100_000 * 600 * 10_000) / 0.6e12, rel=1e-4)


def test_a_file_waits_for_its_last_row_but_its_engine_does_not_nor_for_its_upload() -> None:
    found = lease(RUN, replace(AROUND, spread=0.75, mean_tokens=300.0), POOL, stranger=False)
    assert found.last_row > 1.5 * found.decode
    assert found.seconds == found.prefill + found.decode > found.upload
    assert found.latency == found.prefill + found.last_row + found.upload
    assert found.between() == (found.seconds, 0.0)
    slow = lease(RUN, replace(AROUND, store_mbit=0.1), POOL, stranger=False)
    assert slow.seconds == slow.upload
    assert slow.between() == (slow.upload, pytest.approx(1 - (slow.prefill + slow.decode) / slow.upload))


def test_a_validator_computes_a_tenth_of_the_rows_and_reads_all() -> None:
    around = replace(AROUND, spread=1e-6)
    checked, every = 10 * 1100, 100 * 1100
    flops = 20e9 + 4 * 500 * 1000 * 10
    one = every * 2.8e-6 + checked * (277e-6 / 32 + 0.3e-6) + checked * flops / 400e12
    assert verify_seconds(RUN, around) == pytest.approx(10 * one, rel=1e-4)
    assert verify_seconds(replace(RUN, validators=5), around) == pytest.approx(2 * one, rel=1e-4)


def test_gpus_of_one_validator_share_weights_and_passes() -> None:
    around = replace(AROUND, spread=1e-6)
    two = replace(RUN, validator_gpus=2)
    flops = 20e9 + 4 * 500 * 1000 * 10
    saved = 10 * 10 * 1100 * flops / 400e12 / 2
    assert verify_seconds(RUN, around) - verify_seconds(two, around) == pytest.approx(saved, rel=1e-4)
    each, shared = (
        [part.parts[0].nbytes for part in plan(run, around).memory if part.part == "a validator"] for run in (RUN, two)
    )
    assert each == [20 * GB]
    assert shared == [10 * GB]
    small = replace(ROUND, nbytes=12 * GB)
    assert certain(replace(two, validator_gpu=small), 20 * GB, 10 * GB) == []
    assert certain(replace(two, validator_gpu=small, validator_weights=20 * GB), 20 * GB, 10 * GB) == []


def test_a_validator_fills_the_share_that_is_planned_with() -> None:
    assert JUDGED_SHARE == GPU_SHARE


@pytest.mark.parametrize(
    ("kept", "every", "full", "deltas"),
    [(5, 8, 2, 9), (5, 1, 5, 0), (2, 8, 2, 9), (9, 8, 2, 9), (10, 8, 3, 17), (5, 2, 3, 5)],
)
def test_served_versions_reach_down_to_the_anchor_below_the_oldest(
    kept: int, every: int, full: int, deltas: int
) -> None:
    assert served_bytes(1000, kept, every, 10.0) == (full * 1000 + deltas * 100, full * 1000)


def test_a_worker_s_volume_holds_the_versions_that_steps_accept_and_a_reserve() -> None:
    [found] = [disk for disk in disks(RUN, 20 * GB, 10 * GB) if disk.field == "inferencePools[0].weightsSize"]
    assert found.needs == found.least == 4 * 20 * GB + (64 << 20)
    [more] = [disk for disk in disks(replace(RUN, benchmarks=True), 20 * GB, 10 * GB) if "weightsSize" in disk.field]
    assert more.needs - found.needs == 20 * GB


@pytest.mark.parametrize(
    ("run", "held"),
    [
        (RUN, 3),
        (replace(RUN, benchmarks=True, validator_gpus=2), 4),
        (replace(RUN, validator_gpu=replace(ROUND, nbytes=50 * GB)), 2),
        (replace(RUN, validator_gpu=replace(ROUND, nbytes=10 * GB)), 1),
        (replace(RUN, validator_weights=45 * GB), 2),
        (replace(RUN, validator_gpus=0), 3),
    ],
)  # fmt: skip
def test_a_validator_s_temporary_files_are_what_it_holds_and_one_more(run: RunFacts, held: int) -> None:
    [found] = [disk for disk in plan(run, AROUND).disks if disk.name == "validator's temporary files"]
    assert found.needs == (held + 1) * 20 * GB


def test_engines_that_are_kept_full_need_less_than_the_paper_s_share_of_compute() -> None:
    """INTELLECT-2, section 4.2: training to inference was 1 : 4.5, with one lease at a time."""
    shape = ModelShape(32_763_876_352, 5120, 64, 152_064, False, 2048, 153_600)
    h100 = gpu_named("H100")
    home = PoolFacts("home", 4, False, 4, h100, 320 * GIB)
    run = replace(
        RUN, prompts_per_step=256, group_size=16, groups_per_file=4, completion_tokens=30_720, filtered=True,
        trainer_pods=4, trainer_ranks=8, trainer_gpus=8, trainer_gpu=h100, pools=(home,),
    )  # fmt: skip
    around = replace(AROUND, model=shape, gpu=h100 or ROUND, mean_tokens=9000.0, prompt_tokens=256.0, delta_ratio=30.0)
    made = plan(run, around)
    [workers] = [each for each in made.counts if each.part == "workers"]
    assert workers.enough is not None
    assert workers.enough * 4 / 32 == pytest.approx(2.6, rel=0.2)


# Whatever the run is like.


@pytest.mark.parametrize("pods", [1, 4, 16, 64])
def test_more_workers_never_make_a_step_longer_while_relays_keep_up(pods: int) -> None:
    around = replace(AROUND, relay_mbit=1e6)
    few, many = (
        plan(replace(RUN, pools=(replace(POOL, replicas=each),)), around).step_seconds for each in (pods, 2 * pods)
    )
    assert many <= few


def test_more_of_anything_makes_its_part_no_longer() -> None:
    made = plan(RUN, AROUND)
    more = {
        "verify": replace(RUN, validators=2),
        "train": replace(RUN, trainer_ranks=20),
        "generate": replace(RUN, pools=(replace(POOL, gpus=2),)),
    }
    for name, run in more.items():
        assert seconds(plan(run, AROUND), name) < seconds(made, name)
    for name, around in (
        ("save state", replace(AROUND, store_mbit=2e4)),
        ("broadcast", replace(AROUND, relay_mbit=4e3)),
    ):
        assert seconds(plan(RUN, around), name) <= seconds(made, name)


@pytest.mark.parametrize("level", [0, 1, 2, 4])
def test_a_step_is_no_shorter_than_its_slowest_stage_and_at_level_0_as_long_as_the_loop(level: int) -> None:
    made = plan(replace(RUN, async_level=level), AROUND)
    stages: dict[str, float] = {}
    for part in made.parts:
        stages[part.stage] = stages.get(part.stage, 0.0) + part.seconds
    assert made.step_seconds == max(*stages.values(), made.loop_seconds / (level + 1))
    if level == 0:
        assert made.step_seconds == made.loop_seconds
    assert [part.name for part in made.parts] == PARTS
    for part in made.parts:
        assert part.idle_share == pytest.approx(1 - part.seconds / made.step_seconds)


STRANGERS = replace(POOL, name="strangers", open=True, replicas=0)
MANY = replace(RUN, pools=(STRANGERS,))
FULL = replace(RUN, pools=(replace(POOL, replicas=400),))
FAST = replace(AROUND, relay_mbit=1e6)


@pytest.mark.parametrize(
    ("part", "run", "around", "told"),
    [
        ("generate", replace(RUN, pools=(replace(POOL, replicas=1),)), AROUND, "instead of 1"),
        ("verify", replace(FULL, proof_share=1.0, prompts_per_step=2000, trainer_ranks=400), FAST, "instead of 1"),
        ("train", replace(FULL, trainer_ranks=1), FAST, "GPUs for the trainer"),
        ("save state", RUN, replace(AROUND, store_mbit=100.0), "object store"),
        ("broadcast", MANY, replace(AROUND, strangers={"strangers": 2000}), "more relays"),
        ("broadcast", MANY, replace(AROUND, strangers={"strangers": 20}, downlink_mbit=5.0), "downlinks"),
        ("broadcast", replace(FULL, relay_connection_bytes=100_000), FAST, "rateLimits.bytesPerSecond"),
        ("upload", MANY, replace(AROUND, strangers={"strangers": 10}, uplink_mbit=0.002), "uplinks"),
        ("asynchrony", replace(RUN, async_level=0), AROUND, "raise asyncLevel"),
    ],
)  # fmt: skip
def test_the_bottleneck_is_what_was_made_slow_and_says_what_to_change(
    part: str, run: RunFacts, around: Surroundings, told: str
) -> None:
    found = plan(run, around).bottleneck
    assert found.part == part
    assert told in found.change


def test_so_many_workers_as_it_says_make_another_part_the_slowest() -> None:
    run, around = replace(RUN, pools=(replace(POOL, replicas=1),)), replace(AROUND, relay_mbit=1e6)
    before = plan(run, around)
    number = int(before.bottleneck.change.split(": ")[1].split()[0])
    after = plan(replace(run, pools=(replace(POOL, replicas=number),)), around)
    assert (before.bottleneck.part, after.bottleneck.part != "generate") == ("generate", True)
    fewer = plan(replace(run, pools=(replace(POOL, replicas=number - 1),)), around)
    assert fewer.bottleneck.part == "generate"


def test_the_limit_of_a_connection_counts_for_all_that_a_node_has_at_once() -> None:
    assert CONNECTIONS == IN_FLIGHT
    made = plan(replace(RUN, relay_connection_bytes=10**6), AROUND)
    assert made.start_seconds == pytest.approx(20e9 / (4 * 10**6))


def test_measured_training_time_is_taken_as_it_is() -> None:
    assert seconds(plan(RUN, replace(AROUND, train_seconds=123.0)), "train") == 123.0


def test_without_workers_relays_or_validators_nothing_comes_and_it_says_so() -> None:
    for run, told in (
        (replace(RUN, pools=()), "replicas"),
        (replace(RUN, validators=0), "give the validator replicas"),
        (replace(RUN, relays=0), "give the relayServer replicas"),
    ):
        made = plan(run, AROUND)
        assert not made.works
        assert made.step_seconds == math.inf
        assert told in made.bottleneck.change
        assert as_json(made)["step_seconds"] is None


def test_strangers_count_with_their_own_links_and_their_gpus_are_not_ours() -> None:
    made = plan(MANY, replace(AROUND, strangers={"strangers": 20}, price=2.0))
    assert made.cost.stranger_gpu_hours == pytest.approx(20 * made.run_seconds / 3600)
    assert made.cost.gpu_hours == pytest.approx(11 * made.run_seconds / 3600)
    assert made.cost.money == pytest.approx(2 * 31 * made.run_seconds / 3600)
    assert {each.name for each in made.links} >= {"each stranger, up", "each stranger, down"}
    [found] = leases(MANY, replace(AROUND, strangers={"strangers": 20}))
    assert (found.workers, found.upload) == (20, pytest.approx(1_400_000 * 8 / 50e6))


# What cannot work.


def test_a_run_that_fits_has_no_findings() -> None:
    assert certain(RUN, 20 * GB, 10 * GB) == []
    assert plan(RUN, AROUND).findings == ()


@pytest.mark.parametrize(
    ("run", "reason", "text"),
    [
        (
            replace(RUN, pools=(replace(POOL, volume=70 * GIB),)), "VolumeTooSmall",
            "spec.inferencePools[0].weightsSize: weights of pool has 75.2 GB and needs 80.1 GB for 4 versions, the one being fetched included;"
            " set 75Gi or more",
        ),
        (replace(RUN, relay_disk=40 * GIB), "VolumeTooSmall", "spec.relayServer.cacheSize: relay has 42.9 GB and needs 44.4 GB"),
        (replace(RUN, scratch=37 * GIB), "VolumeTooSmall", "spec.trainer.scratchSize: origin has 39.7 GB and needs 40.0 GB"),
        (replace(RUN, store=300 * GIB), "VolumeTooSmall", "spec.storage.folderSize: store has 322.1 GB and needs 400.0 GB"),
        (
            replace(RUN, pools=(replace(POOL, gpu=replace(ROUND, nbytes=9 * GB), gpus=2),)), "MemoryTooSmall",
            "spec.inferencePools[0].gpu: an engine of pool has 2 x 9.0 GB of round and needs 20.0 GB for the weights; give it 3 such GPUs",
        ),
        (
            replace(RUN, validator_gpu=replace(ROUND, nbytes=10 * GB)), "MemoryTooSmall",
            "spec.validator.gpu: a validator has 1 x 10.0 GB of round, 8.5 GB of it for weights, and a version has 20.0 GB; give it 3 such GPUs",
        ),
        (replace(RUN, validator_gpus=2, validator_gpu=replace(ROUND, nbytes=11 * GB)), "MemoryTooSmall", "2 x 11.0 GB of round, 18.7 GB of it"),
        (
            replace(RUN, validator_gpu=None, validator_weights=19 * GB), "MemoryTooSmall",
            "spec.validator.validation.weightsMemoryBytes: a validator may hold 19.0 GB of weights, and a version has 20.0 GB; set 20000000000",
        ),
        (
            replace(RUN, trainer_gpu=replace(ROUND, nbytes=10 * GB)), "MemoryTooSmall",
            "spec.trainer: the trainer has 10 x 10.0 GB of round and needs 160.0 GB for weights and what is trained of them; give it 16 such",
        ),
        (
            replace(RUN, trainer_gpu=replace(ROUND, nbytes=20 * GB), reward_model=True), "MemoryTooSmall",
            "spec.trainer: the trainer has 10 x 20.0 GB of round and needs 280.0 GB for weights and what is trained of them; give it 14 such",
        ),
        (replace(RUN, shard_bytes=1 << 16), "TooManyShards", "spec.broadcast.shardBytes: 65536 makes 305,176 shards"),
    ],
)  # fmt: skip
def test_what_certainly_cannot_work_says_where_what_and_what_to_do(run: RunFacts, reason: str, text: str) -> None:
    [found] = [each for each in certain(run, 20 * GB, 10 * GB) if each.reason == reason and text in str(each)]
    assert found.certain
    assert not plan(run, AROUND).works


def test_shards_that_cannot_be_asked_for_within_a_step_are_found_once_a_step_was_seen() -> None:
    run = replace(RUN, relay_requests=1)
    assert certain(run, 20 * GB, 10 * GB) == []
    [found] = certain(run, 20 * GB, 10 * GB, step_seconds=60.0)
    assert found.reason == "BroadcastTooSlow"
    assert "needs 596 s to ask for the 1,193 shards" in str(found)
    assert certain(run, 20 * GB, 10 * GB, step_seconds=600.0) == []


def test_without_the_model_s_shape_adapters_take_no_room_that_is_certain() -> None:
    """Adapters on attention alone are 0.02 % of a model of experts, not the 1 % of a dense one."""
    run = replace(RUN, method="LoRA", store=41 * GB)
    assert certain(run, 20 * GB, 10 * GB) == []
    [found] = certain(replace(run, store=39 * GB), 20 * GB, 10 * GB)
    assert found.field == "storage.folderSize"


def test_a_short_run_needs_no_room_for_versions_that_it_never_has() -> None:
    small = replace(POOL, volume=50 * GIB)
    assert certain(replace(RUN, steps=1, pools=(small,)), 20 * GB, 10 * GB) == []


def test_what_may_not_work_does_not_count_as_certain() -> None:
    run = replace(RUN, pack_tokens=2_000_000)
    made = plan(run, AROUND)
    assert [each.certain for each in made.findings] == [False]
    assert "activations of a layer, 2000000 tokens" in str(made.findings[0])
    assert str(made.findings[0]).endswith("or set trainer.settings.offload or contextParallel")
    assert made.works


def test_ranks_that_cannot_share_the_model_s_heads_are_found_where_its_shape_is_known() -> None:
    run, known = replace(RUN, sharing=5), replace(AROUND, model=replace(SHAPE, heads=(12, 4)))
    assert plan(run, AROUND).findings == plan(replace(run, sharing=4), known).findings == ()
    [found] = plan(run, known).findings
    assert str(found) == (
        "spec.trainer.settings.contextParallel: 5 ranks cannot share 12 query and 4 key heads; set one of 1, 2, 4, 12"
    )
    assert not plan(run, known).works


def test_experts_too_large_to_gather_may_stay_at_their_ranks() -> None:
    run = replace(RUN, pack_tokens=2_000_000)
    known = replace(AROUND, model=replace(SHAPE, experts=20, expert_parameters=SHAPE.layer_parameters // 2))
    assert str(plan(run, known).findings[0]).endswith("or contextParallel, or expertParallel: Tokens")
    assert str(plan(replace(run, tokens_travel=True), known).findings[0]).endswith("or contextParallel")


def test_ranks_that_cannot_divide_the_model_s_experts_are_found() -> None:
    known = [replace(AROUND, model=replace(SHAPE, experts=experts)) for experts in (20, 12)]
    assert plan(RUN, known[0]).findings == ()
    [found] = plan(RUN, known[1]).findings
    assert str(found) == (
        "spec.trainer: 10 ranks cannot divide 12 experts; let replicas times GPUs be one of 1, 2, 3, 4, 6, 12"
    )


def test_a_pack_s_activations_are_divided_by_the_ranks_that_share_it() -> None:
    long = replace(RUN, pack_tokens=2_000_000)
    assert plan(long, AROUND).findings
    assert plan(replace(long, sharing=100), AROUND).findings == ()


def test_a_least_disk_of_strangers_is_no_certain_mistake() -> None:
    run = replace(RUN, pools=(POOL, replace(STRANGERS, disk=50 * GIB)))
    assert certain(run, 20 * GB, 10 * GB) == []
    made = plan(run, AROUND)
    assert [each.certain for each in made.findings] == [False]
    assert "spec.inferencePools[1].requirements.diskGib: strangers of strangers has 53.7 GB" in str(made.findings[0])
    assert made.works


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            replace(RUN, trainer_temporary=18 * GIB),
            "spec.trainer.temporaryVolume: trainer's temporary files has 19.3 GB and needs 20.0 GB for a published version, which a restart reads",
        ),
        (
            replace(RUN, validator_temporary=20 * GIB),
            "spec.validator.temporaryVolume: validator's temporary files has 21.5 GB and needs",
        ),
    ],
)
def test_a_claim_for_temporary_files_that_is_full_some_day_is_found_and_no_certain_mistake(
    run: RunFacts, text: str
) -> None:
    made = plan(run, AROUND)
    [found] = made.findings
    assert text in str(found)
    assert str(found).endswith("Gi or more")
    assert made.works
    assert plan(replace(RUN, trainer_temporary=1 << 40, validator_temporary=1 << 40), AROUND).findings == ()


def test_each_pod_of_a_trainer_has_the_files_of_its_own_ranks_among_its_temporary_ones() -> None:
    def needs(pods: int, ranks: int) -> int:
        run = replace(RUN, trainer_pods=pods, trainer_ranks=ranks)
        found = disks(run, version=20 * GB, parameters=10 * GB)
        return next(each.needs for each in found if each.name == "trainer's temporary files")

    assert needs(1, 8) == 20 * GB + 8 * RUN.file_bytes
    assert needs(4, 8) == needs(1, 8)


# Lengths and rates.


def test_lengths_of_a_spread_of_zero_are_all_the_mean_and_no_file_waits_longer_than_the_limit() -> None:
    same = CompletionLengths(100, 1000, 1e-9)
    assert same.mean_position == pytest.approx(50)
    assert same.last_of(64, 0) == pytest.approx(100, rel=2e-3)
    assert same.last_of(64, 3200) == pytest.approx(3200 + 100, rel=0.04), "the last one begins at the window's end"
    wide = CompletionLengths(9000, 30_720)
    ends = [wide.last_of(rows, 0) for rows in (1, 8, 64, 100_000)]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(30_720, rel=2e-3)
    assert wide.last_of(64, 0) < wide.last_of(64, 1000) < wide.last_of(64, 0) + 1000


def test_the_last_of_a_file_s_rows_ends_when_drawn_rows_say_so() -> None:
    wide, chance = CompletionLengths(9000, 30_720), random.Random(1)
    mu = math.log(9000) - 0.75**2 / 2

    def last() -> float:
        return max(chance.uniform(0, 12_000) + min(30_720, chance.lognormvariate(mu, 0.75)) for _ in range(64))

    drawn = sorted(last() for _ in range(2000))
    share = bisect.bisect(drawn, wide.last_of(64, 12_000)) / len(drawn)
    assert share == pytest.approx((64 / 65) ** 64, abs=0.06)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("H100", "H100"), ("NVIDIA-H100-80GB-HBM3", "H100"), ("NVIDIA H200", "H200"), ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"), ("NVIDIA-L40S", "L40S"), ("NVIDIA-L4", "L4"), ("rtx-4090", "RTX-4090"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"), ("NVIDIA-GeForce-RTX-3090", "RTX-3090"), ("NVIDIA-B200", "B200"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", None), ("NVIDIA-H100-NVL", None), ("NVIDIA-H100-PCIe", None),
        ("NVIDIA-L40", None), ("Tesla-T4", None), ("", None),
    ],
)  # fmt: skip
def test_the_gpu_of_a_node_label(name: str, gpu: str | None) -> None:
    found = gpu_named(name)
    assert (found.name if found else None) == gpu


def test_every_rate_says_where_it_is_from() -> None:
    assert all(each.source and each.nbytes > 0 and each.flops > each.bandwidth for each in (*GPUS, CPU))
    assert len({each.name for each in GPUS}) == len(GPUS)
