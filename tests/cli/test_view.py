"""What the live view shows for a given moment."""

import io

import pytest
from rich.console import Console
from run_documents import part, progress, snapshot, step_metrics

from shoal.cli.screen import render
from shoal.contracts.answers import AnswerSample, LearningProgress
from shoal.report.snapshot import Snapshot
from shoal.report.view import Model, SnapshotHistory, eta_seconds, view_model


def model_of(*snapshots: Snapshot) -> Model:
    history = SnapshotHistory()
    for moment in snapshots:
        history.add(moment)
    return view_model(snapshots[-1], history)


def drawn(model: Model, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(model))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_figures_are_those_of_the_last_step_and_of_the_run() -> None:
    figures = dict(model_of(snapshot(progress=progress())).figures)
    assert figures == {
        "step": "7/60", "reward": "0.300", "task reward": "0.350", "gradient norm": "0.080", "clip ratio": "0.8 %",
        "policy lag": "1.50", "entropy": "0.500", "version": "7", "accepted": "40", "rejected": "1", "pending": "2",
        "groups": "12/32 +8 pending", "tokens/s": "-", "nodes": "2 Healthy", "time left": "-",
    }  # fmt: skip


def test_before_the_orchestrator_answers_no_figures_are_shown() -> None:
    model = model_of(snapshot(parts=(part(ready=False),)))
    assert {value for label, value in model.figures if label != "step"} == {"-"}
    assert model.headline == "starting"
    assert model.waiting == "waits for trainer-1/trainer to start"


def test_tokens_per_second_are_a_mean_over_the_last_minute() -> None:
    moments = [snapshot(2000.0 + t, progress=progress(completion_tokens_accepted=100 * t)) for t in range(0, 200, 10)]
    assert dict(model_of(*moments).figures)["tokens/s"] == "100"


def test_a_restarted_orchestrator_does_not_make_the_rate_negative() -> None:
    moments = [
        snapshot(2000, progress=progress(completion_tokens_accepted=5000)),
        snapshot(2010, progress=progress(completion_tokens_accepted=100)),
    ]
    assert dict(model_of(*moments).figures)["tokens/s"] == "-"


def test_time_left_is_the_pace_of_the_last_steps_times_what_remains() -> None:
    steps = [step_metrics(step) for step in range(5)]  # one each 10 s, the last finished at 1048
    assert eta_seconds(progress(), steps, now_unix=1052.0) == pytest.approx(55 * 10 - 4)


def test_a_pause_between_two_attempts_does_not_count_as_pace() -> None:
    steps = [step_metrics(0), step_metrics(1, finished_unix=90_000.0, attempt="demo-trainer-2")]
    assert eta_seconds(progress(), steps, now_unix=90_000.0) is None


def test_a_complete_run_has_no_time_left() -> None:
    assert eta_seconds(progress(complete=True), [], 0.0) == 0.0


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, "waits for 20 more groups with signal for step 7, 2 files wait for a verdict"),
        ({"files_pending": 0}, "waits for 20 more groups with signal for step 7"),
        ({"open_step": None, "waiting_for": "version 5 of the trainer"}, "waits for version 5 of the trainer"),
        ({"complete": True}, ""),
    ],
)
def test_it_says_what_the_run_waits_for(changes: dict, waits: str) -> None:
    assert model_of(snapshot(progress=progress(**changes))).waiting == waits


def test_a_pod_has_the_state_of_its_worst_container() -> None:
    parts = (
        part("demo-pool-0", "agent"),
        part("demo-pool-0", "worker", phase="Waiting", restarts=2, last_exit=-9, address="127.17.0.4"),
        part("demo-prepare", "prepare", phase="Succeeded"),
    )
    pool, prepare = model_of(snapshot(parts=parts)).rows
    assert (pool.name, pool.state, pool.restarts, pool.note) == ("pool-0", "waiting", 2, "worker last exited -9")
    assert pool.containers == (("agent", "ready"), ("worker", "waiting"))
    assert (prepare.name, prepare.state) == ("prepare", "done")


