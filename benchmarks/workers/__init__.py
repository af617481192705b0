"""How much of an engine's time rollout workers use at the paper's lengths: the product's own scheduling on engines that only have a clock."""
