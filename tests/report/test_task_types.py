"""A run on several task types: what a step's rows of each came to, in its metrics, its line and the report's plots."""

import re

import numpy as np
from run_documents import step_metrics

from shoal.cli.lines import step_line
from shoal.contracts.steps import SourceGroups, StepMetrics, TypeMeans
from shoal.report.collect import ReportData
from shoal.report.html import page
from shoal.report.plots import all_plots
from shoal.tracking.points import point
from shoal.training.metrics import means_by_task_type
from shoal.training.rollouts import RolloutGroup, Sample


def group(task_type: str, *rewards: float, length: int = 4) -> RolloutGroup:
    samples = [
        Sample(
            name="row", tokens=np.zeros(3 + length, np.int64), prompt_length=3, mask=np.ones(length, np.bool_),
            logprobs=np.zeros(length, np.float32), temperature=1.0, policy_version=0, task_reward=reward, length_penalty=0.25,
            reward=reward - 0.25, task_type=task_type,
        )
        for reward in rewards
    ]  # fmt: skip
    return RolloutGroup(samples)


MATH = TypeMeans(groups=2, rows=4, task_reward=0.75, reward=0.5, completion_length_mean=4.0, share=2 / 3)
CODE = TypeMeans(groups=1, rows=2, task_reward=0.5, reward=0.25, completion_length_mean=9.0, share=1 / 3)


def test_the_rows_of_a_step_have_means_by_task_type_where_there_are_several() -> None:
    math, code = [group("math", 1.0, 0.0), group("math", 1.0, 1.0)], group("code", 0.0, 1.0, length=9)
    assert means_by_task_type([math[0], code, math[1]]) == {"code": CODE, "math": MATH}
    assert means_by_task_type(math) == {}


def test_of_a_mixture_the_shares_of_what_was_sampled_and_of_what_carries_signal_are_told_too() -> None:
    math, code = [group("math", 1.0, 0.0), group("math", 1.0, 0.0)], group("code", 0.0, 1.0, length=9)
    sampled = {"math": SourceGroups(sampled=9, with_signal=6), "code": SourceGroups(sampled=3, with_signal=1)}
    found = means_by_task_type([*math, code], sampled)
    assert [(each.share, each.sampled_share, each.signal_share) for each in found.values()] == [
        (1 / 3, 0.25, 1 / 3),
        (2 / 3, 0.75, 6 / 9),
    ]
    metrics = step_metrics(0, by_task_type=found)
    assert "code 0.500 in 1 groups, 25.0 % of those sampled; math" in step_line(metrics, 3)
    assert point(metrics).values["type/code/sampled_share"] == 0.25
    plots = {plot.name for plot in all_plots(ReportData(run="demo", steps_total=3, store="", steps=[metrics]))}
    assert {"signal-by-type", "sampled-by-type", "share-by-type"} <= plots
    # With one source left after the filter its figures are told all the same.
    assert means_by_task_type(math, sampled)["math"].share == 1.0


def test_they_are_in_the_steps_line_and_in_plots_of_their_own() -> None:
    steps = [step_metrics(number, by_task_type={"code": CODE, "math": MATH}) for number in range(3)]
    assert "task reward 0.350 (code 0.500 in 1 groups; math 0.750 in 2 groups), gradient norm" in step_line(steps[0], 3)
    plots = {plot.name: plot for plot in all_plots(ReportData(run="demo", steps_total=3, store="", steps=steps))}
    assert {"reward-by-type", "length-by-type"} <= plots.keys()
    assert plots["reward-by-type"].caption == "Task reward of each task type."
    assert not {"loss-by-type", "clip-by-type"} & plots.keys()


def test_what_sources_are_learnt_by_is_a_table_with_lines_and_goes_to_trackers() -> None:
    code = CODE.model_copy(
        update={"objective": "gspo", "loss_weight": 2.0, "loss": -0.5, "entropy": 0.75, "clip_ratio": 0.125}
    )
    steps = [step_metrics(number, by_task_type={"code": code, "math": MATH}) for number in range(3)]
    data = ReportData(run="demo", steps_total=3, store="", steps=steps)
    plots = all_plots(data)
    assert {"loss-by-type", "clip-by-type", "entropy-by-type"} <= {plot.name for plot in plots}
    shown = page(data, plots, [])
    assert "Objectives of sources" in shown
    row = re.search(r"<tr><td[^>]*>code</td>.*?</tr>", shown)
    assert row is not None
    assert re.findall(r">([^<>]+)</td>", row[0]) == ["code", "gspo", "2.000", "2", "-0.500", "12.5 %", "0.750", "0.500"]
    values = point(steps[0]).values
    assert (values["type/code/loss_weight"], values["type/code/clip_ratio"]) == (2.0, 0.125)
    assert "type/code/objective" not in values
    plain = [step_metrics(0, by_task_type={"code": CODE, "math": MATH})]
    assert "Objectives of sources" not in page(ReportData(run="demo", steps_total=3, store="", steps=plain), [], [])


def test_a_source_without_rows_or_tokens_in_a_step_keeps_its_last_figures_and_has_a_gap_in_its_line() -> None:
    own = {"objective": "gspo", "loss_weight": 2.0}
    code = CODE.model_copy(update={**own, "loss": 0.5, "entropy": 0.75, "clip_ratio": 0.125})
    unlearnt = CODE.model_copy(update={**own, "task_reward": 0.875})  # the overlong filter left no token of it
    given = [{"code": code, "math": MATH}, {"code": unlearnt, "math": MATH}, {"math": MATH}]
    steps = [step_metrics(number, by_task_type=each) for number, each in enumerate(given)]
    data = ReportData(run="demo", steps_total=3, store="", steps=steps)
    plots = {plot.name: plot for plot in all_plots(data)}
    row = re.search(r"<tr><td[^>]*>code</td>.*?</tr>", page(data, list(plots.values()), []))
    assert row is not None
    assert re.findall(r">([^<>]+)</td>", row[0]) == ["code", "gspo", "2.000", "0", "0.500", "12.5 %", "0.750", "0.500"]
    assert all(f">{name}<" in plots["reward-by-type"].svg for name in ("code", "math"))
    assert plots["loss-by-type"].caption == "Loss without its weight of task type code."
    assert "type/code/loss" not in point(steps[1]).values
    # Never learnt from: its objective is told all the same.
    never = ReportData(run="demo", steps_total=3, store="", steps=steps[1:])
    row = re.search(r"<tr><td[^>]*>code</td>.*?</tr>", page(never, all_plots(never), []))
    assert row is not None
    assert re.findall(r">([^<>]+)</td>", row[0]) == ["code", "gspo", "2.000", "1", "-", "-", "-", "0.875"]


def test_a_run_with_one_task_type_writes_what_earlier_releases_read() -> None:
    plain = step_metrics(0)
    assert b"by_task_type" not in plain.to_json()
    assert StepMetrics.from_json(plain.to_json()) == plain
    assert " (" not in step_line(plain, 3).split(", gradient")[0]
    assert not {plot.name for plot in all_plots(ReportData(run="demo", steps_total=3, store="", steps=[plain]))} & {
        "reward-by-type"
    }
