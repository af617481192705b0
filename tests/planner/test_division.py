"""Memory by cause, and GPUs divided between the parts: what fits is used, what does not is told."""

from dataclasses import replace

import pytest

from shoal.contracts.trainer import TrainerSettings
from shoal.planner.disks import ASYNC_LEVEL, KEPT_STATES, KEPT_VERSIONS, volumes
from shoal.planner.division import divide
from shoal.planner.memory import USABLE, engine, total, trainer_rank
from shoal.planner.model_shape import shape_of_parameters
from shoal_operator.api.relay_server import RelayServerTemplate
from shoal_operator.api.training_run import TrainingRunSpec

GB = 10**9
SIZES = (135_000_000, 600_000_000, 1_700_000_000, 8 * GB, 14 * GB, 32 * GB, 72 * GB)
GPUS = (0, 1, 2, 3, 8, 32, 64)


@pytest.mark.parametrize("parameters", SIZES)
@pytest.mark.parametrize("gpus", GPUS)
def test_no_more_gpus_are_given_out_than_there_are_and_each_part_fits_or_it_is_told(parameters: int, gpus: int) -> None:
    made = divide(shape_of_parameters(parameters), gpus, 80 * GB)
    if gpus > 2 and not made.problems:
        assert made.trainer_gpus + made.engines * made.engine_gpus + made.validator_gpus <= gpus
    if gpus and not made.problems:
        assert max(map(total, (made.trainer, made.validator))) <= USABLE * 80 * GB
        assert made.engine[0].nbytes <= USABLE * 80 * GB
    assert made.trainer_gpus in (0, 1, 2, 4) or made.trainer_gpus % 8 == 0


def test_a_trainer_gets_a_number_of_gpus_that_divides_the_experts() -> None:
    shape = shape_of_parameters(72 * GB)
    assert divide(replace(shape, experts=128), 256, 80 * GB).trainer_gpus in (16, 32, 64)
    assert divide(replace(shape, experts=96), 256, 80 * GB).trainer_gpus in (24, 32, 48, 96)


def test_full_training_has_eighteen_bytes_a_parameter_with_the_reference_model() -> None:
    shape = shape_of_parameters(8 * GB)
    one, eight = (trainer_rank(shape, ranks, 16, "Full") for ranks in (1, 8))
    sharded = [
        [part.nbytes for part in parts if "float32" in part.cause or "reference" in part.cause]
        for parts in (one, eight)
    ]
    assert sum(sharded[0]) == pytest.approx(18 * 8 * GB, rel=1e-6)
    assert sum(sharded[1]) == pytest.approx(18 * GB, rel=1e-6)


def test_adapters_need_less_than_all_weights_and_offloaded_ones_least() -> None:
    shape = shape_of_parameters(8 * GB)
    needed = [total(trainer_rank(shape, 1, 1024, method)) for method in ("Full", "LoRA", "LoRA, offloaded")]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] > 2 * needed[1] > 4 * needed[2]


def test_a_tensor_parallel_engine_divides_weights_and_cache() -> None:
    shape = shape_of_parameters(32 * GB)
    assert total(engine(shape, 4, 16, 4096)) == pytest.approx(total(engine(shape, 1, 16, 4096)) / 4, rel=1e-6)


def test_a_stage_of_an_engine_has_its_layers_and_an_end() -> None:
    shape = shape_of_parameters(32 * GB)
    whole, staged = engine(shape, 4, 16, 4096), engine(shape, 4, 16, 4096, stages=2)
    head = 2 * shape.embedding // 4
    layers = -(-shape.layers // 2)
    assert staged[0].nbytes == pytest.approx(2 * layers * shape.layer_parameters // 2 + 2 * head, rel=1e-6)
    assert whole[0].nbytes <= staged[0].nbytes <= whole[0].nbytes * (2 * layers / shape.layers) + 2 * head
    assert staged[1].nbytes == whole[1].nbytes * 2 * layers // shape.layers
    assert engine(shape, 2, 1, 4096, stages=2)[1].nbytes == engine(shape, 1, 1, 4096)[1].nbytes * layers // shape.layers


def test_the_paper_s_size_on_32_gpus_trains_all_weights_on_whole_nodes() -> None:
    made = divide(shape_of_parameters(32_763_876_352), 32, 80 * GB)
    assert (made.method, made.trainer_gpus, made.trainer_replicas, made.problems) == ("Full", 16, 2, ())
    assert made.engines * made.engine_gpus == 14


@pytest.mark.parametrize(("parameters", "gpus"), [(32 * GB, 1), (35 * GB, 2), (72 * GB, 4)])
def test_a_validator_has_as_many_gpus_as_a_version_needs(parameters: int, gpus: int) -> None:
    made = divide(shape_of_parameters(parameters), 64, 80 * GB)
    assert made.validator_gpus == gpus
    assert made.validator[0].nbytes == 2 * parameters // gpus <= 0.85 * 80 * GB
    assert made.trainer_gpus + made.engines * made.engine_gpus + gpus <= 64


def test_what_cannot_work_is_told_with_what_to_do() -> None:
    [line] = divide(shape_of_parameters(32 * GB), 1, 80 * GB).problems
    assert "give 3 or more GPUs" in line
    assert any("validator needs" in line for line in divide(shape_of_parameters(72 * GB), 32, 16 * GB).problems)
    [line] = divide(shape_of_parameters(72 * GB), 0, 0).problems
    assert "on CPUs" in line


def test_volumes_are_for_what_a_manifest_has_where_it_says_nothing() -> None:
    assert TrainingRunSpec.model_fields["async_level"].default == ASYNC_LEVEL
    assert RelayServerTemplate().kept_versions == KEPT_VERSIONS
    assert TrainerSettings().kept_states == KEPT_STATES


def test_volumes_hold_what_is_kept() -> None:
    needed = volumes(shape_of_parameters(32 * GB), steps=100)
    version = 64 * GB
    assert needed.worker == 5 * version + (64 << 20)
    assert needed.relay == 7 * version
    assert needed.store > 3 * 12 * 32 * GB
