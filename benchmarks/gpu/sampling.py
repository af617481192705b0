"""The sampler's rule on a GPU: the same bits and tokens as on a CPU and as vLLM's compiled Triton kernel, and what it costs.

In: random logits, seeds and positions. Out: how many uniforms and tokens are the same, and microseconds for a batch beside other ways to draw. vLLM
is too large to carry to the machine: its one file is compiled where it was brought along (`carried`), and left out with a reason otherwise.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import carried
from benchmarks.gpu.part import Asked, run_part
from benchmarks.gpu.timing import seconds_of
from benchmarks.trust import triton_rule
from shoal.sampling import gumbel

VOCABULARIES = (2_000, 152_064)
DRAWS, UNIFORMS = 20_480, 10_000_000
ROWS = 256
"""Of a batch, as an engine decodes them together."""
REPEATS = 20


def measure(asked: Asked) -> None:
    device, end = asked.device, time.monotonic() + asked.left
    vocabularies = (200, 2_000) if asked.tiny else VOCABULARIES
    draws, uniforms, rows = (64, 20_000, 8) if asked.tiny else (DRAWS, UNIFORMS, ROWS)
    generator = torch.Generator(device=device).manual_seed(1)
    asked.note(uniforms=uniforms, uniforms_equal_cpu=_uniforms(device, uniforms), left_out=[])
    with tempfile.TemporaryDirectory() as folder:
        kernel, reason = None, ""
        if device == "cpu":
            reason = "Triton compiles for a GPU only; `benchmarks.trust rule` has its interpreter"
        elif not carried.KERNEL.exists():
            reason = "vLLM's kernel was not brought along (`benchmarks.gpu.carried`)"
        else:
            import triton

            kernel = triton_rule.load_kernel(triton, carried.KERNEL, Path(folder))
        cost = _costs(device, generator, rows, vocabularies[-1], kernel)
        asked.note(batch={"rows": rows, "words": vocabularies[-1]}, microseconds_a_batch=cost)
        if kernel is None:
            asked.note(left_out=[reason])
        else:
            asked.note(triton=_against_triton(kernel, triton, device, vocabularies, draws, uniforms, end))
    for vocabulary in vocabularies:
        asked.note(
            **{f"draws_at_{vocabulary}_words": _draws(device, generator, vocabulary, draws, rows, asked)},
        )


def _uniforms(device: str, count: int) -> int:
    """How many are the same on the device and on the CPU, to the bit."""
    generator, same, size = torch.Generator().manual_seed(2), 0, 1_000_000
    for start in range(0, count, size):
        seeds, positions = triton_rule.places(generator, min(size, count - start))
        tokens = torch.randint(0, 200_000, seeds.shape, generator=generator)
        ours = gumbel.uniforms(seeds, positions, tokens)
        theirs = gumbel.uniforms(*(each.to(device) for each in (seeds, positions, tokens))).cpu()
        same += int((ours.view(torch.int32) == theirs.view(torch.int32)).sum())
    return same


def _draws(
    device: str, generator: torch.Generator, vocabulary: int, draws: int, rows: int, asked: Asked
) -> dict[str, float]:
    """Tokens drawn from equal float32 logits on both devices; where they differ, how far the device's is behind on the CPU."""
    host, count, equal, farthest = torch.Generator().manual_seed(vocabulary), 0, 0, 0.0
    cores = torch.get_num_threads()
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        while count < draws and (count == 0 or asked.left > 0):
            logits = torch.randn(rows, vocabulary, generator=generator, device=device).mul_(3.0)
            seeds, positions = triton_rule.places(host, rows)
            theirs = gumbel.draw(logits, seeds.to(device), positions.to(device)).cpu()
            parts = max(1, rows // cores)  # a part a thread: the rule's own steps are small ones
            cut = [each.split(parts) for each in (logits.cpu(), theirs, seeds, positions)]
            for gaps, drawn in threads.map(gumbel.redraw, *cut):
                count += len(drawn)
                equal += int((gaps == 0.0).sum())
                farthest = max(farthest, float(gaps.max()))
    return {"draws": count, "equal_cpu": equal, "largest_gap_nats": farthest}


def _against_triton(
    kernel: Any, triton: Any, device: str, vocabularies: tuple[int, ...], draws: int, uniforms: int, end: float
) -> dict[str, Any]:
    generator, size = torch.Generator().manual_seed(3), 1_000_000
    found: dict[str, Any] = {
        "uniforms": uniforms,
        "uniforms_equal": sum(
            triton_rule.equal_uniforms(kernel, triton, generator, min(size, uniforms - start), device)
            for start in range(0, uniforms, size)
        ),
    }
    on_device = torch.Generator(device=device).manual_seed(4)
    for vocabulary in vocabularies:
        count = equal = 0
        while count < draws and (count == 0 or time.monotonic() < end):
            equal += triton_rule.equal_tokens(kernel, on_device, generator, ROWS, vocabulary)
            count += ROWS
        found[f"draws_at_{vocabulary}_words"] = {"draws": count, "equal": equal}
    return found


def _costs(device: str, generator: torch.Generator, rows: int, vocabulary: int, kernel: Any) -> dict[str, float]:
    """Microseconds to draw a token for each row, by name; the median of some repeats, waiting for the device each time."""
    logits = torch.randn(rows, vocabulary, generator=generator, device=device).mul_(3.0)
    seeds, positions = (each.to(device) for each in triton_rule.places(torch.Generator().manual_seed(5), rows))
    own = [torch.Generator(device=device).manual_seed(row) for row in range(rows)]

    def one_at_a_time() -> torch.Tensor:
        noise = torch.empty_like(logits)
        for row, generator in enumerate(own):
            noise[row].exponential_(generator=generator)
        return logits.softmax(dim=-1).div_(noise).argmax(dim=-1)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "rule_in_torch": lambda: gumbel.draw(logits, seeds, positions),
        "softmax_and_multinomial": lambda: torch.multinomial(logits.softmax(dim=-1), 1),
        "softmax_and_exponential": lambda: (
            logits.softmax(dim=-1).div_(torch.empty_like(logits).exponential_()).argmax(dim=-1)
        ),
        "generator_a_request": one_at_a_time,
    }
    if kernel is not None:
        ones, numbers = torch.ones(rows, device=device), torch.arange(rows, dtype=torch.int32, device=device)
        ways["rule_in_vllms_triton_kernel"] = lambda: kernel.gumbel_sample(
            logits, numbers, ones, seeds, positions, apply_temperature=False, is_drafting=False
        )
    return {name: seconds_of(way, device, REPEATS) * 1e6 for name, way in ways.items()}


if __name__ == "__main__":
    run_part(measure)
