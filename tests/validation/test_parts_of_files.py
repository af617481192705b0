"""Files that hold part of a lease, of a real engine: honest ones pass whoever made them, and nobody hands in anything else."""

from dataclasses import replace

import pytest
import tiny_policy
from court import JOB, Court

from shoal.contracts.rollouts import Rollout
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart

SIZE = tiny_policy.PUBLIC.group_size
OTHER = "77" * 32
PART = JOB.model_copy(update={"part": LeasePart(node=JOB.node, submission=JOB.submission, groups=[0, 2], left=1)})
REST = JOB.model_copy(
    update={
        "node": OTHER,
        "submission": FIRST_PART_NUMBER,
        "part": LeasePart(node=JOB.node, submission=JOB.submission, groups=[1]),
    }
)


def groups(rows: list[Rollout], *places: int) -> list[Rollout]:
    return [row for place in places for row in rows[place * SIZE : (place + 1) * SIZE]]


def as_others(rows: list[Rollout]) -> list[Rollout]:
    return [replace(row, node=OTHER, submission=FIRST_PART_NUMBER) for row in rows]


@pytest.fixture(scope="module")
def rows(court: Court) -> list[Rollout]:
    return court.rows(court.made.old)


def test_a_part_and_the_rest_by_another_node_are_accepted(court: Court, rows: list[Rollout]) -> None:
    part = court.judge(groups(rows, 0, 2), job=PART)
    rest = court.judge(as_others(groups(rows, 1)), job=REST)
    assert [(each.outcome, each.rows, each.part) for each in (part, rest)] == [
        ("accept", 2 * SIZE, PART.part),
        ("accept", SIZE, REST.part),
    ], (part.evidence, rest.evidence)


def test_rows_are_neither_left_out_nor_brought_twice_nor_taken_from_others(court: Court, rows: list[Rollout]) -> None:
    found = {
        "a group is missing": court.judge(groups(rows, 0), job=PART),
        "a disliked row is missing": court.judge(groups(rows, 0, 2)[1:], job=PART),
        "a liked group stands in for another": court.judge(groups(rows, 0, 1), job=PART),
        "all of the lease": court.judge(rows, job=PART),
        "groups that were handed in before": court.judge(as_others(groups(rows, 0)), job=REST),
        "the first node's rows, as they are": court.judge(groups(rows, 1), job=REST),
        "the rest as if it were drawn for the node": court.judge(
            as_others(groups(rows, 1)),
            job=REST.model_copy(update={"part": LeasePart(node=OTHER, submission=0, groups=[1])}),
        ),
    }
    reasons = {"all of the lease": "format", "the first node's rows, as they are": "identity"}
    assert {what: (each.outcome, each.reason) for what, each in found.items()} == {
        what: ("reject", reasons.get(what, "sampling")) for what in found
    }
