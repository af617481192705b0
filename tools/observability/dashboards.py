"""The chart's Grafana dashboards: what each shows. Laid out by `panels`, written by `__main__`, every query run by tests/observability.

Metrics are those of `catalogue`. Averages over runs are never taken: every series keeps its run, and its pod where there are several.
"""

from tools.observability.panels import RUN, Board, Panel

BY_RUN = "namespace, run"
WINDOW = "[$__rate_interval]"
SHOWN = "[$__range]"
"""All that the dashboard shows, for figures of the whole run."""
REJECTS, JUDGED = ',outcome="reject"', ',outcome=~"accept|reject"'


def of(metric: str, more: str = "") -> str:
    """A gauge as it is."""
    return f"{metric}{{{RUN}{more}}}"


def one(metric: str, more: str = "", by: str = "") -> str:
    """A gauge of one part of the run, whatever pod tells it."""
    return f"max by ({BY_RUN}{', ' + by if by else ''}) ({of(metric, more)})"


def rate(metric: str, more: str = "", by: str = "", window: str = WINDOW) -> str:
    """A counter's increase a second."""
    return f"sum by ({BY_RUN}{', ' + by if by else ''}) (rate({of(metric, more)}{window}))"


def quantile(share: float, metric: str, by: str = "", more: str = "") -> str:
    """A quantile of a histogram over the interval."""
    return f"histogram_quantile({share}, {rate(metric + '_bucket', more, 'le' + (', ' + by if by else ''))})"


def busy(part: str, phase: str = "", window: str = WINDOW) -> str:
    """Processes of a part that work at a time, mean over the interval; `phase`: at this alone."""
    return rate(
        "shoal_busy_seconds_total", f',container="{part}"' + (f',phase="{phase}"' if phase else ""), window=window
    )


