"""How completions are sampled and how long they should be: `sampling` and `lengthReward` of a manifest, and parts of `config/run.json`. Pure."""

from typing import Annotated

from pydantic import Field

from shoal.contracts.base import SpecModel


class Sampling(SpecModel):
    """How completions are sampled. Truncating samplers (top-p, top-k) bias the ratio and are not offered."""

    temperature: float = Field(1.0, gt=0.0, le=2.0, description="Sampling temperature.")
    max_completion_tokens: int = Field(30_720, ge=1, le=1_048_576, description="Longest completion in tokens.")
    groups_per_submission: int = Field(
        4,
        ge=1,
        le=4096,
        description="Prompts in one submitted file; the most, where `rollouts.handInEverySeconds` lets slow nodes have fewer.",
    )


class LengthReward(SpecModel):
    """The length penalty `alpha * |target - length|` with targets from a discrete set (paper section 3.1.2)."""

    targets: list[Annotated[int, Field(ge=1, le=1_048_576)]] = Field(
        [2000, 4000, 6000, 8000, 10000], min_length=1, max_length=64, description="Target lengths in tokens."
    )
    alpha: float = Field(0.0003, ge=0.0, le=1.0, description="Penalty for each token of difference.")
