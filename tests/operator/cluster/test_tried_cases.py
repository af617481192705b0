"""What an administrator reads on a bad day: a share of the cases of `tried_cases.yaml` here, all of them in `make soak`.

With `WRITE_RESULTS=1` the whole writes its figures into `benchmarks/results/operator.json`, as `python -m benchmarks.operator --cases` does.
"""

from collections.abc import Sequence

import pytest
from control_plane import ControlPlane
from hollow_node import HollowNode
from kube_client import Kube
from orchestrators import Orchestrators
from tried_cases import OWN, Case, Stage, played, progress, read_cases

CASES = read_cases()
FEWEST = 200
SHARE = 11
"""One case in this number is tried here: some 20, from all groups."""
PATIENT_SECONDS = 240.0
"""A machine that others use is slower than the minute of the benchmark."""


@pytest.fixture
def stage(control_plane: ControlPlane, kube: Kube, node: HollowNode, orchestrators: Orchestrators) -> Stage:
    kinds = ",".join(f"{each.lower()}s" for each in OWN)
    return Stage(kube, node, orchestrators, lambda space: control_plane.kubectl("describe", kinds, "-n", space))


def untold(stage: Stage, cases: Sequence[Case]) -> list[str]:
    outcomes = stage.try_cases(cases, PATIENT_SECONDS)
    assert len(outcomes) == len(cases)
    return [f"{each.case.done}: {each.lacks}" for each in outcomes if each.lacks]


def test_there_are_as_many_cases_as_promised_and_each_can_be_played() -> None:
    assert len(CASES) >= FEWEST
    assert all(callable(played(how)) for case in CASES for how in case.pods.values())
    assert all(progress("sums", case.says) for case in CASES if case.says is not None)


@pytest.mark.usefixtures("operator")
def test_a_case_whose_cause_nobody_says_is_found(stage: Stage) -> None:
    said = Case("a healthy run", ("no such words",))
    printed = Case("a refusal", ("no such words",), refused=True, spec={"steps": 0})
    found = stage.try_cases([said, printed], patience=5.0)
    assert [each.told for each in found] == [False, False]


@pytest.mark.usefixtures("operator")
def test_a_share_of_the_cases_names_its_cause(stage: Stage) -> None:
    assert untold(stage, CASES[::SHARE]) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("operator")
def test_every_case_names_its_cause(stage: Stage) -> None:
    assert untold(stage, CASES) == []
