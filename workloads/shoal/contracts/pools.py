"""What a person chooses about a pool: the engine's arguments, and what a machine must have to be invited.

Like `recipe.py`, these models are both parts of the CRDs and parts of the files that processes read (`node.json`, `run.json`).

A pod of a pool proves that it is one by its pool's ticket: a secret that the operator derives from the run secret and that only its agent has; the
orchestrator derives the same. Who has no ticket is a stranger, and may join open pools only, under the pool's `Admission`. A ticket admits; it lends
no trust.

An invite code is the seed of an Ed25519 key. The pool lists its public half, and whoever has the code signs which node is to join which pool:
nothing in the manifest is secret, and what travels is of no use to another node.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from shoal.contracts.base import Contract, NodeId, RunName, ShortText, SpecModel, unset
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.crypto.keys import PrivateKey

Sampler = Literal["gumbel-murmur3-1", "vllm-cpu"]
"""Rules by which a seed draws a token, by name and version. `vllm-cpu` was that of 0.2 on CPUs: documents name it, nothing draws by it any more."""
SAMPLER: Final = "gumbel-murmur3-1"
"""The rule of this release, on every device (`sampling.gumbel`)."""
PoolSampler = Literal["gumbel-murmur3-1", "none"]


def is_usual(sampler: str) -> bool:
    """Whether a pool's sampler is that of its release, which documents leave out: those from before it was named read as they did."""
    return sampler == SAMPLER


Quantization = Literal["fp8"]
"""Rules by which weights are rounded before they sample, by name (`models.rounded`)."""
Logits = Literal["float32"]
"""How an engine keeps the logits of weights in halves, by name (`models.head`, ADR 0141)."""
QUANTIZATION_FIELD = (
    "fp8: workers sample with the weights of linear layers rounded to e4m3, and validators check with the same, as `rollouts.quantization` says."
    " Absent: with the published weights."
)

SAMPLER_FIELD = "The rule by which seeds draw tokens, which validators draw again; none: no rule, and no check. Only a closed pool may have none."


class EngineSettings(SpecModel):
    """Arguments of a worker's engine. Type and length are the run's own: another type would fail validation, a shorter length would cut rollouts."""

    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs over which one engine spreads each layer.")
    pipeline_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        exclude_if=lambda stages: stages == 1,
        description="Stages, each of `tensorParallelSize` GPUs and a row of layers. They ask less of a network, and wait for each other.",
    )
    hosts: int = Field(
        1,
        ge=1,
        le=16,
        exclude_if=lambda hosts: hosts == 1,
        description="Pods of one engine, each with an equal share of its GPUs. When one ends, the others of its engine start again.",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0.0, le=1.0, description="Share of a GPU's memory for weights, activations and the cache."
    )
    kv_cache_bytes: int | None = Field(
        None,
        ge=1 << 20,
        le=1 << 44,
        description="Bytes of the key-value cache; absent: the GPU memory that is free, or on a CPU what the sequences need.",
    )
    max_sequences: int | None = Field(
        None, ge=1, le=65536, description="Sequences decoded together; absent: the engine's default, on a CPU 128."
    )
    max_batched_tokens: int | None = Field(
        None, ge=1024, le=1 << 24, description="Tokens of one engine step; absent: the engine's default."
    )
    compiled: bool | None = Field(
        None, description="Compile the model when the engine starts; absent: on a GPU (with CUDA graphs), not on a CPU."
    )
    async_scheduling: bool = Field(
        True,
        exclude_if=lambda on: on,
        description="Prepare the next step while the GPU is at one. Engines on a CPU or of several stages wait for each step.",
    )

    @property
    def ranks(self) -> int:
        """GPUs of one engine, where it has any; otherwise its processes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def division(self) -> "EngineSettings":
        """How the model is spread over GPUs, and nothing else: all that a machine of a stranger takes over."""
        return EngineSettings(
            tensor_parallel_size=self.tensor_parallel_size, pipeline_parallel_size=self.pipeline_parallel_size
        )


def is_whole(engine: EngineSettings) -> bool:
    """Whether an engine is one process with the usual settings, which documents about strangers leave out."""
    return engine == EngineSettings()


class Requirements(SpecModel):
    """Requirements for a machine. It reports its hardware itself, except for its uplink and its arithmetic; trust comes from the checks of its
    work."""

    gpus: int = Field(
        0,
        ge=0,
        le=1024,
        description="Least number of GPUs. A pool whose own pods have NVIDIA's asks for those of one engine at least.",
    )
    gpu_types: list[ShortText] = Field(
        [], max_length=32, description="GPU names, one of which the machine's GPU name must contain; empty: any."
    )
    gpu_memory_gib: int = Field(
        0,
        ge=0,
        le=4096,
        exclude_if=lambda gib: gib == 0,
        description="Least memory of each GPU in GiB, which a machine rounds up.",
    )
    cpus: int = Field(0, ge=0, le=4096, description="Least number of CPU cores.")
    memory_gib: int = Field(0, ge=0, le=1 << 20, description="Least memory in GiB.")
    disk_gib: int = Field(0, ge=0, le=1 << 24, description="Least free disk in GiB.")
    uplink_mbps: int = Field(
        0,
        ge=0,
        le=100,  # more is not told from less by 16 MiB over a long way: discovery/uplink_check.py
        description="Least upload rate in 10^6 bits a second. Discovery measures it, including the start of the upload. 0: any.",
    )
    gflops: int = Field(
        0,
        ge=0,
        le=1400,  # more could not be told from less: crypto/challenge.py, MOST_PRODUCTS
        description="Least arithmetic in 10^9 operations a second. A timed challenge measures it when a machine joins. 0: any.",
    )


class Admission(SpecModel):
    """Which strangers' machines may join an open pool. With neither nodes nor codes: any; else those that are listed or have a code."""

    nodes: list[NodeId] = Field([], max_length=10_000, description="Public keys of machines that may join.")
    codes: list[NodeId] = Field(
        [],
        max_length=10_000,
        description="Public halves of invite codes (`shoal node code`); a machine that has one may join.",
    )
    nodes_per_address: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Most machines of the pool from one address (IPv6: one /64), as discovery sees it; 0: no limit.",
    )


