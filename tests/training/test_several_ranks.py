"""Several processes train as one: started by torchrun, resumed by any number of them, stopped together, and none waits for ever."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import Home, Orchestrator, config, fill_step, kill_all, make_store, make_trainer, write_base

from forked_python import ForkedProcess
from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trainer import TrainerSettings
from shoal.errors import EXIT_INPUT_WRONG

STEPS = 3
TOLERANCE = 2e-6
"""Of a weight of size 0.2 after three steps at learning rate 1e-3: gradients are summed in another order."""


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = STEPS
    yield server
    server.close()


def home(root: Path, loopback: Loopback, orchestrator: Orchestrator) -> Home:
    base = write_base(root / "base")
    return Home(root, base, loopback.address(), orchestrator.url, STEPS)


def handed_over(one: Home, version: int) -> bool:
    return (one.outbox / keys.version_name(version)).is_dir()


def finish(process: ForkedProcess, log: Path) -> None:
    try:
        assert process.wait(timeout=150) == 0, log.read_text()[-4000:]
    finally:
        kill_all(process)


@pytest.mark.timeout(900)  # of waits on a busy machine; half a minute of work
def test_a_run_moves_from_one_process_to_two_that_share_packs_and_back(
    tmp_path: Path, loopback: Loopback, orchestrator: Orchestrator, deadline: Callable[..., object]
) -> None:
    store = make_store(tmp_path / "alone" / "store")
    for step in range(STEPS):
        fill_step(store, step)
    run = config(orchestrator.url, STEPS)
    make_trainer(tmp_path / "alone", write_base(tmp_path / "base"), store, orchestrator, run).run()

    (tmp_path / "moving").mkdir()
    moving = home(tmp_path / "moving", loopback, orchestrator)
    written = {}
    for version, processes in ((1, 1), (2, 2), (3, 1)):
        if version > 1:  # what lies there is handed over once more: the same bytes, whoever writes them
            (moving.outbox / keys.version_name(version - 1)).rename(tmp_path / f"first-{version - 1}")
            written[version - 1] = (tmp_path / f"first-{version - 1}" / "model.safetensors").read_bytes()
        moving.configure(run.model_copy(update={"trainer": TrainerSettings(context_parallel=processes)}))
        process = moving.start(processes)
        try:
            if version > 1:
                deadline("the version to be handed over again", partial(handed_over, moving, version - 1), seconds=120)
                assert moving.weights(version - 1) == written[version - 1]
            fill_step(moving.store, version - 1)
            if version < STEPS:
                deadline("the version to be handed over", partial(handed_over, moving, version), seconds=120)
                deadline("its state to be saved", partial(moving.has_state, version), seconds=120)
            else:
                finish(process, moving.log)
        finally:
            kill_all(process)
        assert moving.has_state(version)
    assert len([info for info in moving.store.list(keys.trainer_state(2)) if info.key.endswith(".tensors")]) == 2
    wanted, found = (
        load_file(outbox / "v000003" / "model.safetensors") for outbox in (tmp_path / "alone" / "outbox", moving.outbox)
    )
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=TOLERANCE)
    for step in range(STEPS):
        reports = [StepMetrics.from_json(one.get(keys.step_metrics(step))) for one in (store, moving.store)]
        assert reports[0].loss == pytest.approx(reports[1].loss, abs=1e-5)
        assert reports[0].completion_tokens == reports[1].completion_tokens


def test_a_stop_of_two_processes_stops_both_and_is_not_taken_for_the_end(
    tmp_path: Path, loopback: Loopback, orchestrator: Orchestrator, deadline: Callable[..., object]
) -> None:
    waiting = home(tmp_path, loopback, orchestrator)
    process = waiting.start(2)
    try:
        deadline("the first version", lambda: (waiting.outbox / "v000000").is_dir(), seconds=90)
        process.terminate()
        assert process.wait(timeout=300) != 0
        assert waiting.log.read_text().count("asked to stop while waiting for batch of the next step") == 2
    finally:
        kill_all(process)


def test_processes_that_packs_cannot_be_shared_by_say_so_and_end(
    tmp_path: Path, loopback: Loopback, orchestrator: Orchestrator
) -> None:
    odd = home(tmp_path, loopback, orchestrator)
    odd.configure(config(orchestrator.url, STEPS, trainer=TrainerSettings(context_parallel=2)))
    process = odd.start(1)
    try:
        assert process.wait(timeout=300) == EXIT_INPUT_WRONG
    finally:
        kill_all(process)
    said = odd.log.read_text()
    assert "spec.trainer.settings.contextParallel" in said
    assert "the trainer has 1 ranks, and 2 are to share each pack; allowed: a divisor of 1" in said


LONELY = """
import sys, time
from shoal.training.parallel import start_ranks
ranks = start_ranks("cpu", deadline_seconds=15.0)
if ranks.rank == 1:
    time.sleep(35) if sys.argv[1] == "hangs" else sys.exit(0)
else:
    ranks.all(True, "the step to be read by all")
"""


@pytest.mark.parametrize("peer", ["hangs", "leaves"])
def test_a_peer_that_hangs_or_leaves_ends_the_wait_with_a_word_on_what_was_waited_for(
    tmp_path: Path, loopback: Loopback, peer: str
) -> None:
    script = tmp_path / "lonely.py"
    script.write_text(LONELY)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        str(script),
        peer,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "waited" in done.stderr
    assert "for the other ranks to agree on the step to be read by all" in done.stderr
