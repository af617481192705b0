"""Plain lines: one for everything that happened between two moments, none for what did not change."""

import pytest
from run_documents import part, progress, snapshot, step_metrics

from shoal.cli.lines import events, stamped, status_line
from shoal.contracts.answers import AnswerSample, LearningProgress
from shoal.report.view import SnapshotHistory, view_model


def test_the_first_report_has_the_state_of_every_part() -> None:
    parts = (part(phase="Running", ready=False), part("demo-redis-0", "redis", phase="Pending", address=""))
    assert events(None, snapshot(parts=parts)) == [
        "demo-trainer-1/trainer: starting at 127.17.0.9",
        "demo-redis-0/redis: pending",
    ]


def test_nothing_new_prints_no_line() -> None:
    moment = snapshot(parts=(part(),), progress=progress())
    assert events(moment, moment) == []


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ({"ready": False}, {}, "demo-trainer-1/trainer: ready at 127.17.0.9"),
        ({}, {"restarts": 1, "last_exit": -9, "ready": False},
         "demo-trainer-1/trainer: restarted after exit code -9 (restarts: 1)"),
        ({}, {"phase": "Waiting", "message": "starts again in 2 s"}, "demo-trainer-1/trainer: waiting: starts again in 2 s"),
        ({}, {"phase": "Succeeded"}, "demo-trainer-1/trainer: done"),
    ],
)  # fmt: skip
def test_a_part_that_changed_is_one_line(before: dict, after: dict, line: str) -> None:
    assert events(snapshot(parts=(part(**before),)), snapshot(parts=(part(**after),))) == [line]


def test_a_removed_part_is_reported() -> None:
    assert events(snapshot(parts=(part(),)), snapshot()) == ["demo-trainer-1/trainer: gone"]


def test_steps_versions_and_rejects_are_events() -> None:
    before = snapshot(progress=progress())
    after = snapshot(
        progress=progress(latest_version=8, last_step=step_metrics(7), reject_reasons={"computation": 1, "reward": 2})
    )
    assert events(before, after) == [
        "version 8 published",
        "step 8/60 trained: reward 0.300, task reward 0.350, gradient norm 0.080, clip ratio 0.8 %, policy lag 1.50, "
        "entropy 0.500, 5,000 tokens in 8 s",
        "2 files rejected: reward",
    ]


def test_a_supervised_step_has_losses_instead_of_rewards() -> None:
    step = step_metrics(7, epoch=1.5, loss=0.25, held_out_loss=0.5, learning_rate=1e-5)
    after = snapshot(progress=progress(last_step=step))
    assert events(snapshot(progress=progress()), after) == [
        "step 8/60 trained: epoch 1.50, loss 0.250, held-out loss 0.500, gradient norm 0.080, learning rate 1.00e-05, "
        "5,000 tokens in 8 s",
    ]


def test_a_step_with_skipped_updates_says_so() -> None:
    after = snapshot(progress=progress(last_step=step_metrics(7, skipped_updates=2)))
    assert events(snapshot(progress=progress()), after)[0].endswith("in 8 s, 2 updates skipped")


def test_what_happened_before_this_program_started_is_not_an_event() -> None:
    assert events(snapshot(), snapshot(progress=progress())) == []


def test_the_end_of_the_run_is_an_event() -> None:
    assert events(snapshot(progress=progress()), snapshot(progress=progress(complete=True))) == [
        "run complete: 60 steps"
    ]


def test_the_status_line_has_progress_files_rate_time_left_and_what_the_run_waits_for() -> None:
    history = SnapshotHistory()
    history.seed([step_metrics(step) for step in range(7)])
    for t in (0, 10):
        history.add(snapshot(1070.0 + t, parts=(part(),), progress=progress(completion_tokens_accepted=1000 * t)))
    moment = snapshot(1080.0, parts=(part(), part(container="nginx", ready=False)), progress=progress())
    assert status_line(moment, history, view_model(moment, history)) == (
        "status: step 7/60, version 7, trainer: wait; 1/2 processes ready; files 40 accepted, 1 rejected, 2 pending; "
        "1,000 tokens/s; 8 min 40 s left; waits for 20 more groups with signal for step 7, 2 files wait for a verdict"
    )


def test_hostile_reasons_and_names_are_shown_as_text() -> None:
    evil = "\x1b[31m\nstep 60/60 trained"
    lines = events(
        snapshot(progress=progress()), snapshot(parts=(part(pod=evil),), progress=progress(reject_reasons={evil: 1}))
    )
    assert len(lines) == 2
    assert not any("\x1b" in line or "\n" in line for line in lines)


def test_a_line_begins_with_the_time_of_day() -> None:
    assert stamped(0.0, "x")[2::3][:2] == "::"


def test_the_operators_message_is_shown_until_the_orchestrator_answers() -> None:
    before, after = snapshot(message="the run is preparing"), snapshot(message="waits for trainer")
    assert events(before, after) == ["waits for trainer"]
    assert events(before, snapshot(message="step 3 of 60", progress=progress())) == []


def test_the_status_of_a_supervised_run_has_its_loss_and_no_files() -> None:
    trained = step_metrics(6, epoch=1.0, loss=0.25)
    moment = snapshot(parts=(part(),), progress=progress(last_step=trained, open_step=None, files_pending=0))
    history = SnapshotHistory()
    history.add(moment)
    line = status_line(moment, history, view_model(moment, history))
    assert "loss 0.250, held-out loss -" in line
    assert "files" not in line


def test_the_moment_in_which_a_run_turns_out_unable_to_learn_is_told_once_with_answers() -> None:
    sample = AnswerSample(problem_id="p", prompt="1+1=", answer="\x1b<", tokens=2, cut=True, task_reward=0.0)
    few = LearningProgress(groups=8)
    none = LearningProgress(groups=32, decided=True, reason="AnswersCutOff", message="none", samples=[sample])
    some = LearningProgress(groups=36, groups_with_signal=1, decided=True)
    moments = [snapshot(progress=progress(learning=each)) for each in (few, none, none, some)]
    assert events(moments[0], moments[1]) == [
        "the run cannot learn (AnswersCutOff): none",
        "sample p: 2 tokens, cut off, task reward 0.000",
        "  > 1+1=",
        "  < \\x1b<",
    ]
    assert events(moments[1], moments[2]) == []
    assert events(moments[2], moments[3]) == ["the newest groups carry signal again"]
