"""The rollout worker: completions from a policy version with vLLM, each with proofs of how it was computed.

Way of a file: `worker` waits for weights and an open step; `rollouts` says what must be generated; `engine` (vLLM)
generates it while `vllm_hooks` records states for `proofs`; `rollouts` assembles the rows, `agent` hands the file to
the agent.
"""
