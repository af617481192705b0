"""Lines of metrics.jsonl: what is read back, and how counters add up over restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_documents import sample

from shoal.report.records import (
    SessionRecord,
    increases,
    metric_key,
    metric_labels,
    parse_records,
    part_of,
    total_increase,
)


def test_records_come_back_as_they_were_written() -> None:
    written = [SessionRecord(unix=1, event="start"), sample(2, "worker", cpu_seconds=1.5, metrics={"shoal_x": 2.0})]
    assert parse_records([record.to_json().decode() for record in written]) == (written, 0)


def test_a_line_that_a_kill_cut_is_counted_and_left_out() -> None:
    whole = SessionRecord(unix=1, event="start").to_json().decode()
    records, unreadable = parse_records([whole, '{"kind":"sample","unix":3,"po', ""])
    assert len(records) == 1
    assert unreadable == 1


def test_a_counter_that_only_grows_increases_by_its_last_value() -> None:
    assert total_increase([(0, 1, 3.0), (5, 1, 4.0), (10, 1, 9.0)]) == 9.0


def test_a_fresh_process_counts_from_zero_even_when_its_value_is_higher() -> None:
    assert total_increase([(0, 1, 3.0), (5, 2, 4.0)]) == 7.0


def test_a_value_that_fell_is_a_restart_even_without_process_ids() -> None:
    assert total_increase([(0, None, 3.0), (5, None, 1.0)]) == 4.0


def test_no_readings_increase_nothing() -> None:
    assert list(increases([])) == []


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=5), max_size=5))
def test_the_total_is_the_sum_of_what_every_process_reached(lives: list[list[float]]) -> None:
    readings = [(float(n), pid, value) for pid, life in enumerate(lives) for n, value in enumerate(sorted(life))]
    assert total_increase(readings) == pytest.approx(sum(max(life) for life in lives))


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=4))
def test_labels_survive_the_key_whatever_is_in_them(labels: dict[str, str]) -> None:
    assert metric_labels(metric_key("shoal_x", labels)) == ("shoal_x", labels)


@pytest.mark.parametrize(
    ("pod", "container", "part"),
    [
        ("demo-relay-1", "nginx", "relay nginx"),
        ("demo-trainer-1-0", "nginx", "origin nginx"),
        ("my-relay-trainer-1-0", "nginx", "origin nginx"),  # a run may be called my-relay
        ("demo-pool-0", "worker", "worker"),
    ],
)
def test_a_part_is_its_container_and_the_two_kinds_of_nginx_are_told_apart(pod: str, container: str, part: str) -> None:
    assert part_of(pod, container) == part
