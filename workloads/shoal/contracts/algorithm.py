"""Which algorithm a run learns with, and the numbers of each: the member `algorithm` of a recipe.

`Algorithm` is a union as Kubernetes spells one: an object with optional members, exactly one of which is given. A member holds the parameters that
have an effect with it, and no others. Part of `Recipe`, and so of the CRD and of `config/run.json`. Pure.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from shoal.contracts.base import Sha256Hex, SpecModel, unset
from shoal.contracts.prime import PrimeSettings
from shoal.contracts.vine import VineSettings

_NORMALIZE = "Divide advantages by the standard deviation of their group."


class Clip(SpecModel):
    """The ratio clip that every policy loss has, and its importance weights."""

    clip_epsilon: float = Field(
        0.2, gt=0.0, lt=1.0, description="Half-width of the ratio clip; the default is PPO's and the paper's."
    )
    clip_epsilon_high: float | None = Field(
        None, gt=0.0, le=100.0, description="Upper half-width of the ratio clip; absent: clipEpsilon."
    )
    importance_cap: float | None = Field(
        None,
        gt=0.0,
        le=1000.0,
        description="Cap of a token's importance weight p_old / p_behaviour, both recomputed by the trainer. "
        "Absent: tokens have no weight, or with decoupledPpo one without a cap.",
    )

    @property
    def upper_bound(self) -> float | None:
        """Bound of the ratio where the advantage is negative; None: no bound."""
        return None


class TwoSidedClip(Clip):
    """The clip of INTELLECT-2, which bounds the loss of a bad token too (paper section 3.4)."""

    clip_delta: float = Field(
        4.0,
        gt=1.0,
        le=1e6,
        description="Upper bound of the ratio for negative advantages. The default is the paper's (section 3.4).",
    )

    @property
    def upper_bound(self) -> float | None:
        return self.clip_delta


class Grpo(Clip):
    """GRPO with PPO's one-sided clip (DeepSeekMath, arXiv:2402.03300), and losses with the same parameters."""

    normalize_advantages: bool = Field(True, description=_NORMALIZE)


class TwoSidedGrpo(TwoSidedClip):
    """GRPO with two-sided clipping, the algorithm of INTELLECT-2."""

    normalize_advantages: bool = Field(True, description=_NORMALIZE)


class Dapo(Grpo):
    """DAPO (arXiv:2503.14476); its overlong penalty is `recipe.overlongShaping`, its dynamic sampling `recipe.onlineFilter`."""

    clip_epsilon_high: float = Field(
        0.28, gt=0.0, le=100.0, description="Upper half-width of the ratio clip. The default is DAPO's clip-higher."
    )


class Gspo(Grpo):
    """GSPO (arXiv:2507.18071): a completion has one ratio, the geometric mean of its tokens' ratios. The defaults are the paper's (section 5.1)."""

    clip_epsilon: float = Field(3e-4, gt=0.0, lt=1.0, description="Lower half-width of the completion's ratio clip.")
    clip_epsilon_high: float = Field(
        4e-4, gt=0.0, le=100.0, description="Upper half-width of the completion's ratio clip."
    )


class Cispo(Grpo):
    """CISPO (MiniMax-M1, arXiv:2506.13585): the clipped ratio is a constant weight, so that every token keeps a gradient."""

    clip_epsilon: float = Field(
        1.0, gt=0.0, le=1.0, description="Half-width of the weight's lower bound. 1: no bound, as in the paper."
    )
    clip_epsilon_high: float = Field(
        4.0, gt=0.0, le=100.0, description="The weight is at most 1 plus this. The paper gives no number."
    )


DIVERGENCES = {"TotalVariation": 0.2, "KL": 0.05}
"""Greatest divergence of a token where the recipe does not say: what implementations of DPPO take."""


class Dppo(SpecModel):
    """DPPO (arXiv:2602.04879): a mask by divergence instead of a clip. It is measured from the policy that sampled the row."""

    divergence: Literal["TotalVariation", "KL"] = Field(
        "TotalVariation", description="Divergence between the two chances of the sampled token against all others."
    )
    max_divergence: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="A token beyond this that would move further away has no gradient. Absent: 0.2, with KL 0.05.",
    )
    normalize_advantages: bool = Field(True, description=_NORMALIZE)

    @property
    def bound(self) -> float:
        """The greatest divergence."""
        return DIVERGENCES[self.divergence] if self.max_divergence is None else self.max_divergence


ImportPath = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$", max_length=253
    ),
]


class CustomObjective(Grpo):
    """An objective of the run's own, in a module that the trainer's image has."""

    path: ImportPath = Field(..., description="`package.module:NAME`; NAME is an `Objective` of `shoal.training.loss`.")
    sha256: Sha256Hex = Field(..., description="SHA-256 of the module's file. The trainer refuses any other file.")


class OneOf(SpecModel):
    """A union: an object with optional members, exactly one of which is given."""

    # A server-side apply replaces it whole, so that the member of before does not stay beside the new one.
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    @property
    def given(self) -> tuple[str, SpecModel]:
        """Name (snake_case) and value of the member that is given; raises ValueError unless there is exactly one."""
        members = {name: getattr(self, name) for name in type(self).model_fields}
        found = [(name, value) for name, value in members.items() if value is not None]
        if len(found) != 1:
            raise ValueError(
                f"{type(self).__name__} must have exactly one of {', '.join(members)}; given: "
                f"{', '.join(name for name, _ in found) or 'none'}"
            )
        return found[0]


