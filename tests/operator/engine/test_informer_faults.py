"""List and watch against an API server that forgets, refuses, tears lines and falls silent: the cache is right in the end."""

import time
from collections.abc import Iterator

import pytest
from hostile_api import Answer, ScriptedApi, bookmark, config_map, event, listed, refusal

from servers import wait_until
from shoal_operator.engine.api_server import ApiServer
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.informer import LACKING_SECONDS, Informer, Timing
from shoal_operator.engine.kinds import CHILDREN, MANAGED_SELECTOR
from shoal_operator.engine.queue import WorkQueue

PATH = "/api/v1/namespaces/a/configmaps"
QUICK = Timing(watch=60, silence=0.5, first_retry=0.01, max_retry=0.05)
OPEN = Answer(body=[60.0])
"""A watch on which nothing happens."""


class Rig:
    """An informer with its cache; `names` is what it knows."""

    def __init__(self, hostile: ScriptedApi, timing: Timing = QUICK) -> None:
        self.hostile = hostile
        self.cache = Cache(WorkQueue())
        self.api = ApiServer(hostile.configuration)
        self.informer = Informer(self.api, self.cache, CHILDREN["ConfigMap"], "a", MANAGED_SELECTOR, timing=timing)
        self.script: list[Answer] = []

    def begin(self, lists: list[Answer], watches: list[Answer]) -> None:
        """Answer lists and watches in order; the last of each for ever."""

        def answer(asked: object) -> Answer:
            queue = watches if asked.query.get("watch") else lists
            return queue.pop(0) if len(queue) > 1 else queue[0]

        self.hostile.script(PATH, answer)
        self.informer.start()

    @property
    def values(self) -> dict[str, str]:
        return {found["metadata"]["name"]: found["data"]["key"] for found in self.cache.find("ConfigMap", "a", {})}

    def wait(self, **values: str) -> None:
        wait_until(f"the cache to be {values}", lambda: self.values == values)

    @property
    def lists(self) -> int:
        return len([asked for asked in self.hostile.requests(PATH) if not asked.query.get("watch")])

    @property
    def watched_from(self) -> list[str]:
        return [asked.query["resourceVersion"] for asked in self.hostile.requests(PATH) if asked.query.get("watch")]


@pytest.fixture
def rig(hostile: ScriptedApi) -> Iterator[Rig]:
    made = Rig(hostile)
    yield made
    made.informer.stop()
    hostile.ended.set()
    made.informer.join(5)
    assert not made.informer._thread.is_alive(), "it does not end when it is told to"


def test_a_list_in_pages_then_a_watch_with_bookmarks_from_its_version(rig: Rig) -> None:
    changes = [event("ADDED", config_map("c", 12, "3")), event("MODIFIED", config_map("a", 13, "4")), 60.0]
    rig.begin(
        [listed(10, config_map("a", 3, "1"), more="token"), listed(10, config_map("b", 4, "2"))], [Answer(body=changes)]
    )
    rig.wait(a="4", b="2", c="3")
    first, second, watch = rig.hostile.requests(PATH)[:3]
    assert first.query == {"labelSelector": MANAGED_SELECTOR, "limit": "500"}
    assert second.query["continue"] == "token"
    assert watch.query["resourceVersion"] == "10"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert 1 <= int(watch.query["timeoutSeconds"]) <= 60
    assert rig.informer.synced.is_set()


def test_a_watch_that_ends_is_followed_by_another_from_the_last_bookmark(rig: Rig) -> None:
    rig.begin([listed(10)], [Answer(body=[bookmark(50)]), OPEN])
    wait_until("a second watch", lambda: len(rig.watched_from) == 2)
    assert rig.watched_from == ["10", "50"]
    assert rig.lists == 1


@pytest.mark.parametrize(
    "gone",
    [
        refusal(410, "Expired", "too old resource version"),
        Answer(body=[event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})]),
    ],
    ids=["refused", "in the stream"],
)
def test_after_410_the_list_is_taken_again_and_what_is_not_on_it_is_gone(rig: Rig, gone: Answer) -> None:
    before = [config_map("a", 3, "1"), config_map("b", 4, "2")]
    rig.begin([listed(10, *before), listed(20, config_map("b", 15, "3"))], [gone, OPEN])
    rig.wait(b="3")
    wait_until("a watch from the new list", lambda: rig.watched_from[-1] == "20")


