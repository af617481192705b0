"""The benchmark of a tool's worth: which figures it writes, and that its arms differ in the calculator alone."""

from pathlib import Path

from benchmarks.agents.tool_rise import ARMS, EXAMPLE, Unaided, draw, figures_of

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