class CodeClaim(Contract):
    """Signed with an invite code: this node is to join this pool."""

    run: RunName
    pool: RunName
    node: NodeId


class PoolTerms(Contract):
    """Who is invited to a pool, as the orchestrator reads it in `run.json`."""

    name: RunName
    open: bool = Field(default=False, description="strangers' machines may join")
    requirements: Requirements = Requirements()
    admission: Admission = Admission()
    gpus: int = Field(default=0, ge=0, le=1024, description="of each engine")
    engine: EngineSettings = Field(
        default=EngineSettings(),
        exclude_if=is_whole,
        description="how a stranger's machine spreads the model over its GPUs",
    )
    sampler: PoolSampler = Field(default="gumbel-murmur3-1", exclude_if=is_usual, description=SAMPLER_FIELD)
    quantization: Quantization | None = Field(default=None, exclude_if=unset, description=QUANTIZATION_FIELD)
    group_size: int = Field(default=1, ge=1, le=64, description="not used; `run.json` of 0.2.0 has it")

    @model_validator(mode="after")
    def _checked_if_open(self) -> Self:
        if self.open and self.sampler == "none":
            raise ValueError(f"pool {self.name}: sampler is none in an open pool; allowed: {SAMPLER}, or open: false")
        return self

    @property
    def drawn_by(self) -> Sampler | None:
        """What draws the tokens of this pool's nodes, as the run's admin has it; None where nobody can draw them again."""
        return None if self.sampler == "none" else self.sampler


def pool_ticket(run_secret: bytes, pool: str) -> bytes:
    """The secret of one pool's own pods, 32 bytes."""
    return hmac.new(run_secret, b"shoal pool ticket\0" + pool.encode(), hashlib.sha256).digest()


def membership_proof(ticket: bytes, node: str) -> str:
    """A pod's proof of the ticket, in hex. It is good for one node: an eavesdropper cannot use it."""
    return hmac.new(ticket, node.encode(), hashlib.sha256).hexdigest()


def is_own_pod(run_secret: bytes, pool: str, node: str, proof: str | None) -> bool:
    """Whether a node has its pool's ticket."""
    if proof is None:
        return False
    return hmac.compare_digest(proof, membership_proof(pool_ticket(run_secret, pool), node))


def claim_with_code(code: str, run: str, pool: str, node: str) -> Signed[CodeClaim]:
    """The proof by a machine with an invite code (64 hex digits); raises ValueError when it is not a code."""
    try:
        key = PrivateKey.from_seed(bytes.fromhex(code.strip()))
    except ValueError as error:
        raise ValueError("an invite code is 64 hex digits") from error
    return sign(CodeClaim(run=run, pool=pool, node=node), key)


def code_fits(claim: Signed[CodeClaim] | None, admission: Admission, run: str, pool: str, node: str) -> bool:
    """Whether a claim was signed with one of the pool's codes for just this node."""
    if claim is None or claim.signer not in admission.codes:
        return False
    try:
        return claim.verified(claim.signer) == CodeClaim(run=run, pool=pool, node=node)
    except BadSignature:
        return False


def terms_of(pools: Sequence[PoolTerms], pool: str) -> PoolTerms | None:
    """The terms of a pool, or None for one that the run does not have: nobody joins it."""
    return next((each for each in pools if each.name == pool), None)
