"""Events of condition transitions: few, one for each transition, and the same one again is counted."""

import json
from typing import Any

import pytest
from hostile_api import Answer, Asked, ScriptedApi, refusal

from shoal_operator.engine import events
from shoal_operator.engine.api_server import ApiError, ApiServer
from shoal_operator.engine.events import FEWEST_SERIES, NOTE_LENGTH, SERIES_SECONDS, EventRecorder, Notice, transitions

RUN: dict[str, Any] = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums", "namespace": "a", "uid": "u1"},
}
PATH = "/apis/events.k8s.io/v1/namespaces/a/events"


def status(**conditions: str) -> dict[str, Any]:
    return {
        "conditions": [
            {"type": kind, "status": value, "reason": "Because", "message": "of this"}
            for kind, value in conditions.items()
        ]
    }


def test_a_new_object_has_no_news_of_what_it_is_not_yet() -> None:
    assert transitions({}, status(Complete="False", Failed="False", Suspended="False", Progressing="True")) == []


def test_what_is_wrong_with_a_new_object_is_told() -> None:
    after = status(Ready="False", Failed="False")
    assert transitions({}, after) == [Notice("Warning", "NotReady", "Ready is False: Because: of this")]
    after["conditions"][0]["reason"] = "ComponentsNotReady"
    assert [notice.type for notice in transitions({}, after)] == ["Normal"], "it only needs time"


def test_what_is_expected_of_a_run_is_told_only_when_it_is_not_so() -> None:
    good = status(
        Fits="True", VolumesReady="True", Learning="True", Stable="True", StalledOnSignal="False", Queued="False"
    )
    waiting = status(Fits="Unknown", VolumesReady="Unknown", Learning="Unknown")
    assert transitions({}, good) == transitions({}, waiting) == transitions(waiting, good) == []
    first = transitions({}, status(Fits="False", VolumesReady="False", Learning="False"))
    assert [notice.type for notice in first] == ["Warning"] * 3
    again = transitions(status(Fits="False"), status(Fits="True"))
    assert [(notice.type, notice.reason) for notice in again] == [("Normal", "Fits")]


def test_another_cause_of_not_being_ready_is_told_once() -> None:
    before, after = status(Ready="False"), status(Ready="False")
    after["conditions"][0]["reason"] = "PodsRefused"
    assert [notice.note for notice in transitions(before, after)] == ["Ready is False: PodsRefused: of this"]
    assert transitions(after, after) == []
    before["conditions"][0]["reason"] = "PodsNotReady"
    assert transitions(after, before) == []


def test_what_changed_is_told_once() -> None:
    before, after = status(Ready="False", Failed="False"), status(Ready="True", Failed="False")
    assert transitions(before, after) == [Notice("Normal", "Ready", "Ready is True: Because: of this")]
    assert transitions(after, after) == []


@pytest.mark.parametrize(
    ("kind", "was", "becomes", "type_", "reason"),
    [
        ("Ready", "True", "False", "Warning", "NotReady"),
        ("Failed", "False", "True", "Warning", "Failed"),
        ("Stable", "True", "False", "Warning", "NotStable"),
        ("Paused", "False", "True", "Warning", "Paused"),
        ("Fits", "True", "False", "Warning", "NotFits"),
        ("VolumesReady", "Unknown", "False", "Warning", "NotVolumesReady"),
        ("Learning", "True", "False", "Warning", "NotLearning"),
        ("StalledOnSignal", "False", "True", "Warning", "StalledOnSignal"),
        ("Queued", "False", "True", "Normal", "Queued"),
        ("Suspended", "False", "True", "Normal", "Suspended"),
        ("Complete", "False", "True", "Normal", "Complete"),
    ],
)
def test_what_is_bad_is_a_warning(kind: str, was: str, becomes: str, type_: str, reason: str) -> None:
    [notice] = transitions(status(**{kind: was}), status(**{kind: becomes}))
    assert (notice.type, notice.reason) == (type_, reason)


def test_single_components_progress_and_the_unknown_are_left_to_the_status() -> None:
    before = status(TrainerReady="True", Progressing="True", Ready="True")
    assert transitions(before, status(TrainerReady="False", Progressing="False", Ready="Unknown")) == []