OVERVIEW = Board(
    "shoal-run-overview", "Shoal / Run overview", "Is the run going on, how far is it, and who waits for whom?",
    {
        "Where it stands": (
            Panel("Policy version", {"{{run}}": one("shoal_latest_version")}, kind="stat", runbook="ShoalNoProgress"),
            Panel("Steps done", {"{{run}}": f"{one('shoal_trainer_step')} / {one('shoal_run_steps')}"}, "percentunit", kind="stat"),
            Panel("Healthy nodes", {"{{run}}": one("shoal_nodes", ',state="Healthy"')}, kind="stat", runbook="ShoalOrchestratorGone"),
        ),
        "What comes of it": (
            Panel("Reward", {
                f"{{{{run}}}} {{{{environment}}}} {words}": one(f"shoal_trainer_{name}", by="environment")
                for words, name in (("total", "reward"), ("task", "task_reward"), ("length penalty", "length_penalty"))
            }, says="Means over the rows of the last finished step, as validators computed them, by environment."),
            Panel("Groups of the open step", {"{{run}} {{kind}}": one("shoal_step_groups", by="kind")}, runbook="ShoalStalledOnSignal"),
            Panel("Completion length", {"{{run}}": one("shoal_trainer_completion_length_mean")}, "short", "Tokens, mean of the last step."),
        ),
        "What comes of each task type": (
            Panel("Task reward by task type", {"{{run}} {{task_type}}": one("shoal_trainer_type_task_reward", by="task_type")},
                  says="Sources of a mixture. Empty in a run with one task type, as are the others of this row."),
            Panel("Shares by task type", {
                f"{{{{run}}}} {{{{task_type}}}} {words}": one(f"shoal_trainer_type_{name}", by="task_type")
                for words, name in (("sampled", "sampled_share"), ("trained", "share"), ("with signal", "signal_share"))
            }, "percentunit", "Weights set the share of what is sampled. What is trained on has signal, so its share differs."),
            Panel("Completion length by task type", {
                "{{run}} {{task_type}}": one("shoal_trainer_type_completion_length_mean", by="task_type"),
            }, "short", "Tokens, mean of the last step."),
        ),
        "Pools of a curriculum": (
            Panel("Problems of each pool", {"{{run}} {{pool}}": one("shoal_curriculum_problems", by="pool")}, stacked=True,
                  says="By their solve rate, as the open step draws from them. Empty without spec.tasks.curriculum, as are the others of this row."),
            Panel("Groups of each pool", {"{{run}} {{pool}}": one("shoal_curriculum_groups", by="pool")}, stacked=True,
                  says="In the steps sealed since the orchestrator started. The weights of the pools set the shares."),
            Panel("Solve rate of each pool", {"{{run}} {{pool}}": one("shoal_curriculum_solve_rate", by="pool")}, "percentunit",
                  "Mean over the problems of the pool. Problems that nobody has tried have none."),
        ),
        "What versions score": (
            Panel("Score of the newest version", {
                "{{run}} {{benchmark}}": one("shoal_evaluation_score", by="benchmark"),
                "{{run}} {{benchmark}} {{bound}}": one("shoal_evaluation_score_bound", by="benchmark, bound"),
            }, "percentunit", "avg@k and its 95 % interval over tasks. Empty without spec.evaluation.", "ShoalScoreFalling"),
            Panel("Version scored", {
                "{{run}} {{benchmark}}": one("shoal_evaluation_version", by="benchmark"),
                "{{run}} best": one("shoal_evaluation_best_version"), "{{run}} newest": one("shoal_latest_version"),
            }, says="Best: by spec.evaluation.bestBy, -1 before the first."),
            Panel("Evaluation to come, and not finished", {
                "{{run}} files to come": one("shoal_evaluation_open_slices"),
                "{{run}} {{benchmark}} versions not finished": one("shoal_evaluation_unfinished", by="benchmark"),
            }, says="A version is given up when its weights leave the store: then raise spec.evaluation.share, or ask fewer tasks."),
        ),
        "Who waits for whom": (
            Panel("Step phases", {"{{run}} {{phase}}": one("shoal_trainer_phase_seconds", by="phase")}, "s", stacked=True),
            Panel("Waits", {"{{pod}} {{for_what}}": of("shoal_waiting_seconds") + " > 0"}, "s",
                  "What a process waits for now, and for how long. Empty while nobody waits.", "ShoalPartDown"),
            Panel("Idle", {
                "{{run}} trainer": one("shoal_trainer_idle_ratio"),
                "{{run}} workers": f"{rate('shoal_worker_engine_idle_seconds_total')} / count by ({BY_RUN}) ({of('shoal_worker_policy_version')})",
            }, "percentunit", "Share of the time in which trainer and workers do nothing.", "ShoalTrainerStarving"),
        ),
        "What it costs": (
            Panel("Inference to training compute", {
                "{{run}} in the time shown": f"{busy('worker', 'generate', SHOWN)} / {busy('trainer', window=SHOWN)}",
                "{{run}} now": f"{busy('worker', 'generate')} / {busy('trainer')}",
            }, says="Busy worker seconds for each busy trainer second, processes, not FLOPs; the paper had 4.5. Show the whole run for its figure.",
                kind="stat"),
            Panel("Tokens a second", {
                "{{run}} trained": one("shoal_trainer_tokens_per_second"), "{{run}} sampled": rate("shoal_worker_completion_tokens_total"),
            }),
            Panel("Model FLOPs utilisation", {"{{run}}": one("shoal_trainer_mfu_ratio")}, "percentunit",
                  "Of the updates; completion tokens only, so a lower bound. Empty where the accelerator's peak is not known."),
        ),
        "Islands": (
            Panel("Exchanges in an hour", {
                "{{pod}} {{outcome}}": f"sum by ({BY_RUN}, pod, outcome) (increase({of('shoal_island_rounds_total')}[1h]))",
            }, says="Made, missed, or held because a member has other settings. Nothing but 0 without trainer.islands.",
                  runbook="ShoalIslandsApart"),
            Panel("Islands in the last exchange", {
                "{{pod}}": of("shoal_island_members"), "{{pod}} left out": of("shoal_island_left_out"),
            }),
            Panel("Missed since the last round", {"{{pod}}": of("shoal_island_missed")}, runbook="ShoalIslandsApart"),
        ),
        "Room": (
            Panel("Free space", {"{{pod}} {{folder}}": f"{of('shoal_disk_free_bytes')} / {of('shoal_disk_size_bytes')}"}, "percentunit",
                  runbook="ShoalDiskFilling"),
            Panel("Time to save and hand over a version", {
                "{{run}}": one("shoal_trainer_handover_seconds"), "{{run}} step held up": one("shoal_trainer_handover_blocked_seconds"),
            }, "s"),
        ),
    },
)  # fmt: skip