def test_the_curve_shows_steps_trained_before_this_program_started() -> None:
    history = SnapshotHistory()
    history.seed([step_metrics(step, task_reward=step / 6) for step in range(6)])
    history.add(snapshot(progress=progress()))
    assert [(label, len(curve)) for label, curve in view_model(snapshot(progress=progress()), history).curves] == [
        ("reward", 7),
        ("task reward", 7),
    ]


def test_the_screen_shows_every_part_and_every_figure() -> None:
    model = model_of(snapshot(parts=(part(), part(container="publisher")), progress=progress()))
    screen = drawn(model)
    for word in (
        "trainer-1",
        "publisher",
        "127.17.0.9",
        "task reward",
        "0.350",
        "clip ratio",
        "rejected for",
        "computation 1",
    ):
        assert word in screen


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_fits_any_width(width: int) -> None:
    screen = drawn(model_of(snapshot(parts=(part(),), progress=progress())), width)
    assert max(len(line) for line in screen.splitlines()) <= width


def test_hostile_text_moves_no_cursor_and_is_not_read_as_markup() -> None:
    evil = "\x1b[2J[red]x[/red]\u202e"
    parts = (part(message=evil), part(pod=f"demo-{evil}", container=evil, address=evil))
    model = model_of(snapshot(parts=parts, progress=progress(reject_reasons={evil: 3}, trainer_phase=evil)))
    screen = drawn(model, 400)
    assert "\x1b" not in screen
    assert "\u202e" not in screen
    assert "[red]x[/red]" in screen


@pytest.mark.parametrize("changes", [{"phase": "Waiting", "ready": False}, {"ready": False}, {"phase": "Failed"}])
def test_a_killed_trainer_does_not_keep_its_last_phase(changes: dict) -> None:
    steps = [progress(last_step=step_metrics(number), trainer_phase="update") for number in (5, 6)]
    alive, dead = (snapshot(parts=(part(**each),), progress=steps[1]) for each in ({}, changes))
    before = snapshot(progress=steps[0])
    assert model_of(before, alive).headline.endswith("trainer: update")
    assert dict(model_of(before, alive).figures)["time left"] != "-"
    assert model_of(before, dead).headline.endswith("version 7, trainer starts again")
    assert dict(model_of(before, dead).figures)["time left"] == "-"


def test_a_supervised_run_shows_losses_instead_of_rewards_files_and_nodes() -> None:
    steps = [step_metrics(step, epoch=1.0, loss=2.0 - step, held_out_loss=None) for step in (0, 1)]
    model = model_of(*(snapshot(progress=progress(last_step=step)) for step in steps))
    assert [label for label, _ in model.figures] == [
        "step", "loss", "held-out loss", "epoch", "gradient norm", "version", "time left",
    ]  # fmt: skip
    assert [label for label, _ in model.curves] == ["loss"]
    assert "reward" not in drawn(model)


CUT = LearningProgress(
    groups=32,
    cut=1.0,
    unanswered=1.0,
    groups_wrong=1.0,
    decided=True,
    reason="AnswersCutOff",
    message="of the last 32 groups none carries signal; raise sampling.maxCompletionTokens",
    samples=[
        AnswerSample(
            problem_id="add-1-1", prompt="one\n2\n3\n4\n1+1=", answer="\x1b[31m<1", tokens=2, cut=True, task_reward=0.0
        )
    ],
)


def test_a_run_that_cannot_learn_shows_shares_cause_and_answers_without_control_characters() -> None:
    model = model_of(snapshot(progress=progress(learning=CUT)))
    text = drawn(model, 200)
    assert "0.0 % right, 100.0 % cut off, 100.0 % without a final answer" in text
    assert "cannot learn" in text
    assert "raise sampling.maxCompletionTokens" in text
    assert "sample         add-1-1: 2 tokens, cut off, task reward 0.000" in text
    assert "  > 1+1=" in text
    assert "> one" not in text, "the end of a prompt is what templates change"
    assert "\x1b" not in text


def test_a_run_that_learns_shows_shares_alone() -> None:
    known = LearningProgress(groups=64, groups_with_signal=9, right=0.25, decided=True, message="well")
    model = model_of(snapshot(progress=progress(learning=known)))
    assert model.answers.startswith("25.0 % right")
    assert (model.cannot_learn, model.samples) == ("", ())
    assert model_of(snapshot(progress=progress())).answers == ""
