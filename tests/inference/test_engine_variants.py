"""The engine as pools may have it: bfloat16, little memory, masked dimensions, two ranks, compiled. Proofs against a prefill by transformers."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
import torch
from transformers import Qwen3ForCausalLM

from shoal.contracts.proof_profile import PROFILE_FILE
from shoal.contracts.thresholds import ProofThresholds
from shoal.inference.completions import Completion, Request
from shoal.toploc import codec

LENGTH = 300
REQUESTS = [Request(tuple(range(40, 70 + number)), number, 0.9, 190) for number in range(20)]
"""Prompts that share their beginning, and completions that outgrow their first block of the cache."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def generate(requests: Sequence[Request] = REQUESTS) -> dict[str, Any]:
    return {"do": "generate", "requests": [tiny_policy.request_json(request) for request in requests]}


@torch.inference_mode()
def errors_of(
    model: Qwen3ForCausalLM,
    completions: Sequence[Completion],
    masked: Any = None,
    requests: Sequence[Request] = REQUESTS,
) -> list[codec.ProofErrors]:
    found: list[codec.ProofErrors] = []
    for request, completion in zip(requests, completions, strict=True):
        prompt, count = list(request.prompt_tokens), len(completion.tokens)
        hidden = model.model(torch.tensor([prompt + completion.tokens])).last_hidden_state[0]
        states = hidden[len(prompt) - 1 : len(prompt) + count - 1].float().numpy()
        found += codec.compare(codec.parse(completion.proofs, count, 128), states, masked)
    return found


def test_bfloat16_with_little_memory_proves_what_a_prefill_finds(folder: Path) -> None:
    masks = {"first": [3, 64, 127], "second": [0, 1, 2, 3]}
    models = {}
    states = torch.linspace(-3.0, 3.0, 128).bfloat16()
    head = {"do": "head", "states": states.tolist()}
    for seed, (name, masked) in enumerate(masks.items()):
        models[name] = tiny_policy.make_policy(folder / name, seed, dtype=torch.bfloat16, tied=True)
        (folder / name / PROFILE_FILE).write_bytes(tiny_policy.proof_profile(masked).to_json())
    results = tiny_policy.run_engine(
        [
            {"do": "start", "folder": str(folder / "first"), "length": LENGTH, "settings": {"kv_cache_bytes": 1 << 20}},
            generate(),
            {"do": "preemptions"},
            {"do": "swap", "folder": str(folder / "second")},
            generate(),
            {"do": "version", "found": "0.33.0"},
            head,
        ]
    ).results
    found = results[6]
    wanted = states.double() @ models["second"].lm_head.weight.double().T
    assert found["dtype"] == "torch.float32", "logits of halves are rounded, and validators' are not"
    assert found["logits"] == pytest.approx(wanted.tolist(), abs=1e-4), (
        "the head is not that of the version behind the swap"
    )
    assert results[5].startswith("vLLM 0.33.0 is installed, but the proof hooks are tested with 0.32.x"), (
        "another may pair wrongly"
    )
    assert results[2] > 0, "nothing was preempted: give the engine less memory"
    for name, made in (("first", results[1]), ("second", results[4])):
        assert max(len(completion.tokens) for completion in made) > 128
        errors = errors_of(models[name], made, tiny_policy.proof_profile(masks[name]).mask())
        assert all(codec.accept(error, ProofThresholds()) for error in errors)
        unmasked = errors_of(models[name], made)
        assert max(error.exponent_mismatches for error in unmasked) > 0, "the mask makes no difference"
    assert not all(codec.accept(error, ProofThresholds()) for error in errors_of(models["first"], results[4]))


def exact(errors: Sequence[codec.ProofErrors]) -> bool:
    return (
        max(error.exponent_mismatches + error.sign_mismatches for error in errors) <= 1
        and max(error.mantissa_error_mean for error in errors) < 0.05
    )


def swapped_is_fresh(folder: Path, settings: dict[str, Any]) -> None:
    """An engine that was swapped to a policy makes what that policy makes, on every rank and in what was compiled."""
    models = {name: tiny_policy.make_policy(folder / name, seed) for seed, name in enumerate(("old", "new"))}
    start = {"do": "start", "folder": str(folder / "old"), "length": LENGTH, "settings": settings}
    results = tiny_policy.run_engine(
        [start, generate(), {"do": "swap", "folder": str(folder / "new")}, generate()]
    ).results
    assert exact(errors_of(models["old"], results[1]))
    assert exact(errors_of(models["new"], results[3]))
    # A rank that kept the old weights would not only prove other states: what it adds to every layer would be another model's.
    assert not exact(errors_of(models["old"], results[3]))
    new = models["new"]
    for request, completion in zip(REQUESTS, results[3], strict=True):
        sequence = torch.tensor([[*request.prompt_tokens, *completion.tokens]])
        with torch.inference_mode():
            logits = new(sequence).logits[0, len(request.prompt_tokens) - 1 : -1] / request.temperature
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)


def test_a_swap_reaches_every_rank_of_a_tensor_parallel_engine(folder: Path) -> None:
    swapped_is_fresh(folder, {"tensor_parallel_size": 2})


@pytest.mark.soak
def test_a_swap_reaches_what_was_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    swapped_is_fresh(folder, {"compiled": True})


ARGUMENTS = """
import sys
from pathlib import Path
from shoal.contracts.pools import EngineSettings
from shoal.contracts.routes import RouteShape
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.engine import _engine_arguments
checkpoint, settings = read_checkpoint(Path(sys.argv[1])), EngineSettings(compiled=True)
for routes in (None, RouteShape(layers=1, choices=2, experts=8)):
    print("eager:", _engine_arguments(checkpoint, 64, 1, settings, None, *([routes] if routes else []))["enforce_eager"])
"""


def test_an_engine_that_records_routes_captures_no_graph_before_its_routers_can_tell(folder: Path) -> None:
    """A CUDA graph that vLLM captured at its start would replay without the copy, and the routes of every token would be zeros."""
    tiny_policy.make_policy(folder / "a", 1)
    done = subprocess.run([sys.executable, "-c", ARGUMENTS, folder / "a"], capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith("eager:")] == [
        "eager: False",
        "eager: True",
    ], done.stderr[-2000:]
