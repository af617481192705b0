"""What entries of the ledger say in fields of their own: whose run it is and by what terms, who was invited, what a file took to compute. Pure.

Written by the orchestrator into facts of the ledger, read by `ledger_audit` and by whoever recomputes credit.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import rfc8785
from pydantic import Field

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.datasets import Mode
from shoal.contracts.pools import PoolTerms
from shoal.contracts.protocol import Hardware, PrintableText
from shoal.contracts.recipe import Recipe

ComputeDomain = Literal["reinforcement-learning", "data-generation", "supervised-fine-tuning"]
"""The kind of work that a run's pools do: what the published protocol calls a compute domain (one category of AI task, to which pools belong)."""
DOMAINS: dict[Mode, ComputeDomain] = {
    "Train": "reinforcement-learning",
    "Generate": "data-generation",
    "SFT": "supervised-fine-tuning",
}
MOST_DECLARED_POOLS = 64
"""Named in an entry, about 150 bytes each; `pools_digest` covers them all."""


class DeclaredPool(Contract):
    """A pool as the ledger names it."""

    name: RunName
    open: bool = Field(description="strangers' machines may join")
    listed: int = Field(ge=0, description="machines that its list lets in")
    codes: int = Field(ge=0, description="invite codes that let a machine in; with neither list nor codes any may join")


class RunTerms(Contract):
    """Whose run it is, what it does, and what anybody needs to recompute credit and slashes."""

    owner: NodeId = Field(description="the run's public key, which signed the roster")
    domain: ComputeDomain
    model_id: Annotated[str, Field(min_length=1, max_length=253)]
    probation_files: int = Field(ge=0, description="files of a node that must be accepted before its credit counts")
    slash_votes: int = Field(ge=1, description="validators that must find the same before a reject stands")
    slashing: Literal["Evict", "Discard"] = Field(description="what a rejected file costs its node")
    pools: list[DeclaredPool] = Field(
        max_length=MOST_DECLARED_POOLS, description="in the order of their names, the first ones"
    )
    pool_count: int = Field(ge=0)
    pools_digest: Sha256Hex = Field(description="`pools_digest` of the pools' whole terms, as `run.json` has them")
    recipe_digest: Sha256Hex | None = Field(
        default=None,
        exclude_if=unset,
        description="`recipe_digest` of a recipe with schedules, sources, a mismatch correction, credit by turns or an own objective;"
        " None: it has none of them",
    )
    objective: str | None = Field(
        default=None,
        exclude_if=unset,
        max_length=400,
        description="the run's own objective, `package.module:NAME sha256:<digest of the module's file>`",
    )


def pools_digest(pools: Sequence[PoolTerms]) -> str:
    """SHA-256, in hex, of the RFC 8785 bytes of all pools' terms, in the order of their names."""
    ordered = sorted(pools, key=lambda pool: pool.name)
    return hashlib.sha256(rfc8785.dumps([pool.model_dump(mode="json", by_alias=True) for pool in ordered])).hexdigest()


def recipe_digest(recipe: Recipe) -> str:
    """SHA-256, in hex, of the RFC 8785 bytes of a recipe as a manifest has it, with defaults."""
    return hashlib.sha256(rfc8785.dumps(recipe.model_dump(mode="json", by_alias=True))).hexdigest()


class InvitedNode(Contract):
    """The pool that a node was invited to, and the hardware that it reported at registration. Its address stays private."""

    pool: RunName
    expires_unix: int = Field(ge=0)
    registered_unix: float | None = Field(default=None, description="on discovery's clock; None: noted at its joining")
    software_version: PrintableText = ""
    hardware: Hardware | None = Field(default=None, description="by its own account; None: noted at its joining")
