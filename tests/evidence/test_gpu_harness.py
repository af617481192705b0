"""`python -m benchmarks.gpu`: a part that dies, overruns or writes rubbish costs its own result alone; the whole at tiny sizes on the CPU."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import __main__ as harness
from benchmarks.gpu.__main__ import FAILED, OVER_TIME, PASSED, Part, run_part, run_parts

HEAD = "import pathlib, sys, time\nfrom benchmarks.gpu.part import run_part\n"
RESULT = "pathlib.Path(sys.argv[sys.argv.index('--result') + 1])"
PARTS = {
    "good": "run_part(lambda asked: asked.note(tokens=7, tiny=asked.tiny))",
    "dies": "print('on its way')\nsys.exit('the device is gone')",
    "dies_late": "def measure(asked):\n    asked.note(kept=1)\n    sys.exit('too hot')\nrun_part(measure)",
    "overruns": "def measure(asked):\n    asked.note(kept=1)\n    time.sleep(600)\nrun_part(measure)",
    "no_object": f"{RESULT}.write_text('[1]')",
    "no_json": f"{RESULT}.write_text('{{')",
    "no_figure": f"{RESULT}.write_text('{{\"mfu\": NaN}}')",
    "silent": "",
}


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    for name, text in PARTS.items():
        (tmp_path / f"gpu_part_{name}.py").write_text(HEAD + text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    return {name: Part(name, f"gpu_part_{name}", 1, "a test") for name in PARTS}


def test_a_part_that_fails_leaves_the_others(parts: dict[str, Part], tmp_path: Path) -> None:
    target = tmp_path / "gpu.json"
    named = ("dies", "no_object", "no_json", "no_figure", "silent")
    found = run_parts([parts[name] for name in named], 200, target, tiny=True)["parts"]
    assert {name: found[name]["outcome"] for name in named} == dict.fromkeys(named, FAILED)
    assert [found[name]["last_lines"][-1].split(":")[0] for name in named] == [
        "it wrote no result",
        "its result is no JSON object",
        "its result is no JSON",
        "its result is no JSON",
        "it wrote no result",
    ]
    assert "the device is gone" in found["dies"]["last_lines"]
    assert json.loads(target.read_text())["parts"].keys() == set(named)


def test_figures_before_a_failure_are_kept(parts: dict[str, Part], tmp_path: Path) -> None:
    failed = run_part(parts["dies_late"], 60, "cpu", tiny=True)
    assert (failed["outcome"], failed["figures"], failed["last_lines"]) == (FAILED, {"kept": 1}, ["too hot"])
    assert run_part(parts["good"], 60, "cpu", tiny=True)["outcome"] == PASSED
    late = run_part(parts["overruns"], 8, "cpu", tiny=True)
    assert (late["outcome"], late["figures"]) == (OVER_TIME, {"kept": 1})
    assert run_part(parts["good"], 0.1, "cpu", tiny=True)["outcome"] == OVER_TIME


def test_without_a_device_a_part_says_so_in_a_line(parts: dict[str, Part]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here, so the line for machines without one cannot be seen")
    found = run_part(parts["good"], 60, "cuda", tiny=True)
    assert found["outcome"] == FAILED
    assert found["last_lines"][0] == "no CUDA device is visible here (torch.cuda.is_available() is False)"


@pytest.mark.soak
def test_the_whole_at_tiny_sizes_on_the_cpu(tmp_path: Path) -> None:
    target = tmp_path / "gpu.json"
    found = run_parts(harness.PARTS, 3600, target, tiny=True)
    assert {name: part["outcome"] for name, part in found["parts"].items()} == {
        part.name: PASSED for part in harness.PARTS
    }
    assert found["parts"]["tests"]["figures"]["failed"] == 0
    assert found["parts"]["tests"]["figures"]["skipped"] > 0
    assert {row["side"] for row in found["parts"]["trainer"]["figures"]["rows"]} >= {"ours"}
    measured = {name: part["figures"] for name, part in found["parts"].items()}
    assert measured["sampling"]["uniforms_equal_cpu"] == measured["sampling"]["uniforms"]
    assert {"demo_bfloat16", "demo_float32"} <= set(measured["gaps"])
    assert set(measured["proofs"]["hidden_128_tiny"]["proofs_equal"].values()) == {8}
