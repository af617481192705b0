"""A swap of weights in place, on types of models whose layers are packed differently: the engine then makes what one makes that started on them.

What vLLM packs for its kernels at load is no copy of the checkpoint, and each kind of layer has its own way to pack. One that is not packed again
computes something else in silence.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
import torch
import transformers
from benchmarks.model_types.judge import judged
from model_types import TINY, TYPES
from transformers import AutoModelForCausalLM

from shoal.inference.completions import Completion, Request

REQUESTS = [Request(tuple(range(40, 45 + 3 * number)), number, 0.9, 24) for number in range(6)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "glm4": ("glm4", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "padded experts": ("qwen3_moe", {"moe_intermediate_size": 48}),  # no width that the CPU's kernel takes
    "glm4_moe": ("glm4_moe", {}),
    "deepseek_v3": ("deepseek_v3", {}),  # with plain positions: `engine.NO_ROTARY_KERNEL`
}
TOGETHER = (("qwen2", "glm4"), ("qwen3_moe", "padded experts"), ("glm4_moe", "deepseek_v3"))
"""Cases that one process has engines for, one after the other."""


def make(folder: Path, case: str, seed: int) -> Any:
    """Write a random model with the byte-level tokenizer; returns it. Norms and biases are random too, so that an old one shows."""
    name, changes = CASES[case]
    wide = {"hidden_size": 128, "vocab_size": 258, "initializer_range": 0.08}  # a proof has 128 dimensions
    torch.manual_seed(seed)
    kind = TYPES[name]
    config = getattr(transformers, kind.config)(**(TINY | kind.fields | wide | changes))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    tiny_policy.save_tokenizer(folder)
    return model


@dataclasses.dataclass
class Swapped:
    """What an engine made that started on the new weights, then with the old ones in their place, then with the new ones again."""

    model: Any
    fresh: list[Completion]
    old: list[Completion]
    swapped: list[Completion]


@functools.cache
def swapped(together: tuple[str, ...]) -> dict[str, Swapped]:
    generate = {"do": "generate", "requests": [tiny_policy.request_json(request) for request in REQUESTS]}
    models: dict[str, Any] = {}
    commands: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for case in together:
            old, new = Path(root) / case / "old", Path(root) / case / "new"
            make(old, case, 1)
            models[case] = make(new, case, 2)
            commands += [{"do": "start", "folder": str(new)}, generate]
            commands += [{"do": "swap", "folder": str(old)}, generate, {"do": "swap", "folder": str(new)}, generate]
        results = tiny_policy.run_engine(commands).results
    return {case: Swapped(models[case], *results[6 * at + 1 : 6 * at + 6 : 2]) for at, case in enumerate(together)}


def of(case: str) -> Swapped:
    return swapped(next(each for each in TOGETHER if case in each))[case]


@pytest.mark.parametrize("case", CASES)
def test_a_swapped_engine_makes_what_it_made_when_it_started_on_these_weights(case: str) -> None:
    made = of(case)
    assert made.swapped == made.fresh, "tokens, log-probabilities and proofs"
    assert made.swapped != made.old


@pytest.mark.parametrize("case", CASES)
def test_it_makes_what_the_model_makes(case: str) -> None:
    made = of(case)
    for request, completion in zip(REQUESTS, made.swapped, strict=True):
        sequence = torch.tensor([[*request.prompt_tokens, *completion.tokens]])
        with torch.inference_mode():
            logits = made.model(sequence).logits[0, len(request.prompt_tokens) - 1 : -1] / request.temperature
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_a_validator_draws_its_tokens_again_and_accepts_its_proofs_and_no_others(case: str) -> None:
    made = of(case)
    eos = frozenset({1})
    found = judged(made.model, eos, REQUESTS, made.swapped)
    assert (found.redraw, found.proved) == ("yes", "yes")
    assert found.proofs == len(REQUESTS)
    old = judged(
        made.model, eos, REQUESTS, made.old
    )  # of other weights: equal noise draws some equal tokens from flat distributions
    assert old.redraw.startswith("no: ")
    assert old.refused == old.proofs
    reseeded = [dataclasses.replace(each, seed=each.seed + 1) for each in REQUESTS]
    assert judged(made.model, eos, reseeded, made.swapped).redraw.startswith("no: ")