STABILITY = Board(
    "shoal-training-stability", "Shoal / Training stability", "The signs that the paper saw before a collapse (section 3.5, figures 9 to 11), live.",
    {
        "Figures 9 to 11": (
            Panel("Gradient norm", {
                "{{run}} mean": one("shoal_trainer_gradient_norm"), "{{run}} largest": one("shoal_trainer_gradient_norm_max"),
                "{{run}} after the clip": one("shoal_trainer_gradient_norm_clipped"),
            }, runbook="ShoalGradientNormEscalating"),
            Panel("Clipped tokens", {
                f"{{{{run}}}} {side}": one(f"shoal_trainer_clip_{side}") for side in ("low", "high", "delta")
            }, "percentunit", runbook="ShoalClipRatioRising"),
            Panel("Entropy", {"{{run}}": one("shoal_trainer_entropy")}, says="Nats a token.", runbook="ShoalEntropyRising"),
        ),
        "Trends over a window": (
            Panel("Gradient norm, slope", {"{{run}}": one("shoal_trainer_gradient_norm_slope")}, "percentunit", "Change a step.",
                  "ShoalGradientNormEscalating"),
            Panel("Growth against the window before", {
                "{{run}} gradient norm": one("shoal_trainer_gradient_norm_growth"), "{{run}} clip ratio": one("shoal_trainer_clip_ratio_growth"),
            }),
            Panel("Entropy above its minimum", {"{{run}}": one("shoal_trainer_entropy_rise")}, "percentunit", runbook="ShoalEntropyRising"),
            Panel("Clipped tokens, three steps", {"{{run}}": one("shoal_trainer_clip_ratio_level")}, "percentunit",
                  "The limit is spec.stability.maxClipRatio, 2 % by default.", "ShoalSignsOfCollapse"),
        ),
        "Loss": (
            Panel("Loss", {"{{run}}": one("shoal_trainer_loss"), "{{run}} held out (SFT)": one("shoal_trainer_held_out_loss")}),
            Panel("KL", {
                "{{run}} to the base model": one("shoal_trainer_kl"), "{{run}} worker to trainer": one("shoal_trainer_mismatch_kl"),
            }, says="Nats a token. Worker to trainer: the engines' numbers and lag, not the policy."),
            Panel("Learning rate", {"{{run}}": one("shoal_trainer_learning_rate")}, "sci"),
        ),
        "What was left out": (
            Panel("Updates that were not finite", {"{{run}}": f"sum by ({BY_RUN}) (increase({of('shoal_trainer_skipped_updates_total')}[1h]))"},
                  says="In the hour before.", runbook="ShoalUpdatesNotFinite"),
            Panel("Rows left out", {"{{run}}": f"sum by ({BY_RUN}) (increase({of('shoal_trainer_rows_left_out_total')}[1h]))"},
                  says="In the hour before."),
            Panel("Signs, and paused", {"{{run}} signs": one("shoal_trainer_warnings"), "{{run}} paused": one("shoal_trainer_paused")},
                  runbook="ShoalTrainerPaused"),
        ),
        "Data": (
            Panel("Policy lag", {
                "{{run}} mean": one("shoal_trainer_policy_lag_mean"), "{{run}} most": one("shoal_trainer_policy_lag_max"),
            }, says="Versions between sampling and training."),
            Panel("Packing density", {"{{run}}": one("shoal_trainer_packing_density")}, "percentunit"),
            Panel("Importance weights capped", {
                "{{run}} by importanceCap": one("shoal_trainer_importance_capped"),
                "{{run}} truncated": one("shoal_trainer_mismatch_truncated"),
                "{{run}} masked": one("shoal_trainer_mismatch_masked"),
                "{{run}} completions masked": one("shoal_trainer_completions_masked"),
            }, "percentunit", "The last three: by recipe.mismatchCorrection."),
            Panel("Use of experts", {
                "{{run}} busiest, by the mean": one("shoal_trainer_expert_load_largest"),
                "{{run}} entropy, by the most": one("shoal_trainer_expert_load_entropy"),
                "{{run}} unused, share": one("shoal_trainer_experts_unused"),
                "{{run}} other than the engine's, share": one("shoal_trainer_router_replay_mismatch"),
            }, says="Of models with experts. Even use is 1, 1 and 0; a busiest expert that grows says that the router collapses."),
        ),
    },
)  # fmt: skip

