"""The trust benchmark's own arithmetic: what it counts, what it takes over from others, what it derives."""

import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks.trust import system_figures, weight_sets, whole_runs
from benchmarks.trust.__main__ import counted, summary
from benchmarks.trust.cpu_time import cpu_seconds
from benchmarks.trust.figure import captions, curves
from benchmarks.trust.page import (
    ALL_ROWS,
    PAGE,
    PICTURE,
    draw_curves,
    every_row_seconds,
    honest_counts,
    power_lines,
    replaced,
    write_page,
)
from cheat_table import CHEATS

from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import Verdict
from shoal.crypto.keys import PrivateKey
from shoal.storage.store import open_folder

REPORT = """
PASSED tests/adversary/test_adversaries.py::test_a_dishonest_file_is_rejected_for_its_own_reason[int8-weights]
PASSED tests/adversary/test_adversaries.py::test_a_file_that_was_handed_in_before_is_refused_at_once[replayed-file]
PASSED tests/adversary/test_adversaries.py::test_honest_files_fill_the_first_step
FAILED tests/adversary/test_adversaries.py::test_a_dishonest_file_is_rejected_for_its_own_reason[colder] - AssertionError
"""


def test_a_cheat_counts_as_rejected_when_the_test_of_its_verdict_passes() -> None:
    assert counted(REPORT) == {
        "total": 3,
        "rejected": 2,
        "cheats": ["colder", "int8-weights", "replayed-file"],
        "not_rejected": ["colder"],
    }


def test_a_suite_that_reports_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="reported no cheat at all"):
        counted("no tests ran")


