"""The table of model types: what stands on the page is what the trainer makes of a tiny model of each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.model_types.__main__ import SERVED, counts
from expert_models import write_model
from model_types import MOST_GAP, REFUSED, TYPES, config_of, tried
from tools.docs.model_types import model_types_page
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from samples import rollout
from servers import ROOT
from shoal.proofs.forward import decode_batch
from shoal.validation.models import load_model
from shoal.validation.prefill import prefill

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
    kept = {key: value for key, value in stated["types"][name].items() if key not in ("gap_float64", *SERVED)}
    assert {key: value for key, value in found.items() if key != "gap_float64"} == kept


@pytest.mark.parametrize("name", TYPES)
def test_a_validator_finds_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """Of each token of a row, and of the tokens that calibration draws."""
    base = write_model(tmp_path / "base", config_of(TYPES[name]))
    whole = AutoModelForCausalLM.from_pretrained(base, dtype="auto").eval()
    row = rollout(prompt_tokens=[2, 3, 5], completion_tokens=[7, 11, 13, 1], temperature=0.7)
    tokens = torch.tensor([[*row.prompt_tokens, *row.completion_tokens]])
    with torch.inference_mode():
        logits = whole(tokens).logits[0]
    wanted = torch.log_softmax(logits[2:-1] / row.temperature, dim=-1)
    found = prefill(load_model(base), row, frozenset({1}))
    np.testing.assert_allclose(found.logprobs, wanted.gather(1, tokens[0, 3:, None])[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.eos, wanted[:, 1].exp(), rtol=1e-4, atol=1e-6)

    seen: list[torch.Tensor] = []

    def draw(logits: torch.Tensor, read: torch.Tensor, step: int) -> torch.Tensor:
        seen.append(logits[0])
        return tokens[:, 3 + step]

    decode_batch(whole, [row.prompt_tokens], 4, draw)
    torch.testing.assert_close(torch.stack(seen), logits[2:-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_is_refused_for_the_reason_on_the_page(stated: dict[str, Any], name: str, tmp_path: Path) -> None:
    found = tried(REFUSED[name], tmp_path)
    assert found == stated["types"][name]
    assert found["reason"]
    assert found["needed"]


def test_the_page_has_every_type_once(stated: dict[str, Any]) -> None:
    assert set(stated["types"]) == set(TYPES) | set(REFUSED)
    assert {key: stated[key] for key in counts({})} == counts(stated["types"])
    assert stated["model_types_trained"] == len(TYPES)
    page = model_types_page()
    assert all(page.count(f"| `{name}` |") == 1 for name in stated["types"])
