"""Islands as processes: any of them is killed or stands still at any moment, the others go on and stay the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "island_processes.py"


def play(scenario: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run a scenario to its end; every island's rounds."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), scenario, str(folder)],
        env=os.environ | {"RUST_LOG": "warn", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=650,
    )
    logs = "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{logs}"
    names = json.loads((folder / "seen.json").read_text())["names"]
    return {name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in names}


def check(rounds: dict[str, list[dict[str, Any]]]) -> None:
    """What must hold whatever happened, of the same rank of all islands. On a machine that is out of breath islands may take one another for dead
    and make a round apart; those that made one together have the same bits even then."""
    states: dict[tuple[int, tuple[str, ...]], set[str]] = {}
    for lines in rounds.values():
        for line in lines:
            assert line["in_place"], "the parameters are not the shared state's"
            states.setdefault((line["round"], tuple(line["islands"])), set()).add(line["digest"])
    different = {meeting: digests for meeting, digests in states.items() if len(digests) > 1}
    assert not different, f"islands disagree about {sorted(different)}"
    for name, lines in rounds.items():
        for before, line in zip([None, *lines], lines, strict=False):
            if before is None or before["pid"] != line["pid"]:
                assert name.partition(".")[0] not in line["contributors"], "a first round was contributed to"


def test_of_two_islands_either_is_killed_and_comes_back_and_both_stay_the_same_bits(tmp_path: Path) -> None:
    rounds = play("two", tmp_path)
    check(rounds)
    for name, lines in rounds.items():
        assert any(line["contributors"] == [name] for line in lines), "the survivor did not go on alone"
    restarted = [line for lines in rounds.values() for line in lines if line["joined"]]
    assert {tuple(line["islands"]) for line in restarted} == {("island-0", "island-1")}


@pytest.mark.soak
@pytest.mark.timeout(700)
def test_each_of_four_islands_is_killed_in_turn_and_comes_back_and_all_stay_the_same_bits(tmp_path: Path) -> None:
    check(play("four", tmp_path))


@pytest.mark.soak
@pytest.mark.timeout(700)
def test_an_island_that_stands_still_is_left_out_and_a_lighthouse_that_dies_ends_nothing(tmp_path: Path) -> None:
    rounds = play("slow", tmp_path)
    check(rounds)
    assert any(line["contributors"] == ["island-1"] for line in rounds["island-1"])
    assert any(line["joined"] for line in rounds["island-0"]), (
        "the one that stood still did not copy what it had missed"
    )


@pytest.mark.soak
@pytest.mark.timeout(700)
def test_islands_of_two_ranks_exchange_their_parts_and_one_dies_and_comes_back(tmp_path: Path) -> None:
    rounds = play("sharded", tmp_path)
    for rank in (".0", ".1"):
        check({name: lines for name, lines in rounds.items() if name.endswith(rank)})
