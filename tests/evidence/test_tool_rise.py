"""The benchmark of a tool's worth: what its committed figures say, and that its arms differ in the calculator alone."""

import json
from pathlib import Path

import pytest
from benchmarks.agents.tool_rise import ARMS, EXAMPLE, PICTURE, RESULT, Unaided, draw, figures_of

from shoal.cli.local_run import config_of, read_manifest
from shoal.environments.tool import CALL, CALL_END, Tool


def found_of(seed: int, rises: tuple[float, float]) -> dict[str, object]:
    curves = {
        arm: [
            {"step": 0, "held_out_reward": 0.1, "calls": 0.1},
            {"step": 5, "held_out_reward": 0.1 + rise, "calls": 0.2},
        ]
        for arm, rise in zip(ARMS, rises, strict=True)
    }
    return {"seed": seed, "rise": dict(zip(ARMS, rises, strict=True)), "curves": curves}


def test_the_worst_seed_counts() -> None:
    found = figures_of([found_of(1, (0.8, 0.01)), found_of(2, (0.5, -0.02))], config_of(read_manifest(EXAMPLE)))
    assert found["tool_reward_rise"] == 0.5
    assert found["tool_reward"]["largest_rise_without_tool"] == 0.01


def test_without_the_tool_a_call_has_no_output_and_all_else_is_the_same() -> None:
    task = Tool().tasks(1, seed=2)[0]
    with_tool, without = ARMS["with_tool"], ARMS["without_tool"]
    assert without.most_calls == 0 < with_tool.most_calls
    assert isinstance(without, Unaided)
    assert without.prompt(task, None) == with_tool.prompt(task, None)
    call = f"{CALL}1+1{CALL_END}"
    assert without.observe(task, call) == with_tool.observe(task, call)
    assert without.score(task, "Answer: 5") == with_tool.score(task, "Answer: 5")


def test_the_same_curves_give_the_same_picture(tmp_path: Path) -> None:
    seeds = [found_of(1, (0.8, 0.0)), found_of(2, (0.5, 0.0))]
    for name in ("a.svg", "b.svg"):
        draw(seeds, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_seed_whose_warm_start_failed_is_counted_and_has_no_rise(tmp_path: Path) -> None:
    config = config_of(read_manifest(EXAMPLE))
    failed = {"seed": 2, "warm_start_failed": "after 9 updates nothing is right"}
    seeds = [found_of(1, (0.8, 0.0)), failed]
    found = figures_of(seeds, config)
    assert found["tool_reward_warm_starts_failed"] == 1
    assert found["tool_reward"]["warm_start_failed"] == [2]
    assert found["tool_reward_rise"] == 0.8
    assert failed in found["tool_reward"]["seeds"]
    draw(seeds, tmp_path / "a.svg")
    with pytest.raises(SystemExit, match="warm start of every seed failed"):
        figures_of([failed], config)


def test_the_committed_figures_hold_what_the_documentation_says() -> None:
    """All three seeds rise by 0.3 and more."""
    found = json.loads(RESULT.read_text())
    seeds = found["tool_reward"]["seeds"]
    assert [each["seed"] for each in seeds] == [1, 2, 3]
    assert found["tool_reward"]["warm_start_failed"] == []
    assert found["tool_reward_warm_starts_failed"] == 0
    assert all(each["rise"]["with_tool"] >= 0.3 for each in seeds)
    assert all(each["rise"]["without_tool"] == 0 for each in seeds)
    assert found["tool_reward_rise"] == round(min(each["rise"]["with_tool"] for each in seeds), 3)
    assert PICTURE.is_file()
