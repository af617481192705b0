"""For each alert a series with which it fires and one with which it must not, in promtool's notation (value+step x times, a minute each)."""

from dataclasses import dataclass

RUN = 'namespace="research",run="arithmetic"'
TRAINER = f'{RUN},container="trainer",pod="arithmetic-trainer-0"'
ORCHESTRATOR = f'{RUN},container="orchestrator",pod="arithmetic-orchestrator-0"'
REPLACED = f'{RUN},container="orchestrator",pod="arithmetic-orchestrator-1"'
WORKER = f'{RUN},container="worker",pod="arithmetic-pool-0"'
VALIDATOR = f'{RUN},container="validator",pod="arithmetic-validator-0"'
SYNC = f'{RUN},container="sync",pod="arithmetic-relay-0"'
OPERATOR = 'namespace="shoal-system",container="operator"'

TURN_FAULTS = f'shoal_validator_turn_reward_faults_total{{{VALIDATOR},environment="tools"}}'

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`labels` are those of the alert beside severity; `at_minutes` is when it is looked at."""

    firing: Series
    quiet: Series
    labels: dict[str, str]
    at_minutes: int = 60


def _labels(text: str) -> dict[str, str]:
    return {name: value.strip('"') for name, value in (part.split("=") for part in text.split(","))}


def _verdicts(accept: str, reject: str) -> Series:
    name = f"shoal_validator_verdicts_total{{{VALIDATOR},"
    return {f'{name}outcome="accept",reason=""}}': accept, f'{name}outcome="reject",reason="computation"}}': reject}


def _disk(free: str, folder: str = "www") -> Series:
    name = f'{{{SYNC},folder="{folder}"}}'
    return {f"shoal_disk_free_bytes{name}": free, f"shoal_disk_size_bytes{name}": "1000x180"}


def _slots(rows: str, empty: str) -> Series:
    name = f"shoal_worker_slot_seconds_total{{{WORKER},use="
    return {f'{name}"row"}}': rows, f'{name}"no-lease"}}': empty}


def _newest(versions: Series, complete: str) -> Series:
    return {**versions, f"shoal_run_complete{{{ORCHESTRATOR}}}": complete}


PROGRESS = f"shoal_run_progress{{{ORCHESTRATOR}}}"
AFTER_RESTART = f"shoal_run_progress{{{REPLACED}}}"
ENTRIES = f"shoal_ledger_entries{{{ORCHESTRATOR}}}"
ALIVE = f"up{{{TRAINER}}}"
PENDING_AFTER = f'shoal_files{{{REPLACED},outcome="pending"}}'
PENDING = f'shoal_files{{{ORCHESTRATOR},outcome="pending"}}'
STALLED = f'shoal_run_stalled{{{RUN},container="operator",'
ERRORS = f"controller_runtime_reconcile_errors_total{{{OPERATOR},controller="
LEADS = f'leader_election_master_status{{{OPERATOR},name="shoal-operator",pod='

CASES: dict[str, list[Case]] = {
    "ShoalGradientNormEscalating": [
        Case(
            {f"shoal_trainer_gradient_norm_slope{{{TRAINER}}}": "0.2x120"},
            {f"shoal_trainer_gradient_norm_slope{{{TRAINER}}}": "0.02x55 0.2x5"},  # for five minutes only
            _labels(TRAINER),
        ),
        Case(
            {f"shoal_trainer_gradient_norm_slope{{{TRAINER}}}": "0.06x120"},
            {f"shoal_trainer_gradient_norm_slope{{{TRAINER}}}": "-0.1x120"},  # it falls
            _labels(TRAINER),
        ),
    ],
    "ShoalScoreFalling": [
        Case(
            {f'shoal_evaluation_below_best{{{ORCHESTRATOR},benchmark="sums"}}': "0x20 1x100"},
            {
                f'shoal_evaluation_below_best{{{ORCHESTRATOR},benchmark="sums"}}': "0x20 1x35 0x60",  # the next version is good again
                f'shoal_evaluation_below_best{{{ORCHESTRATOR},benchmark="math"}}': "0x120",
            },
            {**_labels(RUN), "benchmark": "sums"},
        )
    ],
    "ShoalIslandsApart": [
        Case(
            {f"shoal_island_missed{{{TRAINER}}}": "0x30 1 2 3x100"},
            {f"shoal_island_missed{{{TRAINER}}}": "0x30 1 2x100"},  # a member was started anew
            _labels(f'{RUN},pod="arithmetic-trainer-0"'),
        ),
        Case(
            {f'shoal_island_differs{{{TRAINER},island="north",setting="rounding"}}': "1x100"},
            {
                f'shoal_island_differs{{{TRAINER},island="north",setting="rounding"}}': "1x50 stale"
            },  # it has the same again
            _labels(f'{RUN},pod="arithmetic-trainer-0"'),
        ),
    ],
    "ShoalEntropyRising": [
        Case(
            {f"shoal_trainer_entropy_rise{{{TRAINER}}}": "0.8x120"},
            {f"shoal_trainer_entropy_rise{{{TRAINER}}}": "0.3x120"},
            _labels(TRAINER),
        )
    ],
    "ShoalClipRatioRising": [
        Case(
            {f"shoal_trainer_clip_ratio_growth{{{TRAINER}}}": "4x120"},
            {f"shoal_trainer_clip_ratio_growth{{{TRAINER}}}": "1.2x120"},
            _labels(TRAINER),
        )
    ],
    "ShoalSignsOfCollapse": [
        Case(
            {f"shoal_trainer_incident{{{TRAINER}}}": "0x30 1x90"},
            {f"shoal_trainer_incident{{{TRAINER}}}": "1x30 0x90", f"shoal_trainer_warnings{{{TRAINER}}}": "1x120"},
            _labels(TRAINER),
        )
    ],
    "ShoalUpdatesNotFinite": [
        Case(
            {f"shoal_trainer_skipped_updates_total{{{TRAINER}}}": "0x50 1x20"},
            {f"shoal_trainer_skipped_updates_total{{{TRAINER}}}": "3x120"},  # long ago
            _labels(TRAINER),
        )
    ],
    "ShoalTrainerPaused": [
        Case(
            {f"shoal_trainer_paused{{{TRAINER}}}": "0x30 1x90"},
            {f"shoal_trainer_paused{{{TRAINER}}}": "1x30 0x90"},
            _labels(TRAINER),
        )
    ],
    "ShoalNoProgress": [
        Case(
            _newest({PROGRESS: "7x300", ALIVE: "1x300"}, "0x300"),
            _newest({PROGRESS: "0+1x60 60x240", ALIVE: "1x300"}, "0x100 1x200"),  # it is complete
            _labels(RUN),
            200,
        ),
        Case(  # the orchestrator was replaced meanwhile
            {PROGRESS: "7x120 _x180", AFTER_RESTART: "_x120 7x180", ALIVE: "1x300"},
            {PROGRESS: "7x120 _x180", AFTER_RESTART: "_x120 8x180", ALIVE: "1x300"},
            _labels(RUN),
            200,
        ),
        Case(
            _newest({PROGRESS: "0x300", ALIVE: "1x300"}, "0x300"),
            _newest({PROGRESS: "1x100", ALIVE: "1x100 _x200"}, "0x100"),  # deleted
            _labels(RUN),
            130,
        ),
        Case(  # the operator says so; of another cause later, and then not any more
            {f'{STALLED}reason="NoWorker"}}': "1x20 _x100", f'{STALLED}reason="NoRelay"}}': "_x20 1x100"},
            {f'{STALLED}reason="NoWorker"}}': "1x40 _x80"},
            _labels(RUN),
        ),
        Case(  # the operator has just gone; it is there, and the run waits in a queue or has a longer deadline
            {PROGRESS: "7x300", ALIVE: "1x300", f'{STALLED}reason=""}}': "0x170 _x130"},
            {PROGRESS: "7x300", ALIVE: "1x300", f'{STALLED}reason=""}}': "0x190 _x5 0x105"},
            _labels(RUN),
            200,
        ),
        Case(  # the orchestrator is gone; then the whole run is
            _newest({PROGRESS: "7x100 _x200", ALIVE: "1x300"}, "0x100 _x200"),
            _newest({PROGRESS: "7x160 _x140", ALIVE: "1x160 _x140"}, "0x160 _x140"),
            _labels(RUN),
            200,
        ),
    ],
    "ShoalTrainerStarving": [
        Case(
            {f"shoal_trainer_idle_ratio{{{TRAINER}}}": "0.8x120"},
            {f"shoal_trainer_idle_ratio{{{TRAINER}}}": "0.3x20 0.8x20 0.3x80"},
            _labels(RUN),
        )
    ],
    "ShoalWorkersIdle": [Case(_slots("0+6x120", "0+54x120"), _slots("0+54x120", "0+6x120"), _labels(RUN), 90)],
    "ShoalRejectRateJump": [
        Case(
            _verdicts("0+10x600", "0x480 0+4x120"), _verdicts("0+10x600", "0+1x600"), _labels(RUN), 510
        ),  # always one in eleven
        Case(_verdicts("0+10x600", "0x480 0+4x120"), _verdicts("0+100x600", "0x480 0+1x120"), _labels(RUN), 510),
    ],
    "ShoalValidationQueueOld": [
        Case(
            {f"shoal_validation_queue_age_seconds{{{ORCHESTRATOR}}}": "0+60x60"},
            {f"shoal_validation_queue_age_seconds{{{ORCHESTRATOR}}}": "60x120"},
            _labels(RUN),
        )
    ],
    "ShoalStalledOnSignal": [
        Case(
            {f"shoal_stalled_on_signal{{{ORCHESTRATOR}}}": "0x30 1x90"},
            {f"shoal_stalled_on_signal{{{ORCHESTRATOR}}}": "0x120"},
            _labels(RUN),
        )
    ],
    "ShoalCannotLearn": [
        Case(
            {f"shoal_learning{{{ORCHESTRATOR}}}": "-1x30 0x90"},
            {f"shoal_learning{{{ORCHESTRATOR}}}": "-1x30 1x90"},
            _labels(RUN),
        )
    ],
    "ShoalTurnRewardsWrong": [
        Case({TURN_FAULTS: "0x30 0+4x30"}, {TURN_FAULTS: "4x60"}, _labels(f'{RUN},environment="tools"')),
        Case({TURN_FAULTS: "_x50 4x10"}, {TURN_FAULTS: "_x60"}, _labels(f'{RUN},environment="tools"')),
    ],
    "ShoalLedgerStalled": [
        Case(
            {ENTRIES: "0+1x20 20x100", PENDING: "5x120", ALIVE: "1x120"},
            {ENTRIES: "0+1x120", PENDING: "5x120", ALIVE: "1x120"},
            _labels(RUN),
            90,
        ),
        Case(
            {ENTRIES: "9x120", PENDING: "1x120", ALIVE: "1x120"},
            {ENTRIES: "9x120", PENDING: "0x120", ALIVE: "1x120"},
            _labels(RUN),
            90,
        ),
        Case(  # the orchestrator is gone; then another, with which nothing waits
            {ENTRIES: "9x70 _x50", PENDING: "1x70 _x50", ALIVE: "1x120"},
            {ENTRIES: "9x120", PENDING: "1x70 _x50", PENDING_AFTER: "_x70 0x50", ALIVE: "1x120"},
            _labels(RUN),
            90,
        ),
    ],
    "ShoalRelayUnreachable": [
        Case({f"shoal_nginx_up{{{SYNC}}}": "1x30 0x90"}, {f"shoal_nginx_up{{{SYNC}}}": "1x58 0x1 1x60"}, _labels(SYNC)),
        Case({f"up{{{SYNC}}}": "1x30 0x90"}, {f"up{{{SYNC}}}": "1x120"}, _labels(SYNC)),
    ],
    "ShoalBroadcastSlow": [
        Case(
            {f"shoal_relay_sync_lag_seconds{{{SYNC}}}": "0x20 0+60x100"},
            {f"shoal_relay_sync_lag_seconds{{{SYNC}}}": "0+60x14 0x100"},  # the paper's fourteen minutes
            _labels(SYNC),
        )
    ],
    "ShoalDiskFilling": [
        Case(_disk("40x180"), _disk("500x180"), {**_labels(SYNC), "folder": "www"}, 90),
        Case(  # full in three hours; a relay's www fills to its limit, and stops there
            _disk("290-1x180", "outbox"), _disk("290-1x180"), {**_labels(SYNC), "folder": "outbox"}, 90
        ),
        Case(_disk("290-1x180", "outbox"), _disk("900-5x120", "outbox"), {**_labels(SYNC), "folder": "outbox"}, 90),
    ],
    "ShoalOrchestratorGone": [
        Case(
            {f"up{{{ORCHESTRATOR}}}": "1x30 0x90", ALIVE: "1x120"},
            {f"up{{{ORCHESTRATOR}}}": "1x58 0x2 1x60", ALIVE: "1x120"},
            _labels(RUN),
        ),
        Case(  # its pod is not there; then nothing of the run is
            {f"up{{{ORCHESTRATOR}}}": "1x30 _x90", ALIVE: "1x120"},
            {f"up{{{ORCHESTRATOR}}}": "1x30 _x90", ALIVE: "1x30 _x90"},
            _labels(RUN),
        ),
    ],
    "ShoalPartDown": [
        Case(
            {f"up{{{ORCHESTRATOR}}}": "1x30 0x90"},
            {f"up{{{ORCHESTRATOR}}}": "1x57 0x3 1x60", 'up{namespace="other",container="web"}': "0x120"},
            _labels(ORCHESTRATOR),
        )
    ],
    "ShoalOperatorWithoutLeader": [
        Case(
            {f'{LEADS}"a"}}': "1x30 0x90", f'{LEADS}"b"}}': "0x120"},
            {f'{LEADS}"a"}}': "1x30 0x90", f'{LEADS}"b"}}': "0x30 1x90"},
            {"namespace": "shoal-system"},
        ),
        Case(  # none answers any more
            {f'{LEADS}"a"}}': "1x30 _x90", f'{LEADS}"b"}}': "0x30 _x90"},
            {f'{LEADS}"a"}}': "1x30 _x90", f'{LEADS}"b"}}': "0x30 1x90"},
            {"namespace": "shoal-system"},
        ),
    ],
    "ShoalOperatorFailing": [
        Case(
            {f'{ERRORS}"trainingrun"}}': "0+1x120"},
            {f'{ERRORS}"trainingrun"}}': "0x30 1x90", f'{ERRORS}"deployment"}}': "0+1x120"},  # another operator's
            {"namespace": "shoal-system", "controller": "trainingrun"},
        )
    ],
    "ShoalOperatorStuck": [
        Case(
            {f'workqueue_longest_running_processor_seconds{{{OPERATOR},name="shoal"}}': "0+60x120"},
            {f'workqueue_longest_running_processor_seconds{{{OPERATOR},name="shoal"}}': "2x120"},
            {**_labels(OPERATOR), "name": "shoal"},
        )
    ],
}
