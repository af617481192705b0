"""The page on the broadcast says what was measured, and its arithmetic is that of the program that writes it."""

import json

import pytest
from benchmarks.broadcast import page

from servers import ROOT

FIGURES = {
    "total_over_one_link": 1.1,
    "delta_ratio_1b": 10.0,
    "delta_encode_gbps": 0.4,
    "delta_decode_gbps": 0.31,
    "client_cpu_seconds_per_gb": 2.5,
    "measured_on": {"machine": "2 cores"},
}


def test_the_table_of_the_page_is_that_of_the_results() -> None:
    results = ROOT / "benchmarks" / "results" / "broadcast.json"
    found = json.loads(results.read_text()) if results.exists() else {}
    text = (ROOT / "docs" / "broadcast.md").read_text()
    assert page.replaced(text, page.table(found)) == text


def test_the_arithmetic_is_shown_with_its_result() -> None:
    lines = page.table(FIGURES)
    for row in (
        "| one copy over one link | 62 GB x 8 / 0.59 Gb/s | 841 |",
        "| a version in full, for who holds none | 1.1 x 841 s | 925 |",
        "| a version as a delta, sending | 1.1 x 841 s / 10 | 92 |",
        "| its encoding, two threads, while it is sent | 62 GB / (2 x 0.4 GB/s) | 78 |",
        "| its decoding, four threads, while it comes | 62 GB / (4 x 0.31 GB/s) | 50 |",
        "| CPU of a client, a version in full | 62 GB x 2.5 s/GB | 155 |",
    ):
        assert row in lines
    assert "the longest of them counts, 92 s" in lines


def test_figures_that_are_missing_are_named() -> None:
    assert page.table({"total_over_one_link": 1.0}).startswith("Not measured yet: delta_ratio_1b, delta_encode_gbps")


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the page needs a line"):
        page.replaced("no marks", "lines")
