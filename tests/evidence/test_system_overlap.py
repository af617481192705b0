"""What overlapped in a run of the real system: seconds of each step from what the store says, the bars of the picture, the table."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.reproduce import agreement, overlap, system
from benchmarks.reproduce.__main__ import compact
from benchmarks.reproduce.arms import MATCHED_ARMS
from benchmarks.reproduce.page import BEGIN, END
from run_documents import NODE, step_metrics

from servers import ROOT
from shoal.contracts import keys
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.report.facts import StoreFacts
from shoal.report.times import StoreTimes

STEPS = 14
RECIPE = system.recipe_of(MATCHED_ARMS["matched_async2"])
MIXED, EQUAL = [1.0] + [0.0] * 7, [1.0] * 8


def verdict(step: int, number: int, solved: list[float]) -> Verdict:
    rewards = [RowReward(task_reward=each, length_penalty=0.0, reward=each) for each in solved]
    return Verdict(
        run="demo", node=NODE, lease=f"{number:032x}", step=step, submission=number, sha256=f"{1000 * step + number:064x}",
        policy_version=step, outcome="accept", rewards=rewards, rows=len(rewards), check_seconds=0.5,
    )  # fmt: skip


def left(steps: int = STEPS, solved: list[float] = MIXED * 8) -> tuple[StoreFacts, StoreTimes]:
    """Step s begins at 1000 + 10 s, a second after its version was sealed; two files: one within 2 s, checked at 3, one from 2 to 5, checked at 5.5.

    Training (run_documents) waits 3 s and works until second 8.
    """
    facts, times = StoreFacts(kind="folder", steps=[step_metrics(step) for step in range(steps)]), StoreTimes()
    for step in range(steps):
        begin = 1000.0 + 10 * step
        times.opened[step], times.sealed[step] = begin - 1.25, begin - 1
        for number, (leased, submitted, judged) in enumerate(((0, 2, 3), (2, 5, 5.5))):
            found = verdict(step, number, solved)
            facts.verdicts.append(found)
            facts.verdict_unix[keys.verdict(NODE, found.sha256)] = begin + judged
            times.leased[NODE, step, number] = begin + leased
            times.submitted[NODE, found.sha256] = begin + submitted
    return facts, times


def test_a_steps_seconds_are_those_of_the_store() -> None:
    found, _ = overlap.of_run(*left(), RECIPE)
    assert len(found) == STEPS
    assert found[6] == {
        "broadcast_seconds": 0.25,  # of version 7, which the step makes
        "generation_seconds": 5.0,
        "verification_seconds": 1.0,
        "wait_seconds": 3.0,
        "training_seconds": 5.0,
        "overlap_seconds": 2.0,
        "first_file_seconds": 3.0,
        "batch_seconds": 6.5,
        "checked_files": 2,
    }


def test_groups_without_signal_fill_a_batch_only_without_the_online_filter() -> None:
    facts, times = left(solved=MIXED * 4 + EQUAL * 4)
    [*_, tenth, _, _, _, _] = overlap.of_run(facts, times, RECIPE)[0]
    assert tenth["batch_seconds"] == 16.5  # eight groups of this step and eight of the next
    everything = system.recipe_of(MATCHED_ARMS["matched_no_online"])
    assert overlap.of_run(facts, times, everything)[0][9]["batch_seconds"] == 6.5


def test_what_the_store_does_not_say_has_no_figure() -> None:
    facts, _ = left()
    row = overlap.of_run(facts, StoreTimes(), RECIPE)[0][6]
    assert (row["broadcast_seconds"], row["generation_seconds"]) == (None, None)
    assert (row["first_file_seconds"], row["batch_seconds"]) == (None, None)
    last = overlap.of_run(*left(solved=EQUAL * 8), RECIPE)[0][-1]
    assert last["batch_seconds"] is None


def test_bars_are_those_of_the_steps_that_are_shown() -> None:
    _, bars = overlap.of_run(*left(), RECIPE)
    shown = range(STEPS // 2, STEPS // 2 + overlap.SHOWN_STEPS)
    assert {step for lane, step, *_ in bars if lane == "training"} == set(shown)
    assert ["training", 7, 0.0, 3.0, 0, "wait"] in bars
    assert ["generation", 7, 2.0, 5.0, 0, "accept"] in bars
    assert all(0 <= start <= end <= 10 * overlap.SHOWN_STEPS for _, _, start, end, _, _ in bars)


def document(**changes: Any) -> dict[str, Any]:
    rows, bars = overlap.of_run(*left(), RECIPE)
    columns = compact([{"step": step} | row for step, row in enumerate(rows)])
    seeds = {"9": {"system": columns | changes, "bars": bars}}
    return {"steps": STEPS, "arms": {"matched_async2": {"digest": "", "seeds": seeds}}}


def test_the_table_has_the_papers_figures_and_a_row_a_run() -> None:
    lines = overlap.table(document()).splitlines()
    assert lines[-1] == "| `matched_async2`, 9 | 0.25 s | 3.00 s | 6.50 s | 0.50 s | 5.00 s | 3.00 s | 40% |"
    assert sum("the paper" in line for line in lines) == 2
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert overlap.table({"steps": 0, "arms": {}}) == ""


def test_a_column_without_values_is_no_number() -> None:
    nothing = document(first_file_seconds=[None] * STEPS, checked_files=[0] * STEPS)
    assert overlap.table(nothing).splitlines()[-1].count("nan s") == 2


@pytest.mark.parametrize("arms", [0, 1, 2])
def test_the_picture_has_a_panel_an_arm(tmp_path: Path, arms: int) -> None:
    made = document()
    [run] = made["arms"].values()
    made["arms"] = {f"arm{number}": run for number in range(arms)}
    path = tmp_path / "images" / "overlap.png"
    overlap.draw(made, path)
    assert path.exists() == bool(arms)
    assert not arms or path.read_bytes().startswith(b"\x89PNG")


def test_the_committed_runs_stand_on_the_page() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text().partition(BEGIN)[2].partition(END)[0]
    found = overlap.table(agreement.read(system.SYSTEM_RESULT))
    assert found in page, "run `python -m benchmarks.reproduce.system --page`"
    assert not found or (ROOT / "docs" / "images" / "reproduction" / "overlap.png").exists()
