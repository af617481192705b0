"""REINFORCE leave-one-out (arXiv:2402.14740, section 3.2): a completion's baseline is the mean reward of its siblings.

The first update after sampling has the gradient of REINFORCE, `-A * grad logp`; the ratio and its clip keep the later updates of a step and
rows of older versions in bounds, as in PPO. Advantages are not divided by a deviation.
"""

from shoal.training.loss import Objective
from shoal.training.objectives.one_sided_grpo import surrogate

RLOO = Objective(surrogate, advantages="leave_one_out")
"""Per token rather than per sequence: the product of a long sequence's ratios leaves any clip at once."""
