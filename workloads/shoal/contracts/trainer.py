"""How the trainer computes: `trainer.settings` of a manifest, and a part of `config/run.json`. Pure."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import ShortText, SpecModel, unset


class Lora(SpecModel):
    """Low-rank adapters instead of full updates (arXiv:2106.09685); what is published is merged into the base weights."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0.0, le=65536.0, description="Scale: an adapter is multiplied by alpha / rank.")
    target_modules: list[ShortText] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        max_length=32,
        description="Names of the linear layers, and of matrices of experts, that get an adapter.",
    )


class Offload(SpecModel):
    """What a trainer on GPUs keeps in its pods' host memory, each a copy away: slower, and smaller on the GPU."""

    reference: bool = Field(
        False, description="The reference model of the KL penalty; a layer at a time is copied to the GPU."
    )
    optimizer: bool = Field(
        False, description="AdamW's two moments, 8 bytes a parameter, and Muon's one; copied for each update."
    )
    activations: bool = Field(
        False, description="The layers' inputs between forward and backward; needs activation recomputation."
    )


class TrainerSettings(SpecModel):
    """How the trainer computes; nothing here changes what is computed except for rounding, LoRA apart."""

    data_type: Literal["Auto", "BFloat16", "Float32"] = Field(
        "Auto",
        description="Type of forward and backward; weights, optimizer and reductions are float32. Auto: bfloat16 on an accelerator.",
    )
    activation_recomputation: Literal["Auto", "On", "Off"] = Field(
        "Auto", description="Compute activations again in the backward pass. Auto: from 50 million parameters on."
    )
    cpu_offload: bool = Field(False, description="Keep weights and optimizer state in the host's memory.")
    offload: Offload | None = Field(
        None,
        exclude_if=unset,
        description="What alone is kept in the host's memory, where the GPU's is too small. Absent: nothing.",
    )
    compile: bool = Field(False, description="torch.compile of each layer; off, as in the paper (section 3.5).")
    lora: Lora | None = Field(None, description="Train low-rank adapters only; absent: all weights.")
    context_parallel: int | None = Field(
        None,
        ge=1,
        le=1024,
        exclude_if=unset,
        description="Ranks that share each pack, where one GPU's memory is too small for its activations. It must divide the ranks and the query"
        " heads, and divide or be a multiple of the key heads. Absent: 1.",
    )
    expert_parallel: Literal["Weights", "Tokens"] | None = Field(
        None,
        exclude_if=unset,
        description="What travels between the trainer's ranks for a layer's experts. Weights: each rank gathers the layer's experts, which suits long"
        " packs and small experts. Tokens: each rank keeps its experts, and tokens are sent there, which suits experts too large to gather. Not with"
        " `cpuOffload` or `compile`. Absent: Weights.",
    )
    kept_states: int = Field(
        3, ge=1, le=1000, description="Training states to keep: the newest, and earlier ones to fall back on."
    )
    state_every: int | None = Field(
        None,
        ge=1,
        le=1000,
        exclude_if=unset,
        description="Save the training state of every n-th version after publishing it, and of the last version. Absent: the smallest n at"
        " which saving takes 2 % of the time (10 Gb/s, 22 minutes a step), at most 20. That is 1 up to 2.7 billion trained parameters, 12 at 32B."
        " With `lora` or islands: every version's, before publishing it.",
    )

    @property
    def sharing(self) -> int:
        """Ranks that compute each pack together."""
        return self.context_parallel or 1

    @property
    def offloaded(self) -> Offload:
        """What is kept in the host's memory, each said out."""
        return self.offload or Offload()
