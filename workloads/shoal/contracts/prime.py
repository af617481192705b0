"""Settings of PRIME, process reinforcement through implicit rewards (arXiv:2502.01456), and which groups it learns from.

Part of `Algorithm`, and so of the CRD and of `config/run.json`. Read by the trainer (`training/extensions/prime`) and, for the accuracy
filter, by the orchestrator's step counter.
"""

from collections.abc import Sequence

from pydantic import Field

from shoal.contracts.base import Probability, SpecModel


class PrimeSettings(SpecModel):
    """PRIME's numbers (arXiv:2502.01456, sections 3 and 4). The reward model is a copy of the base model, trained beside the policy."""

    beta: float = Field(
        0.05,
        gt=0.0,
        le=10.0,
        description="Scale of the implicit rewards. A token's reward is beta x (log p of the reward model - log p of the base model).",
    )
    learning_rate: float = Field(1e-6, gt=0.0, le=1.0, description="AdamW learning rate of the reward model, constant.")
    max_grad_norm: float = Field(10.0, gt=0.0, le=1e6, description="Gradient-norm clip of the reward model.")
    outcome_weight: float = Field(
        1.0,
        ge=0.0,
        le=1000.0,
        description="Weight of the outcome's advantage; whitening leaves only the ratio of the two.",
    )
    process_weight: float = Field(1.0, ge=0.0, le=1000.0, description="Weight of the process rewards' returns.")
    min_accuracy: Probability = Field(0.2, description="Drop a group when its mean task reward is smaller.")
    max_accuracy: Probability = Field(0.8, description="Drop a group when its mean task reward is greater.")

    def keeps(self, task_rewards: Sequence[float]) -> bool:
        """Whether a group with these task rewards (one or more) is of middling difficulty: PRIME's accuracy filter, instead of the online filter."""
        return self.min_accuracy <= sum(task_rewards) / len(task_rewards) <= self.max_accuracy
