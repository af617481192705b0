"""`make reproduce`: one small arm end to end, what a second call does, and the numbers that the page is made of."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.reproduce import claims, early_warning
from benchmarks.reproduce.__main__ import compact, digest
from benchmarks.reproduce.arms import (
    ARMS,
    EXPERIMENTS,
    INFLIGHT_ARMS,
    MATCHED_ARMS,
    PADDED_TARGETS,
    PILOT_ARMS,
    REAL_ARMS,
    REAL_EXPERIMENTS,
    SEEDS,
    needed,
)
from benchmarks.reproduce.base import AskedLengths, hard_tasks, padded_addition, pool_of, start_of
from benchmarks.reproduce.largest import Largest, drawn
from benchmarks.reproduce.page import BEGIN, END, HOW, tables, write_page
from benchmarks.reproduce.simulator import simulate
from benchmarks.reproduce.summary import at_end, column, curve, each, interval, paired

from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import Score
from shoal.files import file_sha256

ROOT = Path(__file__).resolve().parents[2]


def reproduce(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.reproduce", "--quick", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduction")
    reproduce(out)
    return out


def seed_of(out: Path) -> dict[str, list[float | None]]:
    return json.loads((out / "reproduction.json").read_text())["arms"]["default"]["seeds"]["1"]


def test_an_arm_runs_with_the_trainers_own_functions_and_an_exact_async_level(quick: Path) -> None:
    columns = seed_of(quick)
    assert columns["step"] == [0, 1, 2, 3, 4]
    assert columns["version"] == [0, 0, 0, 1, None]  # async level 2: step s is sampled with version s - 2
    assert all(value > 0 for value in columns["gradient_norm"][:4] if value is not None)
    assert columns["held_out_reward"][0] is not None
    assert columns["held_out_reward"][4] is not None
    assert columns["held_out_reward"][1] is None  # measured every few steps, and at the end


def test_a_policy_without_any_signal_is_trained_on_what_there_is(quick: Path) -> None:
    columns = seed_of(quick)
    assert columns["task_reward"][0] == 0  # random weights add nothing up
    assert columns["groups_used"][:4] == [3] * 4


def test_the_distance_to_the_base_model_is_measured_where_no_penalty_is_asked_for(quick: Path) -> None:
    small = {"prompts_per_step": 3, "optimizer_steps": 2, "kl_coefficient": 0.0}
    arm = replace(ARMS["default"], steps=2, recipe=ARMS["default"].recipe | small, data="untaught", max_completion=8)
    first, second, _ = simulate(arm, 1, quick / "cache")
    assert all(each["kl"] for each in (first, second))


def test_a_second_call_runs_nothing_and_writes_the_same(quick: Path) -> None:
    before = (quick / "reproduction.json").read_bytes()
    assert " seed " not in reproduce(quick).stdout
    assert (quick / "reproduction.json").read_bytes() == before


def test_a_changed_arm_is_another_arm() -> None:
    every = ARMS | MATCHED_ARMS | INFLIGHT_ARMS | PILOT_ARMS | REAL_ARMS
    assert len({digest(arm) for arm in every.values()}) == len(every)


def test_every_arm_is_in_a_figure_and_every_curve_has_a_place_in_the_table() -> None:
    assert set(needed()) == set(ARMS)
    assert set(needed(REAL_EXPERIMENTS)) == set(REAL_ARMS)
    drawn = [*EXPERIMENTS.values(), *REAL_EXPERIMENTS.values()]
    assert {name for experiment in drawn for name in experiment.curves} <= set(HOW)
    assert len(SEEDS) >= 3


def test_a_padded_addition_is_right_whenever_its_unpadded_twin_is() -> None:
    class Chance:
        """No slips, and as much padding as there is."""

        def random(self) -> float:
            return 0.99

        def randint(self, low: int, high: int) -> int:
            return high

    environment = Arithmetic()
    task = environment.tasks(1, 3)[0]
    text = padded_addition(task, Chance())
    assert environment.score(task, text) == Score(1.0, "the sum is right")
    assert text.count(",") == 3


def test_a_lesson_of_a_base_model_that_is_told_keeps_to_the_length_asked_for_in_a_quarter_and_by_chance() -> None:
    environment, chance = AskedLengths(PADDED_TARGETS), random.Random(2)
    tasks = environment.tasks(300, 5)
    kept = 0
    for task in tasks:
        padding = task.metadata["padding"]
        assert environment.prompt(task, None) == Arithmetic().prompt(task, PADDED_TARGETS[padding])
        kept += padded_addition(task, chance).count(",") == 1 + padding
    assert 0.40 < kept / len(tasks) < 0.60  # a quarter, and a third of the others


def test_hard_tasks_are_three_digit_additions_with_their_answers() -> None:
    for task in hard_tasks(20, seed=1):
        left, right = (int(number) for number in str(task.prompt).removesuffix("=").split("+"))
        assert 100 <= left <= 999
        assert 100 <= right <= 999
        assert task.verification_info == {"answer": str(left + right)}


def test_the_real_models_tasks_ask_in_its_template_and_half_of_a_mixed_pool_is_out_of_reach() -> None:
    tasks, hard = Largest().tasks(4, 1), drawn("Product", 4, "1")
    assert tasks != Largest().tasks(4, 2)
    for task in tasks:
        *_, question, _ = str(task.prompt).split("<|im_start|>")
        numbers = [int(each) for each in question.split(":")[1].split("?")[0].split(",")]
        assert task.verification_info == {"answer": str(max(numbers))}
        assert Largest().score(task, str(max(numbers))).task_reward == 1.0
        assert Largest().score(task, f"{max(numbers)} ").task_reward == 0.0
    mixed = pool_of(REAL_ARMS["real_mixed"], tasks, hard[:2])
    assert mixed == [*tasks[:2], *hard[:2]]
    assert all(len(task.verification_info["answer"]) >= 4 for task in hard)
    assert pool_of(REAL_ARMS["real_async0"], tasks, hard) == tasks


def seeds(*ends: float) -> dict[str, dict[str, list[float | None]]]:
    return {
        str(number): {"step": [0, 5, 10], "held_out_reward": [0.3, None, end], "kl": [0.0, 1.0, 2.0]}
        for number, end in enumerate(ends)
    }


def test_a_missing_value_is_no_point_of_a_curve() -> None:
    steps, values = column(seeds(0.7)["0"], "held_out_reward")
    assert steps.tolist() == [0, 10]
    assert values.tolist() == [0.3, 0.7]


def test_a_band_is_students_interval_over_seeds() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.303 / np.sqrt(3))
    band = curve(seeds(0.5, 0.6, 0.7), "held_out_reward", extremes=False)
    assert band.high[-1] - band.mean[-1] == pytest.approx(4.303 * 0.1 / np.sqrt(3))
    extremes = curve(seeds(0.5, 0.6, 0.7), "held_out_reward", extremes=True)
    assert (extremes.low[-1], extremes.high[-1]) == (0.5, 0.7)


def test_differences_are_paired_by_seed_so_that_what_seeds_share_cancels() -> None:
    apart = paired(seeds(0.5, 0.7, 0.9), seeds(0.4, 0.6, 0.8), at_end, "held_out_reward")
    assert apart.mean == pytest.approx(0.05)  # of ends that are means of the last measurements
    assert apart.half == pytest.approx(0.0, abs=1e-12)
    assert each(seeds(0.5), at_end, "held_out_reward").count == 1


def test_columns_have_four_digits_and_none_where_a_step_has_no_value() -> None:
    assert compact([{"a": 0.123456}, {"b": 2}]) == {"a": [0.1235, None], "b": [None, 2]}


def test_the_page_keeps_its_prose_and_gets_new_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page({}, "new\n", page)
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_the_committed_results_are_of_the_arms_as_they_are() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "reproduction.json").read_text())["arms"]
    known = ARMS | MATCHED_ARMS | REAL_ARMS
    stale = [name for name, run in found.items() if name not in known or run["digest"] != digest(known[name])]
    assert not stale, f"run `make reproduce` for {stale}"
    assert tables(found) in (ROOT / "docs" / "reproduction.md").read_text(), (
        "run `python -m benchmarks.reproduce --page`"
    )


def test_the_committed_early_warnings_are_those_of_the_committed_runs() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "reproduction.json").read_text())
    runs = {name: run["seeds"] for name, run in found["arms"].items() if name in MATCHED_ARMS}
    signs = early_warning.signs(runs)
    assert signs
    assert found["early_warning"] == {sign.name: sign.document() for sign in signs}
    assert early_warning.table(signs) in (ROOT / "docs" / "reproduction.md").read_text()


STEPS = 60
FALL = 40


def trained(*, falls: bool = False, **columns: list[float]) -> dict[str, list[float | None]]:
    """A run measured every five steps, calm in all columns but those that are given."""
    rewards: list[float | None] = [
        None if step % 5 else 0.2 if falls and step >= FALL else 0.5 for step in range(STEPS + 1)
    ]
    names = ("moved_kl", "kl", "largest_ratio", "gradient_norm", "gradient_norm_max", "entropy", "clip_low", "clip_high", "clip_delta")  # fmt: skip
    steps: dict[str, list[float | None]] = {
        name: [*columns.get(name, [0.001 if name.startswith("clip") else 0.01] * STEPS), None] for name in names
    }
    return {"step": list(range(STEPS + 1)), "held_out_reward": rewards} | steps


def test_a_sign_leads_a_fall_by_the_steps_between_them_and_one_that_comes_with_it_is_late() -> None:
    early = trained(falls=True, kl=[0.01] * 30 + [9.0] * 30)
    late = trained(falls=True, kl=[0.01] * FALL + [9.0] * 20)
    calm = {str(seed): trained() for seed in range(4)}
    found = {
        sign.name: sign
        for sign in early_warning.signs({"a": calm, "b": {"1": early, "2": late, "3": trained(falls=True)}})
    }
    sign = found["KL to the base model, nats a token"]
    assert (sign.leads, sign.late, sign.unseen, sign.false_alarms, sign.calm) == ([FALL - 30], 1, 1, 0, 4)
    assert (found["gradient norm"].leads, found["gradient norm"].unseen) == ([], 3)
    assert (
        "| KL to the base model, nats a token | 0.02 | 1 of 3 | 10 (10 to 10) | 1 | 1 | 0 of 4 |"
        in early_warning.table(list(found.values()))
    )


def test_a_calm_run_that_shows_twice_what_all_others_do_is_a_false_alarm_and_raises_the_threshold() -> None:
    calm = {"1": trained(), "2": trained(), "3": trained(kl=[0.01] * 30 + [0.05] * 30)}
    found = {sign.name: sign for sign in early_warning.signs({"a": calm, "b": {"1": trained(falls=True)}})}
    sign = found["KL to the base model, nats a token"]
    assert (sign.threshold, sign.false_alarms) == (pytest.approx(0.1), 1)


def test_the_watchs_warnings_are_the_trainers_own() -> None:
    grows = trained(falls=True, gradient_norm=[0.1] * 20 + [1.0] * 40)
    found = {
        sign.name: sign for sign in early_warning.signs({"a": {"1": trained(), "2": trained()}, "b": {"1": grows}})
    }
    # ten steps to a window: two after the change their mean is 2.8, three after it 3.7 times that of the window before
    assert found["warning: gradient norm grew"].leads == [FALL - 22]
    assert found["warning: entropy rose"].unseen == found["warning: clip ratio grew"].unseen == 1
    assert found["warning: gradient norm grew"].false_alarms == 0
    assert found["warning: any that acts"].unseen == 1  # one trend alone


def test_a_trainer_acts_on_a_large_clip_ratio_alone_and_on_two_trends() -> None:
    far = trained(falls=True, clip_low=[0.001] * 30 + [0.2] * 30)
    trends = trained(falls=True, gradient_norm=[0.1] * 20 + [1.0] * 40, entropy=[0.1] * 20 + [1.0] * 40)
    runs = {"a": {"1": trained(), "2": trained()}, "b": {"1": far}, "c": {"1": trends}}
    found = {sign.name: sign for sign in early_warning.signs(runs)}
    assert found["warning: clip ratio is"].leads == [FALL - 30]
    assert found["warning: any that acts"].leads == [FALL - 30, FALL - 22]


def test_without_a_fall_there_is_nothing_to_foretell() -> None:
    assert early_warning.signs({"a": {"1": trained(), "2": trained()}}) == []
    assert early_warning.table([]) == ""


def claim(says: claims.Says, arms: tuple[str, ...] = ("a", "b"), margin: float = 0.03, **more: Any) -> claims.Claim:
    wanted: dict[str, Any] = {"column": "held_out_reward", "how": "end", "most_seeds": 16} | more
    return claims.Claim(name="c", paper="Figure 7", says=says, arms=arms, margin=margin, **wanted)


def ended(*ends: float) -> dict[str, dict[str, list[float]]]:
    return {
        str(seed): {"step": [0, 5, 10, 15], "held_out_reward": [0.3, *[end] * 3]} for seed, end in enumerate(ends, 1)
    }


APART = (0.0, 0.01, -0.01, 0.005)


@pytest.mark.parametrize(
    ("says", "shift", "outcome"),
    [
        ("within", 0.0, "shown"),
        ("within", 0.2, "contradicted"),
        ("within", 0.03, "not decided"),
        ("more", 0.2, "shown"),
        ("more", -0.2, "contradicted"),
        ("more", 0.03, "not decided"),
        ("less", -0.2, "shown"),
        ("less", 0.0, "contradicted"),
        ("not less", 0.0, "shown"),
        ("not less", -0.2, "contradicted"),
    ],
)
def test_a_claim_is_decided_where_its_whole_interval_is_on_one_side_of_the_margin(
    says: claims.Says, shift: float, outcome: str
) -> None:
    base = (0.5, 0.6, 0.7, 0.4)
    moved = [at + shift + apart for at, apart in zip(base, APART, strict=True)]
    found = claims.decide(claim(says), {"a": ended(*moved), "b": ended(*base)})
    assert (found.outcome, found.seeds) == (outcome, 4)
    assert found.estimate == pytest.approx(shift + np.mean(APART))
    half = claims.STUDENT[4] * np.std(APART, ddof=1) / 2
    assert found.interval == pytest.approx((found.estimate - half, found.estimate + half))
    assert found.wanted_seeds == (8 if outcome == "not decided" else 4)


def test_runs_that_began_with_other_base_models_are_no_pair() -> None:
    """Bases of one seed differ between kinds of machine: what their runs differ by is not what the arms differ by."""
    runs = {"a": ended(*[0.5] * 8), "b": ended(*[0.5] * 8)}
    for seed in "12345":
        runs["b"][seed]["held_out_reward"] = [0.2, *[0.9] * 3]
    assert claims.decide(claim("within"), runs).seeds == 0
    runs["b"]["5"]["held_out_reward"] = [0.3, *[0.5] * 3]
    found = claims.decide(claim("within", margin=0.1), runs)
    assert (found.seeds, found.estimate, found.outcome) == (4, 0.0, "shown")
    assert claims.apart(claim("within"), runs) == 4


@pytest.mark.soak
def test_a_seeds_base_model_is_the_same_whatever_instructions_a_machine_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of processor make two models when each uses its own."""
    found = set()
    for kind in ("avx2", "avx512"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", kind)
        (tmp_path / kind).mkdir()
        start = start_of(MATCHED_ARMS["matched_async2"], 9, tmp_path / kind)
        found.add(file_sha256(start.folder / "model.safetensors"))
    assert len(found) == 1


def test_arms_that_cannot_share_a_base_model_are_compared_by_seed() -> None:
    arms = ("matched_wide", "matched_async2")
    runs = {name: ended(*[0.5] * 4) for name in arms}
    for columns in runs["matched_wide"].values():
        columns["held_out_reward"] = [0.2, *[0.5] * 3]
    assert claims.decide(claim("within", arms), runs).seeds == 4
    assert (
        claims.decide(
            claim("within", ("matched_async0", "matched_async2")), {"matched_async0": runs[arms[0]], **runs}
        ).seeds
        == 0
    )


def test_of_one_arm_a_claim_bounds_the_value_itself() -> None:
    small = claim("less", ("a",), 0.15)
    assert claims.decide(small, {"a": ended(0.1, 0.11, 0.1, 0.09)}).outcome == "shown"
    assert claims.decide(small, {"a": ended(0.4, 0.41, 0.4, 0.39)}).outcome == "contradicted"


def test_seeds_between_two_looks_do_not_count_and_none_beyond_the_most() -> None:
    arm = ended(*[0.5, 0.9] * 12)
    found = claims.decide(claim("within", most_seeds=8), {"a": arm, "b": ended(*[0.9, 0.5] * 12)})
    assert (found.seeds, found.wanted_seeds, found.outcome) == (8, 8, "not decided")
    seven = {"a": ended(*[0.5] * 7), "b": ended(*[0.5] * 9)}
    assert claims.decide(claim("within"), seven).seeds == 4
    none = claims.decide(claim("within"), {"a": ended(0.5, 0.5)})
    assert (none.seeds, none.wanted_seeds, none.document()["estimate"]) == (0, 4, None)


def test_over_all_looks_a_claim_on_its_very_margin_is_decided_wrongly_in_one_of_twenty_at_most() -> None:
    """Either side is wrong there. At a plain 95 % interval at each look it would be one of eight."""
    draw, wrong, tries = np.random.default_rng(3), 0, 2000
    asked = claim("more", ("a",), 0.0, most_seeds=24)
    for _ in range(tries):
        ends = draw.normal(0.0, 0.1, 24)
        looks = (claims.decide(asked, {"a": ended(*ends[:look])}) for look in claims.LOOKS)
        wrong += any(found.decided for found in looks)
    assert 0.01 < wrong / tries < 0.06


def test_growth_and_late_rise_are_nothing_where_nothing_happens() -> None:
    """A value that is above 0 in any run would show its claim without a run."""
    draw = np.random.default_rng(4)
    found = {"growth_log10": [], "late_rise": []}  # type: dict[str, list[float]]
    for _ in range(200):
        seed = {"step": list(range(60)), "entropy": [float(each) for each in draw.normal(1.0, 0.1, 60)]}
        for how, values in found.items():
            values.append(claims.VALUES[how](seed, "entropy"))
    for values in found.values():
        assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(len(values))
    falls_and_rises = {"step": list(range(50)), "entropy": [1.0] * 10 + [0.2] * 20 + [0.5] * 20}
    assert claims.VALUES["late_rise"](falls_and_rises, "entropy") == pytest.approx(0.3)
    tenfold = {"step": list(range(50)), "entropy": [0.1] * 25 + [1.0] * 25}
    assert claims.VALUES["growth_log10"](tenfold, "entropy") == pytest.approx(1.0)


def test_the_claims_name_arms_and_columns_that_runs_have(quick: Path) -> None:
    found = claims.read()
    assert len(found) == 17
    assert {arm for each in found.values() for arm in each.arms} <= set(MATCHED_ARMS)
    for asked in found.values():
        assert claims._values(seed_of(quick), asked.column).size, asked.name
    said = json.loads((quick / "reproduction.json").read_text())["claims"]
    assert set(said) == set(found)
    assert all(set(entry) >= {"margin", "estimate", "interval", "seeds", "decided"} for entry in said.values())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"margin": -1}, "has a margin below 0"),
        ({"most_seeds": 5}, "has 5 seeds at most; allowed: "),
        ({"how": "luck"}, "measures by 'luck'; allowed: end, mean"),
        ({"arms": []}, "has 0 arms"),
    ],
)
def test_a_claim_that_cannot_be_decided_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    entry = json.loads((ROOT / "benchmarks" / "reproduce" / "claims.json").read_text())[0]
    (tmp_path / "claims.json").write_text(json.dumps([entry | change]))
    with pytest.raises(ValueError, match=f"claim 'async_1' {problem}"):
        claims.read(tmp_path / "claims.json")


def test_a_version_that_does_not_move_has_moved_by_nothing(quick: Path) -> None:
    columns = seed_of(quick)
    assert all(value is None or 0 <= value < 1 for value in columns["moved_kl"])
    assert max(value or 0.0 for value in columns["moved_ratio"]) > 0
