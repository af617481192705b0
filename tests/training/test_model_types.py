"""The table of model types: what stands on the page is what the trainer makes of a tiny model of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from model_types import MOST_GAP, REFUSED, TYPES, tried
from tools.docs.model_types import model_types_page
from transformers.utils.logging import disable_progress_bar

from servers import ROOT

disable_progress_bar()
RESULT = ROOT / "benchmarks" / "results" / "model_types.json"


@pytest.fixture(scope="module")
def stated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULT.read_text())
    return found


@pytest.mark.parametrize("name", TYPES)
def test_a_type_trains_as_in_float64_and_is_written_as_it_was_read(
    stated: dict[str, Any], name: str, tmp_path: Path
) -> None:
    found = tried(TYPES[name], tmp_path)
    assert found["gap_float64"] <= MOST_GAP
    assert found["same_bytes"]
    kept = {key: value for key, value in stated["types"][name].items() if key not in ("gap_float64", "served")}
    assert {key: value for key, value in found.items() if key != "gap_float64"} == kept


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_is_refused_for_the_reason_on_the_page(stated: dict[str, Any], name: str, tmp_path: Path) -> None:
    found = tried(REFUSED[name], tmp_path)
    assert found == stated["types"][name]
    assert found["reason"]
    assert found["needed"]


def test_the_page_has_every_type_once(stated: dict[str, Any]) -> None:
    assert set(stated["types"]) == set(TYPES) | set(REFUSED)
    assert stated["model_types_trained"] == len(TYPES)
    page = model_types_page()
    assert all(page.count(f"| `{name}` |") == 1 for name in stated["types"])