def test_what_nobody_has_measured_is_none_and_not_zero(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_text(json.dumps({"proof_overhead": 0.01, "swap_seconds": 0.05, "more": 1}))
    found = summary({"adversaries": {"total": 3, "rejected": 3}}, tmp_path)
    assert found["proof_overhead"] == 0.01
    assert found["adversaries_total"] == 3
    assert found["first_token_after_version_seconds"] is None
    assert found["build_speedup"] is None
    assert found["honest_false_reject_rate"] is None
    assert set(found) >= {
        "proof_overhead", "swap_seconds", "first_token_after_version_seconds", "toploc_build_us_per_chunk",
        "toploc_verify_us_per_chunk", "build_speedup", "verify_speedup", "verify_to_generate_compute",
        "honest_false_reject_rate", "adversaries_total", "adversaries_rejected",
    }  # fmt: skip


def test_of_a_whole_run_counts_what_was_judged_and_what_a_second_look_did_not_find(tmp_path: Path) -> None:
    store = open_folder(tmp_path, "run")
    fates = [("accept", None), ("accept", None), ("accept", None), ("reject", "token_sampling"), ("expired", None)]
    for number, (outcome, reason) in enumerate(fates):
        verdict = Verdict.model_validate(
            {
                "run": "run", "node": "a" * 64, "lease": f"{number:032x}", "step": 1, "submission": number, "policy_version": 1,
                "sha256": f"{number:064x}", "outcome": outcome, "reason": reason, "rows": 2, "proof_rows": 1 if number == 2 else 2,
                "rewards": [dict.fromkeys(("task_reward", "length_penalty", "reward"))] * 2 if outcome == "accept" else [],
            }
        )  # fmt: skip
        store.put(keys.verdict(verdict.node, verdict.sha256), sign(verdict, PrivateKey.generate()).to_json())
        if number in (1, 3):
            store.put(f"{keys.opinions(verdict.node, verdict.sha256)}{'b' * 64}.json", b"{}")
    found = whole_runs.counted("a run", store)
    assert (found["files"], found["sequences"], found["rejected"], found["not_confirmed"]) == (4, 8, 1, 1)
    assert not found["every_row_checked"]
    assert found["evidence"].startswith("token_sampling")


def test_the_published_whole_runs_are_of_files_with_every_row_checked() -> None:
    published = json.loads((PAGE.parents[1] / "benchmarks/results/trust.json").read_text())
    rows = {row["run"]: row for row in published["parts"]["whole-runs"]["runs"]}
    assert rows.keys() == whole_runs.RUNS.keys()
    assert all(row["every_row_checked"] and row["files"] > 100 for row in rows.values())
    assert published["honest_false_reject_rate_upper_95"]["float32"] < 0.02


def test_honest_files_are_counted_by_type_of_serving_over_all_parts() -> None:
    plain = {"dtype": "float32", "files": 25, "rejected_files": 1}
    parts = {
        "honest": plain, "whole-runs": plain,
        "adaptive": {"bfloat16": {"honest": {"files": 24, "rejected": 0}}, "seconds": 3.0, "versions": {"torch": "2"}},
        "many-files": {"float32": {"files": 3000, "rejected": 0}, "machine": "one"},
    }  # fmt: skip
    assert honest_counts(parts) == {"float32": (3050, 2), "bfloat16": (24, 0)}


def test_cpu_seconds_grow_with_work() -> None:
    before = cpu_seconds()
    total = sum(number * number for number in range(3_000_000))
    assert total > 0
    assert cpu_seconds() > before


def test_a_file_with_every_row_checked_takes_what_grows_with_the_drawn_rows_as_often_as_they_go_into_all() -> None:
    assumed = {"rows": 64, "proof_rows_share": 0.1}
    assert every_row_seconds({"assumed": assumed, "seconds": {ALL_ROWS: 2.0, "prefill": 7.0}}) == 2.0 + 64.0
    paper = json.loads((PAGE.parents[1] / "benchmarks/results/trust.json").read_text())["parts"]["cost"]["paper_size"]
    assert set(paper["seconds"]) > {ALL_ROWS}
    assert f"the same rates make {every_row_seconds(paper):.0f} s" in PAGE.read_text()


@pytest.mark.parametrize(("kind", "levels"), [("int8", 255), ("int4", 15)])
def test_quantised_weights_have_no_more_levels_than_their_bits_allow(kind: str, levels: int) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    found = weight_sets.CHANGES[kind]({name: weight.clone()})[name]
    for group in found.reshape(-1, weight_sets.INT4_GROUP if kind == "int4" else 64):
        assert len(group.unique()) <= levels
    assert 0 < float((found - weight).abs().max()) < 0.5


def test_embeddings_norms_and_head_are_not_quantised() -> None:
    kept = {name: torch.randn(4, 32) for name in ("lm_head.weight", "model.norm.weight", "model.embed_tokens.weight")}
    for kind in ("int8", "fp8", "int4"):
        found = weight_sets.CHANGES[kind](dict(kept))
        assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_the_page_lists_every_cheat_with_its_reason() -> None:
    page = PAGE.read_text()
    for cheat in CHEATS:
        assert f"| {cheat.name}: {cheat.does} | {cheat.reason or 'refused before it is queued'} |" in page
    assert page.count("| refused before it is queued |") == 1


def test_a_measured_table_replaces_the_one_before_it() -> None:
    page = "before\n<!-- honest -->\nold\n<!-- end of honest -->\nafter\n"
    assert replaced(page, "honest", ["new"]) == page.replace("old", "new")
    with pytest.raises(ValueError, match="the page lacks the marks <!-- cost -->"):
        replaced(page, "cost", ["new"])


RESULT = PAGE.parents[1] / "benchmarks" / "results" / "trust.json"
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+(?=[ \"\n])")
NAME = re.compile(r"\b[mp][0-9a-f]{10}\b")
"""Of a marker or a clip path, a hash of what it is."""


def test_the_page_and_its_picture_are_what_the_committed_figures_give(tmp_path: Path) -> None:
    """Where this fails: `python -m benchmarks.trust merge`, which measures nothing."""
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    write_page(json.loads(RESULT.read_text())["parts"], page)
    assert page.read_text() == PAGE.read_text()
    drawn, committed = ((folder / PICTURE).read_text() for folder in (tmp_path, PAGE.parent))
    assert NAME.sub("", NUMBER.sub("", drawn)) == NAME.sub("", NUMBER.sub("", committed))
    places = [[float(number) for number in NUMBER.findall(NAME.sub("", text))] for text in (drawn, committed)]
    assert places[0] == pytest.approx(places[1], abs=0.01), "points of a picture 700 wide"


def file_with(false_rows: int, **found: float) -> dict[str, float]:
    return {
        "false_rows": false_rows,
        "tokens_not_drawn": 0.0,
        "reward_shift": 0.0,
        "rejected": 0,
        "accepted": 40,
    } | found


def test_curves_are_shares_of_a_files_rows_and_of_the_judges_looks() -> None:
    files = [file_with(1), file_with(12, tokens_not_drawn=0.02, reward_shift=-0.1, rejected=10, accepted=3)]
    checked = {"cheap": {"int8": {"share": 0.054}}, "reward_shift_up": 0.01, "reward_shift_down": -0.02}
    found = curves(
        {"bfloat16": {"rows": 48, "looks": 40, "int8": files, "up": []}, "float32": {"rows": 4, "looks": 1}},
        {"bfloat16": checked},
        {"bfloat16": (3000, 2)},
    )
    assert found["bfloat16"].aims == {
        "int8": {
            "rows": [pytest.approx(100 / 48), 25.0], "tokens": [0.0, 2.0], "reward": [0.0, -0.1],
            "passed": [100.0, 75.0], "accepted": [100.0, 7.5],
        }
    }  # fmt: skip
    assert found["bfloat16"].checked == {
        "int8": {"tokens": pytest.approx(5.4)}, "up": {"reward": 0.01}, "down": {"reward": -0.02}
    }  # fmt: skip
    assert found["bfloat16"].honest == (3000, 2)
    assert (found["float32"].aims, found["float32"].checked, found["float32"].honest) == ({}, {}, None)
    said = captions(found)
    assert said[1] == "Honest files that were rejected with every row checked: bfloat16 2 of 3000."
    assert said[2] == "Not measured with every row checked: float32."


def test_without_figures_of_good_standing_there_is_no_picture(tmp_path: Path) -> None:
    assert draw_curves({}, tmp_path / "none.svg") == ["Not measured yet."]
    assert not (tmp_path / "none.svg").exists()


def test_the_power_table_names_what_is_not_told_from_honest() -> None:
    seen = {"rejected": 0, "judged": 8, "reasons": {}}
    found = seen | {"rejected": 8, "reasons": {"computation": 8}}
    weights = {"honest": {"probation": seen}, "int8": {"probation": seen}, "int4": {"probation": found}}
    lines = power_lines({"bfloat16": {"weights": weights}, "seconds": 3.0})
    assert lines[2] == "| honest | 0/8 | nothing | yes, as it should be |"
    assert lines[3] == "| int8 | 0/8 | nothing | everywhere: not told from honest |"
    assert lines[4] == "| int4 | 8/8 | computation | nowhere |"


def test_figures_of_the_system_stand_beside_the_others_in_one_layout(tmp_path: Path) -> None:
    path = tmp_path / "trust_system.json"
    path.write_text(system_figures.RESULT.read_text())
    system_figures.merge({}, path)
    assert path.read_text() == system_figures.RESULT.read_text()
    system_figures.merge({"runner_attacks": 99.0, "new": 0.5}, path)
    assert list(json.loads(path.read_text())) == [*json.loads(system_figures.RESULT.read_text()), "new"]
    assert '"runner_attacks": 99,' in path.read_text()
