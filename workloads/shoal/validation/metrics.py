"""What a validator counts, for Prometheus. Busy seconds by phase are `shoal_busy_seconds_total`."""

from prometheus_client import Counter, Histogram

VERDICTS = Counter("shoal_validator_verdicts_total", "Verdicts, by outcome and reason.", ["outcome", "reason"])
ROWS = Counter("shoal_validator_rows_total", "Rows of accepted files.")
PROOF_ROWS = Counter("shoal_validator_proof_rows_total", "Rows whose proofs were verified.")
LOADS = Counter(
    "shoal_validator_loads_total", "Versions brought into memory, beside others or over one that was held.", ["place"]
)
CHECK_SECONDS = Histogram(
    "shoal_validator_check_seconds",
    "Wall-clock seconds from claim to verdict; exemplars name the step.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 60, 180),  # the paper verifies a file within a minute
)
TOOL_DISAGREEMENTS = Counter(
    "shoal_validator_tool_disagreements_total",
    "Rows that are not scored because functions answered otherwise when they were run again, which no node is at fault for.",
)
TOOL_ROWS_OUT_OF_TIME = Counter(
    "shoal_validator_tool_rows_out_of_time_total",
    "Rows with calls that are not scored because the programs of their file have had their time.",
)
TURN_FAULTS = Counter(
    "shoal_validator_turn_reward_faults_total",
    "Rows that are not scored because their environment's rewards of turns are not those of their episodes, which no node is at fault for.",
    ["environment"],
)
PROGRAM_DISAGREEMENTS = Counter(
    "shoal_validator_program_disagreements_total",
    "Rows whose program scored differently than claimed, by who disagreed: the claim, or the validator's own runs, whose row is left out.",
    ["with"],
)
