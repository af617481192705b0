"""Scores of versions, where they are shown: the report, the page's document, the lines of `shoal up`."""

import json
from pathlib import Path

import pytest
from run_documents import progress, snapshot, step_metrics

from samples import EVALUATION, RUN
from shoal.cli.lines import events
from shoal.cli.reporting import score_lines
from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion, EvaluationProgress
from shoal.evaluation.versions import VersionEvaluation
from shoal.report.collect import collect
from shoal.report.evaluations import COLUMNS, score_rows
from shoal.report.facts import StoreFacts, StoreReader
from shoal.report.html import page
from shoal.report.times import StoreTimes
from shoal.report.view import SnapshotHistory
from shoal.storage.store import open_folder
from shoal.ui.documents import evaluations_document, timeline_document
from shoal.ui.watch import Seen

UNASKED = EVALUATION.model_copy(
    update={"version": 12, "slices_done": 0, "tasks_asked": 0, "nodes": 0, "unix": None, "scores": None}
)
BEST = BestVersion(version=6, benchmark="sums", value=0.5)


@pytest.fixture
def facts(tmp_path: Path) -> StoreFacts:
    """What lies in the store of a run that scored two versions, the second of them not at all."""
    (tmp_path / "store").mkdir()
    store = open_folder(tmp_path / "store", f"shoal/{RUN}", deadline_seconds=2.0)
    for record in (UNASKED, EVALUATION):
        store.put(keys.evaluation(record.version, "sums"), record.to_json())
    store.put(keys.BEST_VERSION, BEST.to_json())
    store.put(keys.evaluation(18, "sums"), b"{}")
    return StoreReader(store).read()


def test_records_are_read_and_one_that_is_not_readable_is_a_note(facts: StoreFacts) -> None:
    assert [each.version for each in facts.evaluations] == [6, 12]
    assert facts.best_version == BEST
    assert facts.notes == ["evaluations/v000018/sums.json cannot be read and was left out: 7 mistakes"]


def test_the_report_has_a_row_a_version_and_marks_the_best(facts: StoreFacts) -> None:
    data = collect(RUN, 10, facts, [])
    shown = page(data, [], [])
    assert "Scores of versions" in shown
    assert "6 on sums (best)" in shown
    assert "50.0 % (avg@2)" in shown
    assert "0 of 64" in shown
    written = json.loads(json.dumps(data.to_json()))
    assert written["best_version"]["version"] == 6
    assert written["evaluations"][0]["scores"]["avg_at_k"]["value"] == 0.5
    assert "problems" not in written["evaluations"][0]["scores"], "one line a problem stays in the store"


def test_a_run_that_scores_nothing_has_no_table() -> None:
    data = collect(RUN, 10, StoreFacts(kind="folder", steps=[step_metrics(0)]), [])
    assert "Scores of versions" not in page(data, [], [])
    assert data.to_json()["evaluations"] is None


def test_rows_are_by_benchmark_then_version_and_have_a_cell_for_every_column() -> None:
    other = EVALUATION.model_copy(update={"benchmark": EVALUATION.benchmark.model_copy(update={"name": "aime"})})
    rows = score_rows([UNASKED, EVALUATION, other])
    assert [(row.benchmark, row.version) for row in rows] == [("aime", 6), ("sums", 6), ("sums", 12)]
    assert {len(row.cells) for row in rows} == {len(COLUMNS) - 1}
    assert rows[1].cells == ("50.0 % (avg@2)", "5.5 % to 94.5 %", "100.0 % (pass@2)", "26", "50.0 %", "1 of 64")
    assert (rows[2].value, rows[2].cells[0], rows[2].complete) == (None, "-", False)


def test_the_page_shows_scores_and_what_is_under_way(facts: StoreFacts) -> None:
    going = EvaluationProgress(version=18, benchmark="sums", slices=16, slices_done=3)
    seen = Seen(snapshot(progress=progress(evaluations=[going])), facts, StoreTimes(), SnapshotHistory())
    shown = evaluations_document(seen)
    assert [(row["version"], row["best"]) for row in shown["rows"]] == [(6, True), (12, False)]
    assert shown["under_way"] == ["version 18 on sums: 3 of 16 files"]
    assert timeline_document(seen, 8)["rows"] == []


def test_an_evaluation_that_ended_is_a_line() -> None:
    def told(**changes: object) -> EvaluationProgress:
        return EvaluationProgress.model_validate(
            {"version": 6, "benchmark": "sums", "slices": 4, "slices_done": 4, "ended": True, **changes}
        )

    before = snapshot(progress=progress(evaluations=[told(ended=False)]))
    assert events(before, snapshot(progress=progress(evaluations=[told(avg_at_k=0.625)]))) == [
        "version 6 on sums: 62.5 % right"
    ]
    assert events(before, snapshot(progress=progress(evaluations=[told(avg_at_k=0.625, low=0.5, high=0.75)]))) == [
        "version 6 on sums: 62.5 % right (95 % interval 50.0 % to 75.0 %)"
    ]
    assert events(before, snapshot(progress=progress(evaluations=[told(slices_done=2)]))) == [
        "version 6 on sums: not fully scored"
    ]


def test_a_record_cannot_have_more_slices_than_its_benchmark() -> None:
    with pytest.raises(ValueError, match="slices_done is 17, but the benchmark has 16 slices"):
        VersionEvaluation.model_validate(EVALUATION.model_dump() | {"slices_done": 17})


def test_the_last_words_of_a_run_have_the_scores_of_its_first_and_newest_version_and_the_best_one() -> None:
    newer = EVALUATION.model_copy(update={"version": 24})
    assert score_lines([UNASKED, newer, EVALUATION], BEST) == [
        "on sums: version 6: 50.0 % right (5.5 % to 94.5 %); version 24: 50.0 % right (5.5 % to 94.5 %); best: version 6 with 50.0 %; "
        "not fully scored: version 12"
    ]
    assert score_lines([UNASKED], None) == ["on sums: not fully scored: version 12"]
