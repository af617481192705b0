"""Discovery, orchestrator and node agent: who takes part, who works on which step, and what is recorded about the work.

Pure deciders (`node_states`, `step_counter`, `allocation`, `invites`, `ledger_view`, the decisions of `verdicts`) are apart from the modules that
talk to Redis, the object store and HTTP. The object store with its ledger is the truth; Redis holds what can be derived from it again (`recovery`).
"""
