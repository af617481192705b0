"""Which numbers of a step's report trackers get, and by which names."""

from run_documents import step_metrics

from shoal.contracts.steps import TypeMeans
from shoal.tracking.points import point

SECONDS = {"seconds/wait", "seconds/update", "seconds/step"}


def test_a_supervised_step_sends_what_it_measures_and_no_rewards() -> None:
    sent = point(step_metrics(3, epoch=0.5, held_out_loss=1.25, reward=0.0, task_reward=0.0)).values
    assert sent.keys() - SECONDS == {
        "train/loss", "train/held_out_loss", "train/epoch", "train/gradient_norm", "train/gradient_norm_max", "train/learning_rate",
        "train/rows", "train/completion_tokens", "train/packing_density", "train/skipped_updates",
    }  # fmt: skip
    assert (sent["train/held_out_loss"], sent["train/epoch"]) == (1.25, 0.5)


def test_means_of_each_task_type_have_names_of_their_own() -> None:
    code = TypeMeans(groups=2, rows=16, task_reward=0.25, reward=0.2, completion_length_mean=31.0)
    maths = TypeMeans(groups=4, rows=32, task_reward=0.75, reward=0.7, completion_length_mean=19.0)
    sent = point(step_metrics(3, by_task_type={"code": code, "math": maths})).values
    assert sent["type/code/task_reward"] == 0.25
    assert {name: value for name, value in sent.items() if name.startswith("type/math/")} == {
        "type/math/groups": 4.0, "type/math/rows": 32.0, "type/math/task_reward": 0.75, "type/math/reward": 0.7,
        "type/math/completion_length_mean": 19.0,
    }  # fmt: skip
    assert sent["train/task_reward"] == 0.35


def test_a_step_that_was_not_trained_has_rows_and_seconds_only() -> None:
    assert point(step_metrics(3, rows=0)).values.keys() - SECONDS == {"train/rows"}
