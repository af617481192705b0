"""Dr. GRPO ("GRPO done right", arXiv:2503.20783, section 3.2): no division by the deviation, and none by what was sampled.

The surrogate is GRPO's. Its sum is divided by rows times the longest completion allowed, a constant of the run, so that neither long wrong
answers nor easy and hard prompts weigh differently.
"""

from shoal.training.loss import Objective
from shoal.training.objectives.one_sided_grpo import surrogate

DR_GRPO = Objective(surrogate, divisor="longest_completions")