class PolicyLoss(OneOf):
    """The policy's loss where the algorithm makes advantages of its own: exactly one of the fields."""

    two_sided_grpo: TwoSidedClip | None = Field(None, description="Clip on both sides (paper section 3.4).")
    one_sided_grpo: Clip | None = Field(None, description="PPO's clip.")
    dr_grpo: Clip | None = Field(
        None, description="PPO's clip; the sum is divided by rows times the longest completion (arXiv:2503.20783)."
    )
    decoupled_ppo: Clip | None = Field(
        None, description="PPO's clip, with importance weights for stale rows (arXiv:2110.00641)."
    )


TWO_SIDED = PolicyLoss(two_sided_grpo=TwoSidedClip())


class Prime(PrimeSettings):
    """PRIME's numbers (arXiv:2502.01456, sections 3 and 4). The reward model is a copy of the base model, trained beside the policy."""

    loss: PolicyLoss = Field(TWO_SIDED, description="Loss of the policy, with PRIME's advantages.")


class VinePpo(VineSettings):
    """VinePPO's numbers (arXiv:2410.01679)."""

    normalize_advantages: bool = Field(
        True, description="Whiten advantages over all sampled tokens of the step; false: use them as they are."
    )
    loss: PolicyLoss = Field(TWO_SIDED, description="Loss of the policy, with VinePPO's advantages.")

    @property
    def cuts(self) -> VineSettings:
        """The part that workers and validators must know: where completions are cut, and how often each cut is continued."""
        return VineSettings(segments=self.segments, continuations=self.continuations)


class SourceAlgorithm(OneOf):
    """How rows of one source of a mixture are learnt from: exactly one of the fields."""

    two_sided_grpo: TwoSidedGrpo | None = Field(
        None, description="GRPO with two-sided clipping, as INTELLECT-2 (paper section 3.4)."
    )
    one_sided_grpo: Grpo | None = Field(None, description="GRPO as first published (arXiv:2402.03300).")
    dr_grpo: Clip | None = Field(
        None, description="Dr. GRPO (arXiv:2503.20783). It divides neither by deviations nor by sampled lengths."
    )
    dapo: Dapo | None = Field(None, description="DAPO (arXiv:2503.14476): GRPO whose upper clip is wider.")
    rloo: Clip | None = Field(
        None, description="REINFORCE leave-one-out (arXiv:2402.14740). The baseline is the mean of the group's others."
    )
    decoupled_ppo: Grpo | None = Field(
        None, description="Decoupled PPO (arXiv:2110.00641): GRPO with importance weights for stale rows."
    )
    gspo: Gspo | None = Field(
        None,
        exclude_if=unset,
        description="GSPO (arXiv:2507.18071): one ratio for a completion, for long ones and experts.",
    )
    cispo: Cispo | None = Field(
        None,
        exclude_if=unset,
        description="CISPO (arXiv:2506.13585): ratios are capped weights, no token loses its gradient.",
    )
    dppo: Dppo | None = Field(
        None,
        exclude_if=unset,
        description="DPPO (arXiv:2602.04879): tokens are masked by divergence, not clipped by ratio.",
    )

    @property
    def objective(self) -> str:
        """Name of the policy's loss; one of `training.objectives.OBJECTIVES`."""
        return self._policy_loss[0]

    @property
    def loss(self) -> Clip | Dppo:
        """The numbers of the policy's loss."""
        value = self._policy_loss[1]
        assert isinstance(value, Clip | Dppo)
        return value

    @property
    def normalizes_advantages(self) -> bool:
        """Whether advantages are divided by a standard deviation: that of their group, or with VinePPO that of the step."""
        return bool(getattr(self.given[1], "normalize_advantages", False))

    @property
    def _policy_loss(self) -> tuple[str, SpecModel]:
        return self.given


class Algorithm(SourceAlgorithm):
    """How advantages are computed and which loss is minimised: exactly one of the fields."""

    custom: CustomObjective | None = Field(
        None, exclude_if=unset, description="An objective of the run's own by import path, pinned by its file's digest."
    )
    prime: Prime | None = Field(
        None, description="PRIME (arXiv:2502.01456): outcomes and implicit process rewards for each token."
    )
    vineppo: VinePpo | None = Field(
        None, description="VinePPO (arXiv:2410.01679): differences of Monte-Carlo values between parts of a completion."
    )

    @property
    def _policy_loss(self) -> tuple[str, SpecModel]:
        member = self.given[1]
        return member.loss.given if isinstance(member, Prime | VinePpo) else self.given


GROUP_SIZE = 16
"""Completions of a prompt where the recipe does not say (paper section 4.1)."""

GROUP_SIZES: dict[str, int] = {"prime": 4, "vineppo": 8}
"""The same of algorithms that differ: the 256 x 4 of INTELLECT-MATH's PRIME stage, and the 8 of VinePPO's paper."""