TRUST = Board(
    "shoal-rollouts-and-trust", "Shoal / Rollouts and trust", "What workers hand in, what validators say of it, and how long both take.",
    {
        "Verdicts": (
            Panel("Verdicts a second", {"{{run}} {{outcome}}": rate("shoal_validator_verdicts_total", by="outcome")}, "ops", stacked=True),
            Panel("Rejected files by reason", {"{{run}} {{reason}}": one("shoal_rejected_files", by="reason")}, runbook="ShoalRejectRateJump"),
            Panel("Reject rate", {
                "{{run}}": f"{rate('shoal_validator_verdicts_total', REJECTS)} / {rate('shoal_validator_verdicts_total', JUDGED)}",
                "{{run}} honest files, {{estimate}}": one("shoal_false_reject_ratio", by="estimate"),
            }, "percentunit", "Beside what the calibration says of honest files.", "ShoalRejectRateJump"),
        ),
        "Validators": (
            Panel("Age of the oldest file", {"{{run}}": one("shoal_validation_queue_age_seconds")}, "s", runbook="ShoalValidationQueueOld"),
            Panel("Time for a file", {
                "{{run}} median": quantile(0.5, "shoal_validator_check_seconds"), "{{run}} 95 %": quantile(0.95, "shoal_validator_check_seconds"),
            }, "s", "The paper: within a minute."),
            Panel("Where it goes", {
                "{{run}} {{phase}}": rate("shoal_busy_seconds_total", ',container="validator"', "phase"),
            }, "short", "Validators at a check, mean.", stacked=True),
        ),
        "Files": (
            Panel("Files so far", {"{{run}} {{outcome}}": one("shoal_files", by="outcome")}),
            Panel("Submissions a second", {"{{run}} {{status}}": rate("shoal_submissions_total", by="status")}, "ops"),
            Panel("Newest answers", {
                "{{run}} {{outcome}}": one("shoal_answers_ratio", by="outcome"),
                "{{run}} groups all {{outcome}}": one("shoal_groups_alike_ratio", by="outcome"),
            }, "percentunit", "Of the newest 64 groups.", "ShoalCannotLearn"),
            Panel("Rows that nobody's fault leaves unscored", {
                "{{run}} rewards of turns of {{environment}}": rate("shoal_validator_turn_reward_faults_total", by="environment"),
                "{{run}} answers of functions differ": rate("shoal_validator_tool_disagreements_total"),
                "{{run}} programs out of time": rate("shoal_validator_tool_rows_out_of_time_total"),
            }, "ops", runbook="ShoalTurnRewardsWrong", stacked=True),
            Panel("Groups kept and dropped", {"{{run}} {{outcome}}": one("shoal_judged_groups", by="outcome")}, says="By the online filter.",
                  runbook="ShoalStalledOnSignal"),
        ),
        "Generation": (
            Panel("Completion length", {
                "{{run}} median": quantile(0.5, "shoal_worker_completion_length_tokens"),
                "{{run}} 95 %": quantile(0.95, "shoal_worker_completion_length_tokens"),
            }, says="Sampled tokens."),
            Panel("Sequences", {
                "{{run}} running": f"sum by ({BY_RUN}) ({of('shoal_worker_running_sequences')})",
                "{{run}} waiting": f"sum by ({BY_RUN}) ({of('shoal_worker_waiting_sequences')})",
            }),
            Panel("Waiting for proofs", {"{{run}} 95 %": quantile(0.95, "shoal_worker_proof_wait_seconds")}, "s",
                  "After the last token of a completion."),
            Panel("Slots by use", {
                "{{run}} {{use}}": f"{rate('shoal_worker_slot_seconds_total', by='use')}"
                f" / on ({BY_RUN}) group_left {rate('shoal_worker_slot_seconds_total')}",
            }, "percentunit", "Use row is the occupancy; the others say why places are empty.", "ShoalWorkersIdle", stacked=True),
            Panel("Tokens lost", {
                "{{run}} {{reason}}": f"{rate('shoal_worker_lost_tokens_total', by='reason')}"
                f" / on ({BY_RUN}) group_left {rate('shoal_worker_completion_tokens_total')}",
            }, "percentunit", "Of those sampled, by what ended their lease."),
        ),
        "Ledger": (
            Panel("Entries", {"{{run}}": one("shoal_ledger_entries")}, runbook="ShoalLedgerStalled"),
            Panel("Rows a second", {
                "{{run}} accepted": rate("shoal_validator_rows_total"), "{{run}} with proofs verified": rate("shoal_validator_proof_rows_total"),
            }, "ops"),
        ),
    },
)  # fmt: skip

