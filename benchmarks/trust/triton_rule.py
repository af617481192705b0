"""Is the rule by which we draw tokens the one that vLLM's second model runner has on a GPU? Its Triton kernel says so, run by Triton's interpreter.

In: random logits, seeds and positions. Out: how many tokens and how many uniforms are the same (`measure`). The kernel's file is loaded by itself,
with Triton in place of what vLLM puts there on a machine without a GPU, in a process of its own: Triton interprets its own library only where it was
told so before its first import. Some ten minutes on one core; called by `python -m benchmarks.trust rule` and by tests with fewer.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shoal.sampling import gumbel

VOCABULARY, TOKENS, UNIFORMS = 2_000, 20_000, 10_000_000
PORTION = 500
"""Tokens a call of the interpreted kernel."""
POSITIONS = 40_000


def measure(tokens: int = TOKENS, uniforms: int = UNIFORMS, seed: int = 1) -> dict[str, Any]:
    """Draw `tokens` tokens and `uniforms` uniforms both ways."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        return own.submit(_measured, tokens, uniforms, seed).result()


def _measured(tokens: int, uniforms: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    with _interpreted() as triton:
        kernel = _load_kernel(triton)
        equal = sum(
            _equal_tokens(kernel, generator, min(PORTION, tokens - start)) for start in range(0, tokens, PORTION)
        )
        size = 1_000_000
        same = sum(
            _equal_uniforms(kernel, triton, generator, min(size, uniforms - start))
            for start in range(0, uniforms, size)
        )
    return {
        "vocabulary": VOCABULARY,
        "tokens": tokens,
        "tokens_equal": equal,
        "uniforms": uniforms,
        "uniforms_equal": same,
    }


def _equal_tokens(kernel: ModuleType, generator: torch.Generator, count: int) -> int:
    logits = torch.randn(count, VOCABULARY, generator=generator) * 3.0
    seeds, positions = _places(generator, count)
    rows = torch.arange(count, dtype=torch.int32)
    theirs = kernel.gumbel_sample(
        logits, rows, torch.ones(count), seeds, positions, apply_temperature=False, is_drafting=False
    )
    return int((gumbel.draw(logits, seeds, positions) == theirs).sum())


def _equal_uniforms(kernel: ModuleType, triton: Any, generator: torch.Generator, count: int) -> int:
    seeds, positions = _places(generator, count)
    tokens = torch.randint(0, 200_000, (count,), generator=generator)
    found = torch.empty(count)
    block = 1 << 16
    kernel.uniforms[(triton.cdiv(count, block),)](found, seeds, positions, tokens, count, block)
    return int((gumbel.uniforms(seeds, positions, tokens).view(torch.int32) == found.view(torch.int32)).sum())


def _places(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    seeds = torch.randint(0, (1 << 63) - 1, (count,), generator=generator)
    return seeds, torch.randint(0, POSITIONS, (count,), generator=generator)


@contextlib.contextmanager
def _interpreted() -> Iterator[Any]:
    """Triton as its interpreter, which functions take that are made meanwhile."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton

        yield triton
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


OF_EACH = """

@triton.jit
def uniforms(found, seeds, positions, tokens, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    seed, position = tl.load(seeds + place, mask=mask), tl.load(positions + place, mask=mask)
    tl.store(found + place, murmur3_uniform32(seed, position, tl.load(tokens + place, mask=mask)), mask=mask)
"""
"""A kernel beside theirs that stores the uniforms themselves."""


def _load_kernel(triton: Any) -> ModuleType:
    """vLLM's file, with the kernel above behind it; vLLM itself is not imported."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "v1/worker/gpu/sample/gumbel.py").read_text() + OF_EACH
    utilities: Any = ModuleType("vllm.triton_utils")
    utilities.triton, utilities.tl = triton, triton.language
    names = {"vllm": ModuleType("vllm"), "vllm.triton_utils": utilities}
    replaced = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        with tempfile.TemporaryDirectory() as folder:  # Triton reads a function's source from its file
            held = Path(folder) / "gumbel_kernel.py"
            held.write_text(source)
            spec = importlib.util.spec_from_file_location(held.stem, held)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        for name, old in replaced.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
    return module
