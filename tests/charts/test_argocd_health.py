"""Health of our kinds in Argo CD: `charts/shoal/files/argocd/health.lua` over recorded objects, in the form of Argo CD's own tests.

`health_test.yaml` has what Argo CD's `resource_customizations` have: for each input the health that the script must give.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers import ROOT, lacking
from shoal_operator.api import KINDS
from shoal_operator.api.manifest import check
from shoal_operator.engine.conditions import condition
from shoal_operator.reconcile.queue import PENDING, QueueTurn

SCRIPT = ROOT / "charts" / "shoal" / "files" / "argocd" / "health.lua"
FOLDER = Path(__file__).parent / "argocd"
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]


def health(found: dict[str, Any]) -> dict[str, str]:
    """What the script says of an object, by a Lua as strict as Argo CD's: no libraries but the basic ones."""
    try:
        lupa: Any = importlib.import_module("lupa")
    except ImportError:
        lacking("lupa", "run `make setup`")
    lua = lupa.LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    run = lua.eval(
        "function(code, obj) return load(code, 'health', 't', {obj = obj, ipairs = ipairs, pairs = pairs})() end"
    )
    said = run(SCRIPT.read_text(), lua.table_from(found, recursive=True))
    return {key: str(value) for key, value in said.items()}


@pytest.mark.parametrize("case", TESTS, ids=lambda case: Path(case["inputPath"]).stem)
def test_the_script_gives_the_health_that_is_recorded(case: dict[str, Any]) -> None:
    found = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert health(found) == case["healthStatus"]


def test_every_kind_and_every_health_is_among_the_inputs() -> None:
    inputs = [yaml.safe_load((FOLDER / case["inputPath"]).read_text()) for case in TESTS]
    assert {each["kind"] for each in inputs} == set(KINDS)
    assert {case["healthStatus"]["status"] for case in TESTS} == {"Healthy", "Progressing", "Degraded", "Suspended"}


def test_every_input_is_an_object_of_ours() -> None:
    for path in (FOLDER / "testdata").iterdir():
        found = yaml.safe_load(path.read_text())
        model, mistakes = check({key: value for key, value in found.items() if key != "status"})
        assert not mistakes, path
        assert type(model).model_validate(found).metadata.name.startswith("sums")


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        (PENDING, "Progressing"),
        ("AdmissionChecks", "Progressing"),
        ("Preempted", "Progressing"),
        ("BackOff", "Progressing"),
        ("Deactivated", "Suspended"),
        ("KueueMissing", "Degraded"),
        ("QueueUnusable", "Degraded"),
    ],
)
def test_a_run_that_waits_in_its_queue_is_not_broken(reason: str, wanted: str) -> None:
    found = yaml.safe_load((FOLDER / "testdata" / "run_starting.yaml").read_text())
    conditions = [each for each in found["status"]["conditions"] if each["type"] not in ("Ready", "Queued")]
    waits = QueueTurn(True, reason=reason, message="waits for room").condition()
    found["status"]["conditions"] = [*conditions, waits, condition("Ready", False, reason, "waits for room")]
    assert health(found) == {"status": wanted, "message": "waits for room"}
    broken = condition("Ready", False, "FlavorUnreadable", "no such flavour")  # by a pass that failed later
    found["status"]["conditions"] = [*conditions, waits, broken]
    assert health(found)["status"] == "Degraded"
