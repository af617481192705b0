"""The rule by which we draw tokens on a CPU is that of vLLM's kernel for GPUs, run by Triton's interpreter."""

import json

from benchmarks.trust import triton_rule
from benchmarks.trust.__main__ import RESULT


def test_tokens_and_uniforms_are_those_of_vllms_kernel() -> None:
    found = triton_rule.measure(tokens=40, uniforms=20_000)
    assert (found["tokens_equal"], found["uniforms_equal"]) == (40, 20_000)


def test_the_published_comparison_found_no_difference() -> None:
    published = json.loads(RESULT.read_text())
    part = published["parts"]["rule"]
    assert published["gpu_rule_tokens_equal"] == part["tokens"] >= 20_000
    assert published["gpu_rule_uniforms_equal"] == part["uniforms"] >= 10_000_000