BROADCAST = Board(
    "shoal-broadcast", "Shoal / Broadcast", "A version's way from the trainer over the relays to the workers.",
    {
        "Who has which version": (
            Panel("Newest version", {
                "{{run}} origin": one("shoal_origin_newest_version"), "{{pod}} relay": of("shoal_relay_newest_version"),
                "{{run}} workers, oldest": f"min by ({BY_RUN}) ({of('shoal_worker_policy_version')})",
            }),
            Panel("Relays behind the origin", {"{{pod}}": of("shoal_relay_sync_lag_seconds")}, "s", runbook="ShoalBroadcastSlow"),
            Panel("Workers behind the step", {"{{pod}}": of("shoal_worker_policy_lag_steps")}, says="Versions."),
        ),
        "How long it takes": (
            Panel("Whole at a relay", {"{{run}} 95 %": quantile(0.95, "shoal_relay_sync_seconds", more=',outcome="sealed"')}, "s",
                  "The paper: 62 GB in 14 minutes."),
            Panel("Whole at a worker", {
                "{{run}} median": quantile(0.5, "shoal_fetch_seconds"), "{{run}} 95 %": quantile(0.95, "shoal_fetch_seconds"),
            }, "s"),
            Panel("Swap in the engine", {"{{run}} 95 %": quantile(0.95, "shoal_worker_swap_seconds")}, "s"),
        ),
        "What is served": (
            Panel("Bytes a second", {"{{pod}}": rate("shoal_relay_served_bytes_total", by="pod")}, "Bps", stacked=True),
            Panel("Answers a second", {"{{run}} {{status}}": rate("shoal_relay_served_requests_total", by="status")}, "reqps",
                  "206: a shard. 429: too much for one node. 403: an evicted one."),
            Panel("Time to the last byte", {
                "{{run}} median": quantile(0.5, "shoal_relay_request_seconds"), "{{run}} 95 %": quantile(0.95, "shoal_relay_request_seconds"),
            }, "s"),
        ),
        "What goes wrong": (
            Panel("Failed tries a second", {"{{run}} {{reason}}": rate("shoal_broadcast_failures_total", by="reason")}, "ops"),
            Panel("Tokens refused", {"{{run}} {{outcome}}": rate("shoal_relay_token_checks_total", ',outcome!="granted"', "outcome")}, "ops"),
            Panel("nginx answers", {"{{pod}}": of("shoal_nginx_up")}, runbook="ShoalRelayUnreachable"),
        ),
        "How well it is done": (
            Panel("Bytes saved by deltas", {
                "{{run}}": f"{rate('shoal_origin_stream_bytes_total')} / {rate('shoal_origin_wire_bytes_total')}",
            }, "short", "Bytes of the checkpoint for each byte that travels."),
            Panel("Shards taken elsewhere", {
                "{{run}} from a slow source": rate("shoal_broadcast_stolen_total"), "{{run}} asked twice": rate("shoal_broadcast_hedged_total"),
            }, "ops"),
            Panel("Versions held", {"{{pod}}": of("shoal_relay_versions_held")}),
        ),
    },
)  # fmt: skip