def test_a_long_message_is_cut_to_what_the_api_server_takes() -> None:
    after = status(Failed="True")
    after["conditions"][0]["message"] = "x" * 5000
    [notice] = transitions({}, after)
    assert len(notice.note) == NOTE_LENGTH < 1024


class Rig:
    """A recorder whose clock the test moves."""

    def __init__(self, hostile: ScriptedApi) -> None:
        self.now = 0.0
        self.hostile = hostile
        self.patched: list[Asked] = []
        self.recorder = EventRecorder(ApiServer(hostile.configuration), "op-1", clock=lambda: self.now)
        hostile.script(PATH, self._create)

    def _create(self, asked: Asked) -> Answer:
        self.hostile.script(f"{PATH}/{asked.body['metadata']['name']}", self._patch)
        return Answer(body=json.dumps(asked.body).encode())

    def _patch(self, asked: Asked) -> Answer:
        self.patched.append(asked)
        return Answer(body=b"{}")


@pytest.fixture
def rig(hostile: ScriptedApi) -> Rig:
    return Rig(hostile)


NOTICE = Notice("Warning", "NotReady", "Ready is False: PodsNotReady")


def test_an_event_says_what_happened_to_what_and_who_says_so(rig: Rig) -> None:
    rig.recorder.record(RUN, NOTICE)
    [asked] = rig.hostile.requests(PATH)
    made = asked.body
    assert made["regarding"] == {"apiVersion": RUN["apiVersion"], "kind": "TrainingRun"} | RUN["metadata"]
    assert (made["type"], made["reason"], made["note"]) == NOTICE
    assert (made["reportingController"], made["reportingInstance"]) == ("shoal.dev/operator", "op-1")
    assert made["eventTime"].endswith("Z")
    assert len(made["eventTime"].split(".")[1]) == 7, "a MicroTime has six digits"


def test_the_same_again_is_counted_in_the_series_of_the_first(rig: Rig) -> None:
    for _ in range(3):
        rig.recorder.record(RUN, NOTICE)
    rig.recorder.record(RUN, NOTICE._replace(note="Ready is False: something else"))
    assert len(rig.hostile.requests(PATH)) == 2
    assert [asked.body["series"]["count"] for asked in rig.patched] == [2, 3]
    assert {asked.content_type for asked in rig.patched} == {"application/merge-patch+json"}


def test_after_half_an_hour_of_quiet_it_is_an_event_of_its_own(rig: Rig) -> None:
    rig.recorder.record(RUN, NOTICE)
    rig.now += SERIES_SECONDS + 1
    rig.recorder.record(RUN, NOTICE)
    assert len(rig.hostile.requests(PATH)) == 2


def test_series_that_ended_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fewest = 16
    monkeypatch.setattr(events, "FEWEST_SERIES", fewest)
    for number in range(20 * fewest):
        rig.now += 2 * SERIES_SECONDS / fewest  # half as many are alive at any time
        rig.recorder.record({**RUN, "metadata": {**RUN["metadata"], "uid": f"u{number}"}}, NOTICE)
        assert number < FEWEST_SERIES or len(rig.recorder._series) <= 2 * fewest
    rig.recorder.record({**RUN, "metadata": {**RUN["metadata"], "uid": f"u{number}"}}, NOTICE)
    assert len(rig.patched) == 1, "the newest still counts"


def test_a_series_whose_event_the_cluster_dropped_begins_anew(rig: Rig) -> None:
    rig.recorder.record(RUN, NOTICE)
    name = rig.hostile.requests(PATH)[0].body["metadata"]["name"]
    rig.hostile.script(f"{PATH}/{name}", refusal(404, "NotFound"))
    rig.recorder.record(RUN, NOTICE)
    assert len(rig.hostile.requests(PATH)) == 2


def test_a_refused_event_holds_nothing_up(rig: Rig) -> None:
    rig.hostile.script(PATH, refusal(403, "Forbidden", "namespace is being terminated"))
    with pytest.raises(ApiError, match="403"):
        rig.recorder.record(RUN, NOTICE)
    rig.recorder.start()
    rig.recorder.transitions(RUN, status(Ready="True"), status(Ready="False"))
    rig.recorder.stop()
    assert len(rig.hostile.requests(PATH)) == 2
