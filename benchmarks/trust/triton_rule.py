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
BLOCK, DEVICE_BLOCK = 1 << 16, 1 << 10
"""Uniforms of a program: interpreted ones are slow to begin, compiled ones live in registers."""


def measure(tokens: int = TOKENS, uniforms: int = UNIFORMS, seed: int = 1) -> dict[str, Any]:
    """Draw `tokens` tokens and `uniforms` uniforms both ways."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        return own.submit(_measured, tokens, uniforms, seed).result()


def _measured(tokens: int, uniforms: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    with _interpreted() as triton, tempfile.TemporaryDirectory() as folder:
        kernel = load_kernel(triton, vllm_file(), Path(folder))
        equal = sum(
            equal_tokens(kernel, generator, generator, min(PORTION, tokens - start))
            for start in range(0, tokens, PORTION)
        )
        size = 1_000_000
        same = sum(
            equal_uniforms(kernel, triton, generator, min(size, uniforms - start)) for start in range(0, uniforms, size)
        )
    return {
        "vocabulary": VOCABULARY,
        "tokens": tokens,
        "tokens_equal": equal,
        "uniforms": uniforms,
        "uniforms_equal": same,
    }


def equal_tokens(
    kernel: ModuleType,
    generator: torch.Generator,
    hosts: torch.Generator,
    count: int,
    vocabulary: int = VOCABULARY,
) -> int:
    """How many of `count` tokens the kernel and our rule both draw from random logits, on the device of `generator`; `hosts` is on the CPU."""
    device = generator.device
    logits = torch.randn(count, vocabulary, generator=generator, device=device).mul_(3.0)
    seeds, positions = (each.to(device) for each in places(hosts, count))
    rows = torch.arange(count, dtype=torch.int32, device=device)
    theirs = kernel.gumbel_sample(
        logits, rows, torch.ones(count, device=device), seeds, positions, apply_temperature=False, is_drafting=False
    )
    return int((gumbel.draw(logits, seeds, positions) == theirs).sum())


def equal_uniforms(kernel: ModuleType, triton: Any, generator: torch.Generator, count: int, device: str = "cpu") -> int:
    """How many of `count` uniforms are the same, to the bit."""
    seeds, positions = (each.to(device) for each in places(generator, count))
    tokens = torch.randint(0, 200_000, (count,), generator=generator).to(device)
    found = torch.empty(count, device=device)
    block = BLOCK if device == "cpu" else DEVICE_BLOCK
    kernel.uniforms[(triton.cdiv(count, block),)](found, seeds, positions, tokens, count, block)
    return int((gumbel.uniforms(seeds, positions, tokens).view(torch.int32) == found.view(torch.int32)).sum())


def places(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeds and positions on the CPU, int64."""
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


def vllm_file() -> Path:
    """Where the installed vLLM has its kernel."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "v1/worker/gpu/sample/gumbel.py"


def load_kernel(triton: Any, file: Path, folder: Path) -> ModuleType:
    """vLLM's file with the kernel above behind it, written into `folder`: Triton reads a function's source there. vLLM itself is not imported."""
    utilities: Any = ModuleType("vllm.triton_utils")
    utilities.triton, utilities.tl = triton, triton.language
    names = {"vllm": ModuleType("vllm"), "vllm.triton_utils": utilities}
    replaced = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        held = folder / "gumbel_kernel.py"
        held.write_text(file.read_text() + OF_EACH)
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
