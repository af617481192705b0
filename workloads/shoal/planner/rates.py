"""Rates that plans are made with: what GPUs do, by published numbers, and which share of it software reaches. One table; each row has its source.

Rates of our own programs are from `benchmarks/results/`, measured on two cores: a machine with more is faster. Pure. Called by `step_parts`.
"""

import re
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """A GPU, or the processor of a part without one. Rates are peaks."""

    name: str
    nbytes: int
    """Memory as `nvidia-smi` shows it."""
    flops: float
    """Dense bfloat16 operations a second, with sums in float32."""
    bandwidth: float
    """Bytes a second between memory and processor."""
    source: str


GPUS: tuple[Gpu, ...] = (
    Gpu("A100-40GB", 40_960 * MIB, 312e12, 1.555e12, "NVIDIA A100 datasheet, SXM"),
    Gpu("A100", 81_920 * MIB, 312e12, 2.039e12, "NVIDIA A100 datasheet, SXM 80 GB"),
    Gpu("H100", 81_559 * MIB, 989e12, 3.35e12, "NVIDIA H100 datasheet, SXM; half of the sparse rate"),
    Gpu("H200", 143_771 * MIB, 989e12, 4.8e12, "NVIDIA H200 datasheet, SXM; half of the sparse rate"),
    Gpu("B200", 183_359 * MIB, 2250e12, 8.0e12, "NVIDIA DGX B200 datasheet, an eighth of the machine"),
    Gpu("L40S", 46_068 * MIB, 362e12, 0.864e12, "NVIDIA L40S datasheet; half of the sparse rate"),
    Gpu("L4", 23_034 * MIB, 121e12, 0.3e12, "NVIDIA L4 datasheet; half of the sparse rate"),
    Gpu("RTX-4090", 24_564 * MIB, 165.2e12, 1.008e12, "NVIDIA Ada GPU architecture, appendix A"),
    Gpu("RTX-3090", 24_576 * MIB, 71e12, 0.936e12, "NVIDIA Ampere GA102 GPU architecture, appendix A"),
)
_LABEL = re.compile(r"(NVIDIA-)?(GEFORCE-)?(?P<kind>RTX-\d+|[A-Z]+\d+S?)(-SXM\d?)?(-(?P<gigabytes>\d+)GB)?(-HBM\d\w?)?")
USUAL_GPU = "H100"
CPU = Gpu(
    "8 cores", 64 * 10**9, 8 * 128e9, 8 * 5.5e9,
    "Intel Xeon Platinum 8480+: 64 float32 operations a cycle at 2.0 GHz, 307 GB/s over 56 cores",
)  # fmt: skip

TRAINING_SHARE = 0.4
"""Of a GPU's operations, in training and prefill: 0.38 to 0.43 on 8,192 to 16,384 H100 (Llama 3, arXiv:2407.21783, table 4)."""
DECODE_SHARE = 0.6
"""Of a GPU's bandwidth, while tokens are decoded. Assumed: the low end of the 0.6 to 0.85 that operators of engines report."""
ENGINE_SEQUENCES = 256
"""Sequences that an engine decodes together where the manifest says nothing (vLLM's default on GPUs of less than 70 GiB)."""

FILE_BYTES_A_TOKEN = 14.0
"""Of an uploaded file: 684,612 bytes for 49,092 tokens (results/trust.json, cost)."""
CHECK_SECONDS_A_TOKEN = 2.8e-6
"""Parsing, cheap checks, rewards, of every token on one core (results/trust.json, cost)."""
PROOF_SECONDS_A_TOKEN = 277e-6 / 32 + 0.3e-6
"""Proofs, tokens drawn again, ends, of a checked token on one core; measured at width 5120 (results/trust.json, cost)."""
CORES = 8
"""Of a machine with a GPU, that a publisher or a node has for versions. Assumed: such machines have 8 to 24 a GPU."""
EXPORT_BYTES_A_SECOND = 0.31e9
"""Of a version, rounded and written by one of the ranks of the leader's machine (results/size.json, publish_conditions)."""
CUT_BYTES_A_SECOND = 1 / (1 / 0.668e9 + 1 / 0.659e9)
"""Of a version, cut and encoded by one core of the publisher (results/size.json, publish_conditions and delta_encode_gb_a_second_core)."""
APPLY_BYTES_A_SECOND = 1.016e9
"""Of a version, put together from a delta by one core of a node (results/size.json, delta_decode_gb_a_second_core)."""
SLOT_OCCUPANCY = 0.9
"""Of an engine's places while it has leases, swaps and their emptying included (results/workers.json, run_64_slots)."""
SWAP_SECONDS = 0.36
"""To take up a version that is there (results/inference.json, swap_seconds)."""
DELTA_RATIO_SMALL_RATE = 30.0
"""Bytes of a version by those of its delta, bfloat16, at small learning rates (results/broadcast.json, delta_ratio_1b)."""
DELTA_RATIO_LARGE_RATE = 4.5
"""The same at the demo's rate of 1.5e-4 (results/broadcast.json, delta_ratio_demo_bf16)."""
SMALL_RATE = 1e-5
"""Up to this learning rate an update leaves most bfloat16 values as they are (PULSE, arXiv:2602.03839)."""
POOL_SECONDS, POOL_BYTES = 0.2 / 285_000, 10 + 8 * 4
"""Of each problem of a curriculum: a step's pools on one core with their digest, and memory of the rates and eight steps' pools
(sampling/curriculum.py, contracts/curriculum.py)."""


def gpu_named(name: str) -> Gpu | None:
    """The GPU of a name or a node label, such as `H100` or `NVIDIA-H100-80GB-HBM3`; None for one that is not in the table, or a part of one (MIG)."""
    found = _LABEL.fullmatch(name.upper().replace(" ", "-").replace("_", "-"))
    if found is None:
        return None
    kind, gigabytes = found["kind"], found["gigabytes"]
    if kind == "A100" and gigabytes == "40":
        return GPUS[0]
    usual = {"A100": "80", "H100": "80", "H200": "141"}.get(kind)
    return next((gpu for gpu in GPUS if gpu.name == kind and gigabytes in (None, usual)), None)