NODES = Board(
    "shoal-nodes", "Shoal / Nodes", "The workers, a run's own and strangers': who they are, what they do, who was evicted.",
    {
        "All": (
            Panel("Nodes by state", {"{{run}} {{state}}": one("shoal_nodes", by="state")}, stacked=True),
            Panel("Heartbeats a second", {"{{run}} {{state}}": rate("shoal_heartbeats_total", by="state")}, "ops"),
            Panel("Leases a second", {
                "{{run}} {{outcome}}": rate("shoal_leases_total", by="outcome"),
                "{{run}} uploads, {{outcome}}": rate("shoal_upload_grants_total", by="outcome"),
            }, "ops", "Quota: the node has handed in as many files as it may in an hour.", "ShoalWorkersIdle"),
        ),
        "The run's own and strangers with accepted files, 64 at most": (
            Panel("Silence", {"{{node}} {{pool}}": one("shoal_node_silence_seconds", by="node, pool")}, "s", "Dead after 30 s."),
            Panel("Tokens a second", {"{{node}} {{pool}}": one("shoal_node_tokens_per_second", by="node, pool")}, "short",
                  "As the node claims; nothing rests on it."),
            Panel("Versions behind the newest", {
                "{{node}} {{pool}}": f"-({one('shoal_node_policy_version', by='node, pool')}"
                f" - on ({BY_RUN}) group_left () {one('shoal_latest_version')})",
            }),
        ),
        "Credit": (
            Panel("Files accepted in a row", {"{{node}} {{pool}}": one("shoal_node_accepted_in_a_row", by="node, pool")}, kind="table",
                  runbook="ShoalRejectRateJump"),
            Panel("Leases that ended without a file", {"{{node}} {{pool}}": one("shoal_node_abandoned_leases", by="node, pool")}, kind="table"),
            Panel("CPU seconds of programs", {"{{node}} {{pool}}": one("shoal_node_program_seconds", by="node, pool")}, kind="table"),
        ),
        "In our own pods": (
            Panel("Files by answer", {"{{run}} {{status}}": rate("shoal_worker_submissions_total", by="status")}, "ops"),
            Panel("Leases given back", {"{{run}} {{reason}}": rate("shoal_worker_returned_total", by="reason")}, "ops"),
            Panel("What workers do", {"{{run}} {{phase}}": rate("shoal_busy_seconds_total", ',container="worker"', "phase")},
                  says="Workers at a phase, mean.", stacked=True),
        ),
    },
)  # fmt: skip

PLACE = 'namespace=~"$namespace"'
OURS = f'{PLACE},controller=~"trainingrun|inferencepool|relayserver|validator"'


def work(metric: str) -> str:
    return f'{metric}{{{PLACE},name="shoal"}}'


OPERATOR = Board(
    "shoal-operator", "Shoal / Operator", "Does the operator keep up, and does the API server answer it?",
    {
        "Work": (
            Panel("Leader", {"{{pod}}": f'leader_election_master_status{{{PLACE},name="shoal-operator"}}'},
                  runbook="ShoalOperatorWithoutLeader"),
            Panel("Reconciles a second", {
                "{{controller}} {{result}}": f"sum by (controller, result) (rate(controller_runtime_reconcile_total{{{OURS}}}{WINDOW}))",
            }, "ops"),
            Panel("Errors a second", {
                "{{controller}}": f"sum by (controller) (rate(controller_runtime_reconcile_errors_total{{{OURS}}}{WINDOW}))",
            }, "ops", runbook="ShoalOperatorFailing"),
        ),
        "Times": (
            Panel("Reconcile, 99 %", {
                "{{controller}}": "histogram_quantile(0.99, sum by (le, controller) "
                f"(rate(controller_runtime_reconcile_time_seconds_bucket{{{OURS}}}{WINDOW})))",
            }, "s"),
            Panel("In the queue, 99 %", {
                "queue": f"histogram_quantile(0.99, sum by (le) (rate({work('workqueue_queue_duration_seconds_bucket')}{WINDOW})))",
                "worker": f"histogram_quantile(0.99, sum by (le) (rate({work('workqueue_work_duration_seconds_bucket')}{WINDOW})))",
            }, "s"),
            Panel("Longest running reconcile", {"{{pod}}": work("workqueue_longest_running_processor_seconds")}, "s",
                  runbook="ShoalOperatorStuck"),
        ),
        "Queue and watches": (
            Panel("Keys that wait", {"{{pod}}": work("workqueue_depth")}),
            Panel("Retries a second", {"{{pod}}": f"sum by (pod) (rate({work('workqueue_retries_total')}{WINDOW}))"}, "ops"),
            Panel("Age of watches", {"{{pod}} {{kind}}": f"shoal_operator_watch_last_event_age_seconds{{{PLACE}}}"}, "s"),
            Panel("Restarts of kopf, missing CRDs", {
                "{{pod}} restarts": f"increase(shoal_operator_kopf_restarts_total{{{PLACE}}}{WINDOW})",
                "{{kind}} missing": f"max by (kind) (shoal_operator_crd_missing{{{PLACE}}})",
            }),
        ),
        "API server": (
            Panel("Requests a second", {
                "{{method}} {{code}}": f'sum by (method, code) (rate(rest_client_requests_total{{{PLACE},container="operator"}}{WINDOW}))',
            }, "reqps"),
        ),
    },
    of_runs=False,
)  # fmt: skip

BOARDS = (OVERVIEW, STABILITY, TRUST, BROADCAST, NODES, OPERATOR)