@pytest.mark.parametrize("status", [403, 404])
def test_a_kind_that_cannot_be_seen_for_a_moment_comes_back_as_it_was(
    rig: Rig, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as Workloads while an upgrade replaces the operator's rights. Nothing says that they are gone."""
    rig.informer = Informer(
        rig.api, rig.cache, CHILDREN["ConfigMap"], "a", MANAGED_SELECTOR, optional=True, timing=QUICK
    )
    seen: list[tuple[bool, dict[str, str]]] = []
    forget = rig.cache.forget

    def forgets(kind: str, namespace: str | None) -> None:
        seen.append((rig.informer.missing, rig.values))
        forget(kind, namespace)

    monkeypatch.setattr(rig.cache, "forget", forgets)
    there = listed(10, config_map("a", 3, "1"))
    rig.begin(
        [there, refusal(status, "Refused"), there], [Answer(body=[bookmark(50)]), refusal(status, "Refused"), OPEN]
    )
    wait_until("a watch after all that", lambda: len(rig.watched_from) == 3)
    assert rig.watched_from == ["10", "50", "10"]
    assert seen[0] == (True, {"a": "1"}), "it is said to be missing before it is not found any more"
    assert (rig.values, rig.informer.missing) == ({"a": "1"}, False)


def test_a_kind_that_is_lacking_is_asked_for_once_a_minute_and_taken_when_it_came(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica asks for each such kind, in each namespace."""
    rig.informer = Informer(rig.api, rig.cache, CHILDREN["ConfigMap"], "a", MANAGED_SELECTOR, optional=True)
    waits: list[float] = []
    monkeypatch.setattr(rig.informer, "_pause", waits.append)
    rig.begin([*[refusal(404, "NotFound")] * 30, listed(10, config_map("a", 3, "1"))], [OPEN])
    rig.wait(a="1")
    assert len(waits) == 30
    assert max(waits) <= LACKING_SECONDS == 60.0
    assert min(waits[10:]) >= LACKING_SECONDS / 2
    assert sum(waits[:5]) < 10, "a moment without rights, as in an upgrade, is over soon"


def test_what_one_namespace_lacks_the_others_have(rig: Rig) -> None:
    rig.informer.missing = True
    assert rig.informer.lacks("ConfigMap", "a")
    assert not rig.informer.lacks("ConfigMap", "b")
    assert not rig.informer.lacks("Workload", "a")
    rig.informer.start()


def test_an_expired_page_restarts_the_list(rig: Rig) -> None:
    rig.begin(
        [
            listed(10, config_map("a", 3, "1"), more="token"),
            refusal(410, "Expired"),
            listed(20, config_map("b", 15, "2")),
        ],
        [OPEN],
    )
    rig.wait(b="2")


def test_a_torn_line_is_not_taken_and_nothing_is_missed(rig: Rig) -> None:
    torn = Answer(
        body=[event("ADDED", config_map("a", 11, "1")), event("ADDED", config_map("b", 12, "2"))[:60]], torn=True
    )
    rig.begin([listed(10)], [torn, Answer(body=[event("ADDED", config_map("b", 12, "2")), 60.0])])
    rig.wait(a="1", b="2")
    assert rig.watched_from[:2] == ["10", "11"]


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {"kind": "ConfigMap"}}\n']
)
def test_a_line_that_is_not_an_event_ends_only_that_watch(rig: Rig, line: bytes) -> None:
    rig.begin([listed(10)], [Answer(body=[line]), Answer(body=[event("ADDED", config_map("a", 11, "1")), 60.0])])
    rig.wait(a="1")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refused_lists_and_watches_are_tried_until_they_succeed(rig: Rig, status: int) -> None:
    no = refusal(status, "Busy")
    rig.begin([no, no, listed(10)], [no, no, Answer(body=[event("ADDED", config_map("a", 11, "1")), 60.0])])
    rig.wait(a="1")


def test_an_error_event_ends_the_watch_and_one_that_stays_leads_to_a_new_list(rig: Rig) -> None:
    error = Answer(body=[event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"})])
    rig.begin([listed(10), listed(20, config_map("a", 15, "1"))], [error, error, error, error, OPEN])
    rig.wait(a="1")


def test_a_silent_watch_is_ended_and_the_list_is_taken_again(rig: Rig) -> None:
    rig.begin([listed(10), listed(20, config_map("a", 15, "1"))], [OPEN])
    began = rig.informer.heard_at
    rig.wait(a="1")
    assert rig.informer.heard_at == began, "neither silence nor a list is a sign of life of the watch"


def test_bookmarks_are_signs_of_life(rig: Rig) -> None:
    began = rig.informer.heard_at
    rig.begin([listed(10)], [Answer(body=[0.2, bookmark(11), 0.2, bookmark(12), 60.0])])
    wait_until("bookmarks to be heard", lambda: rig.informer.event_at > began and rig.informer.heard_at > began)


def test_a_server_that_ends_each_watch_at_once_is_not_asked_in_a_hot_loop(hostile: ScriptedApi) -> None:
    rig = Rig(hostile, Timing(watch=60, silence=5, first_retry=0.2, max_retry=1.0))
    rig.begin([listed(10)], [Answer(body=[])])
    time.sleep(1.0)
    rig.informer.stop()
    assert 1 <= len(rig.watched_from) <= 8


def test_a_watch_of_many_events_in_one_piece_takes_them_all(rig: Rig) -> None:
    lines = b"".join(event("ADDED", config_map(f"n{number}", 11 + number, "v")) for number in range(300))
    rig.begin([listed(10)], [Answer(body=[lines[:1000], lines[1000:70_000], lines[70_000:], 60.0])])
    wait_until("all events", lambda: len(rig.values) == 300)


def test_a_watch_without_chunks_is_read_as_it_comes(rig: Rig) -> None:
    rig.begin([listed(10)], [Answer(body=[event("ADDED", config_map("a", 11, "1")), 60.0], chunked=False)])
    rig.wait(a="1")
