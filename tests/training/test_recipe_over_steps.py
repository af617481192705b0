"""Parts of a recipe that act over steps: schedules, corrections, completions that were cut off, an objective of the run's own."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_batches import groups, plan
from test_other_steps import Pod
from tiny_run import MAX_LENGTH, Orchestrator, recipe, write_base

from servers import Loopback
from shoal.contracts.schedules import SchedulePoint, value_at
from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.errors import EXIT_INPUT_WRONG
from shoal.training.batches import plan_step
from shoal.training.custom_objective import BadObjective, load_objective
from shoal.training.loss import Objective
from shoal.training.model import BadModel
from shoal.training.objectives import objective_of

OWN = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()
import torch
from shoal.training.loss import Objective, Surrogate


def surrogate(inputs, weights):
    nothing = torch.zeros_like(inputs.logprobs, dtype=torch.bool)
    return Surrogate(-inputs.advantages * inputs.logprobs, nothing, nothing, nothing)


REINFORCE = Objective(surrogate)
SURROGATE = surrogate
"""


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = 4
    yield server
    server.close()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of module `lab.own`, in a package that says when it is imported."""
    package = tmp_path / "lab"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('nobody asked for the package')")
    (package / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "lab.own", sys)  # taken out again after the test
    load_objective.cache_clear()
    return package / "own.py"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("step", "value"), [(0, 1.0), (10, 1.0), (15, 0.75), (20, 0.5), (25, 1.25), (30, 2.0), (999, 2.0)]
)
def test_a_schedule_is_linear_between_its_points_and_constant_outside(step: int, value: float) -> None:
    points = [SchedulePoint(step=at, value=to) for at, to in ((20, 0.5), (30, 2.0), (10, 1.0))]
    assert value_at(points, step, 7.0) == pytest.approx(value)
    assert value_at(None, step, 7.0) == 7.0


def test_a_run_follows_its_schedules_reports_them_and_what_was_masked(
    tmp_path: Path, orchestrator: Orchestrator
) -> None:
    ends = [{"step": 0, "value": 1e-3}, {"step": 2, "value": 5e-4}]
    given = recipe(
        warmup_steps=0,
        algorithm={"gspo": {}},
        mismatch_correction={"icepop": {"low": 0.5, "high": 2.0}, "sequence": {"low": 0.3, "high": 3.0}},
        schedules={
            "learning_rate": ends,
            "kl_coefficient": [{"step": 1, "value": 0.2}, {"step": 3, "value": 0.0}],
            "clip_epsilon_high": [{"step": 0, "value": 4e-4}, {"step": 2, "value": 8e-4}],
        },
    )
    pod = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator, recipe=given)
    pod.trainer().run()
    reports = [pod.report(step) for step in range(4)]
    assert [report.learning_rate for report in reports] == pytest.approx([1e-3, 7.5e-4, 5e-4, 5e-4])
    assert [report.kl_coefficient for report in reports] == pytest.approx([0.2, 0.2, 0.1, 0.0])
    assert [report.clip_epsilon_high for report in reports] == pytest.approx([4e-4, 6e-4, 8e-4, 8e-4])
    assert all(report.clip_epsilon is None and report.mismatch_truncated is None for report in reports)
    masked = [report.mismatch_masked for report in reports]
    assert all(share is not None and 0 < share < 1 for share in masked)  # the tiny run's claims are drawn at random
    dropped = [report.completions_masked for report in reports]
    assert all(share is not None and 0 <= share * 16 == pytest.approx(round(share * 16)) for share in dropped)


def test_a_report_without_a_correction_has_the_bytes_of_before(tmp_path: Path, orchestrator: Orchestrator) -> None:
    pod = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator)
    trainer = pod.trainer()
    trainer.resume()
    trainer.train_step(0)
    trainer._waits.idle()
    assert not {"mismatch_masked", "kl_coefficient"} & pod.report(0).model_dump(mode="json").keys()


def test_numbers_that_do_not_go_together_at_a_later_step_are_refused() -> None:
    schedules = {"clip_epsilon_high": [{"step": 0, "value": 0.2}, {"step": 50, "value": 3.5}]}
    with pytest.raises(ValueError, match=r"clip_delta is 4.0; allowed: more than 1 \+ clip_epsilon = 4.5"):
        objective_of(recipe(schedules=schedules))


def test_completions_that_were_cut_off_are_not_learnt_and_count_in_their_group() -> None:
    longest = max(sample.completion_length for group in groups() for sample in group.samples)
    found = plan_step(groups(), recipe(overlong_filter=True), seed=0, step=5, completion_limit=longest)
    cut = sum(sample.completion_length >= longest for group in groups() for sample in group.samples)
    whole = plan()
    assert cut
    assert found.token_count == whole.token_count - cut * longest
    assert sum(batch.rows for batch in found.optimizer_batches) == 16 - cut
    assert longest < MAX_LENGTH
    kept = sorted(
        value
        for batch in found.optimizer_batches
        for packed in batch.micro_batches
        for value in packed.advantages.tolist()
    )
    assert set(kept) <= {
        value
        for batch in whole.optimizer_batches
        for packed in batch.micro_batches
        for value in packed.advantages.tolist()
    }


def test_gspo_divides_by_completions_that_have_something_to_learn() -> None:
    found = plan(algorithm={"gspo": {}})
    assert [batch.divisor for batch in found.optimizer_batches] == [8.0, 8.0]


def test_an_objective_of_the_runs_own_trains(tmp_path: Path, own: Path, orchestrator: Orchestrator) -> None:
    given = recipe(algorithm={"custom": {"path": "lab.own:REINFORCE", "sha256": digest(own)}})
    pod = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator, recipe=given)
    trainer = pod.trainer()
    trainer.resume()
    trainer.train_step(0)
    trainer._waits.idle()
    assert isinstance(objective_of(given), Objective)
    assert own.with_suffix(".ran").exists()
    assert pod.report(0).clip_low == 0.0


def test_an_import_path_that_lies_about_its_digest_is_refused_by_name_and_never_runs(
    tmp_path: Path, own: Path, orchestrator: Orchestrator
) -> None:
    given = recipe(algorithm={"custom": {"path": "lab.own:REINFORCE", "sha256": "0" * 64}})
    pod = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator, recipe=given)
    with pytest.raises(
        BadObjective, match=f"'lab.own:REINFORCE': .*own.py has SHA-256 {digest(own)}, the recipe says 0000"
    ):
        pod.trainer()
    assert not own.with_suffix(".ran").exists()


def test_a_trainer_ends_at_once_for_an_objective_that_lies(
    tmp_path: Path, own: Path, orchestrator: Orchestrator, loopback: Loopback
) -> None:
    given = recipe(algorithm={"custom": {"path": "lab.own:REINFORCE", "sha256": "0" * 64}})
    config = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator, recipe=given).run
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "run.json").write_bytes(config.to_json())
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {
        "SHOAL_HOME": str(tmp_path),
        "SHOAL_BIND": loopback.address(),
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "shoal.training"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == EXIT_INPUT_WRONG, done.stderr[-2000:]
    assert "the recipe says 0000" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_objective_is_refused_by_name(own: Path) -> None:
    with pytest.raises(BadObjective, match=r"SURROGATE is function; allowed: an Objective of shoal.training.loss"):
        load_objective("lab.own:SURROGATE", digest(own))
    with pytest.raises(BadObjective, match=r"the trainer's image has no module 'lab.other' as a .py file"):
        load_objective("lab.other:REINFORCE", digest(own))
    own.write_text("1 / 0")
    with pytest.raises(BadObjective, match="the module cannot be executed: ZeroDivisionError"):
        load_objective("lab.own:REINFORCE", digest(own))


def test_a_run_with_muon_that_was_stopped_ends_with_the_weights_of_one_that_was_not(
    tmp_path: Path, orchestrator: Orchestrator
) -> None:
    base, digests = write_base(tmp_path / "base"), []
    for name, stops in (("whole", False), ("stopped", True)):
        pod = Pod(tmp_path / name, base, orchestrator, recipe=recipe(muon={"momentum": 0.9}))
        if stops:
            first = pod.trainer()
            first.begin()
            first.advance()
            first.advance()
            first.handed_over()
            first.close()
        pod.trainer().run()
        digests.append(digest(tmp_path / name / "outbox" / "v000004" / "model.safetensors"))
    assert digests[0] == digests[1]


def test_a_trainer_refuses_muon_for_adapters_before_a_step(tmp_path: Path, orchestrator: Orchestrator) -> None:
    settings = TrainerSettings(lora=Lora(rank=2))
    pod = Pod(tmp_path, write_base(tmp_path / "base"), orchestrator, recipe=recipe(muon={}), trainer=settings)
    with pytest.raises(BadModel, match=r"cannot train the adapters of trainer\.settings\.lora"):
        pod.trainer()
