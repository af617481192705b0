"""The value of an lm-evaluation-harness metric for one completion: `shared_harness_judge().value(terms, completion)`."""

from shoal.rewards.harness.judge import HarnessJudge, NoValue, shared_harness_judge

__all__ = ["HarnessJudge", "NoValue", "shared_harness_judge"]
