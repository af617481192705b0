"""The cache: the newest version wins whichever way it came, nothing that was deleted comes back, and a change concerns exactly whom it should."""

import tracemalloc
from typing import Any

import pytest

from shoal_operator.engine.cache import LARGEST_STRANGER, OWN_WRITE_DELAY_SECONDS, Cache, entry_of, trimmed
from shoal_operator.engine.kinds import Key

RUN = Key("TrainingRun", "a", "sums")
POOL = Key("InferencePool", "a", "sums-pool")


NOW, ROUTINE, SETTLING = "now", "after what is urgent", "when it has settled"


class Told:
    """Collects the keys that the cache enqueues, and when they are to be looked at."""

    def __init__(self) -> None:
        self.keys: list[tuple[Key, str | float]] = []

    def add(self, key: Key) -> None:
        self.keys.append((key, NOW))

    def add_after(self, key: Key, seconds: float) -> None:
        self.keys.append((key, seconds))

    def add_routine(self, key: Key) -> None:
        self.keys.append((key, ROUTINE))

    def add_settling(self, key: Key) -> None:
        self.keys.append((key, SETTLING))

    def taken(self) -> dict[Key, str | float]:
        found = dict(self.keys)
        self.keys.clear()
        return found


def thing(kind: str, name: str, version: int, owner: Key | None = None, **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "a",
        "resourceVersion": str(version),
        "uid": f"{kind}-{name}",
    }
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner.kind, "name": owner.name, "uid": "u", "controller": True}]
    metadata |= more.pop("metadata", {})
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def a_pool(version: int, **more: Any) -> dict[str, Any]:
    return thing("InferencePool", "sums-pool", version, spec={"run": "sums"}, **more)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def cache(told: Told) -> Cache:
    """One run with one pool, known and looked at."""
    made = Cache(told)
    made.observe("ADDED", thing("TrainingRun", "sums", 1))
    made.observe("ADDED", a_pool(2))
    told.taken()
    return made


def test_an_object_of_ours_concerns_itself_and_the_run_that_it_serves(cache: Cache, told: Told) -> None:
    cache.observe("MODIFIED", a_pool(3))
    assert told.taken() == {POOL: NOW, RUN: SETTLING}


def test_what_is_listed_goes_behind_what_was_edited_while_no_operator_ran(told: Told) -> None:
    applied = a_pool(3, metadata={"generation": 2}, status={"observedGeneration": 2})
    Cache(told).observe("LISTED", applied)
    assert told.taken() == {POOL: ROUTINE}
    Cache(told).observe("MODIFIED", applied)
    assert told.taken() == {POOL: NOW}
    for status in ({"observedGeneration": 1}, {}):
        Cache(told).observe("LISTED", a_pool(3, metadata={"generation": 2}, status=status))
        assert told.taken() == {POOL: NOW}


def test_a_pool_of_a_run_in_another_cluster_concerns_itself_alone(told: Told) -> None:
    Cache(told).observe("ADDED", a_pool(3))
    assert told.taken() == {POOL: NOW}


def test_a_child_concerns_its_owner_a_moment_later(cache: Cache, told: Told) -> None:
    cache.observe("ADDED", thing("StatefulSet", "sums-pool", 4, POOL))
    assert told.taken() == {POOL: SETTLING}


def test_a_pod_concerns_the_owner_of_its_workload(cache: Cache, told: Told) -> None:
    cache.observe("ADDED", thing("StatefulSet", "sums-pool", 4, POOL))
    cache.observe("ADDED", thing("Deployment", "sums-validator", 5, RUN))
    told.taken()
    cache.observe("ADDED", thing("Pod", "sums-pool-0", 6, Key("StatefulSet", "a", "sums-pool")))
    assert told.taken() == {POOL: SETTLING}
    cache.observe("ADDED", thing("Pod", "sums-validator-6d4-x", 7, Key("ReplicaSet", "a", "sums-validator-6d4")))
    assert told.taken() == {RUN: SETTLING}


def test_a_pod_of_a_group_concerns_its_pool_though_what_lies_between_is_not_watched(cache: Cache, told: Told) -> None:
    cache.observe("ADDED", thing("LeaderWorkerSet", "sums-pool", 4, POOL))
    told.taken()
    labels = {"labels": {"shoal.dev/set": "sums-pool"}}
    for name, number in (("sums-pool-0", 5), ("sums-pool-0-1", 6)):
        between = Key("StatefulSet", "a", name.removesuffix("-1").removesuffix("-0"))
        cache.observe("ADDED", thing("Pod", name, number, between, metadata=labels))
        assert told.taken() == {POOL: SETTLING}


def test_what_nobody_of_ours_owns_concerns_nobody(cache: Cache, told: Told) -> None:
    cache.observe("ADDED", thing("ConfigMap", "other", 4))
    cache.observe("ADDED", thing("Pod", "stray", 5, Key("ReplicaSet", "a", "gone-1")))
    assert told.taken() == {}


def test_a_runs_config_map_concerns_all_that_serve_the_run(cache: Cache, told: Told) -> None:
    cache.observe("ADDED", thing("Validator", "sums-validator", 4, spec={"run": "sums"}))
    cache.observe("ADDED", thing("Validator", "else", 5, spec={"run": "else"}))
    told.taken()
    cache.observe("ADDED", thing("ConfigMap", "sums-join", 6, RUN, metadata={"labels": {"shoal.dev/run": "sums"}}))
    assert set(told.taken()) == {RUN, POOL, Key("Validator", "a", "sums-validator")}


def test_an_event_that_is_known_already_concerns_nobody(cache: Cache, told: Told) -> None:
    cache.observe("MODIFIED", a_pool(3))
    told.taken()
    cache.observe("MODIFIED", a_pool(3))  # kopf's watch saw it too
    cache.observe("LISTED", a_pool(3))
    assert told.taken() == {}


def test_what_a_write_returned_is_read_at_once_and_its_echo_is_no_news(cache: Cache, told: Told) -> None:
    cache.wrote(thing("StatefulSet", "sums-pool", 9, POOL, spec={"replicas": 3}), by=POOL)
    found = cache.get(Key("StatefulSet", "a", "sums-pool"))
    assert found is not None
    assert found["spec"] == {"replicas": 3}
    assert told.taken() == {POOL: OWN_WRITE_DELAY_SECONDS}, "looked at once more, later"
    cache.observe("ADDED", thing("StatefulSet", "sums-pool", 9, POOL, spec={"replicas": 3}))
    assert told.taken() == {}


def test_a_change_of_anothers_spec_concerns_that_one_at_once(cache: Cache, told: Told) -> None:
    cache.wrote(a_pool(9), by=RUN)
    assert told.taken() == {POOL: ROUTINE, RUN: OWN_WRITE_DELAY_SECONDS}, "our status"
    cache.wrote(a_pool(10, metadata={"generation": 2}), by=RUN)
    assert told.taken() == {POOL: NOW, RUN: OWN_WRITE_DELAY_SECONDS}, "our change of its spec"


def test_an_older_event_changes_nothing_but_is_looked_at(cache: Cache, told: Told) -> None:
    """Somebody's write, which ours overtook: it is in what ours returned, but no reconcile has seen it."""
    cache.wrote(thing("StatefulSet", "sums-pool", 9, POOL, spec={"replicas": 3}), by=POOL)
    told.taken()
    cache.observe("MODIFIED", thing("StatefulSet", "sums-pool", 8, POOL, spec={"replicas": 2}))
    found = cache.get(Key("StatefulSet", "a", "sums-pool"))
    assert found is not None
    assert found["spec"] == {"replicas": 3}
    assert told.taken() == {POOL: SETTLING}


def test_an_edit_that_came_back_with_our_status_is_not_lost(cache: Cache, told: Told) -> None:
    cache.observe("MODIFIED", a_pool(3, metadata={"generation": 1}))
    told.taken()
    cache.wrote(a_pool(9, metadata={"generation": 2}), by=POOL)
    assert told.taken()[POOL] == NOW


def test_a_status_of_our_own_is_no_reason_to_look_again_unless_somebody_else_wrote_meanwhile(
    cache: Cache, told: Told
) -> None:
    cache.observe("MODIFIED", a_pool(3))
    told.taken()
    cache.wrote(a_pool(4, status={"readyReplicas": 1}), by=POOL)
    assert POOL not in told.taken()
    cache.wrote(a_pool(6, status={"readyReplicas": 2}, metadata={"annotations": {"theirs": "1"}}), by=POOL)
    assert told.taken() == {RUN: ROUTINE, POOL: OWN_WRITE_DELAY_SECONDS}
    cache.observe("MODIFIED", a_pool(6, status={"readyReplicas": 2}))
    assert told.taken() == {}, "the echo"


def test_a_deleted_object_is_not_brought_back_by_late_events_or_answers(cache: Cache, told: Told) -> None:
    cache.observe("DELETED", a_pool(7))
    assert told.taken() == {POOL: NOW, RUN: SETTLING}
    cache.observe("MODIFIED", a_pool(5))
    cache.wrote(a_pool(6), by=RUN)
    assert cache.get(POOL) is None
    assert told.taken() == {}
    cache.observe("ADDED", a_pool(8))  # made anew
    assert cache.get(POOL) is not None


def test_a_late_deletion_does_not_remove_a_successor(cache: Cache) -> None:
    cache.wrote(a_pool(9), by=RUN)
    cache.observe("DELETED", a_pool(8))
    assert cache.get(POOL) is not None


def test_a_list_removes_what_is_older_and_not_on_it(cache: Cache, told: Told) -> None:
    child = Key("ConfigMap", "a", "mine")
    cache.observe("ADDED", thing("ConfigMap", "mine", 4, POOL))
    cache.wrote(thing("ConfigMap", "new", 20, POOL), by=POOL)  # written after the list was taken
    told.taken()
    cache.retain("ConfigMap", "a", set(), 10)
    assert cache.get(child) is None
    assert cache.get(Key("ConfigMap", "a", "new")) is not None
    assert cache.get(POOL) is not None, "other kinds are another list's"
    assert told.taken() == {POOL: NOW}


def test_a_list_of_one_namespace_says_nothing_of_another(cache: Cache) -> None:
    cache.retain("InferencePool", "b", set(), 10)
    assert cache.get(POOL) is not None
    cache.retain("InferencePool", None, set(), 10)
    assert cache.get(POOL) is None


def test_objects_are_found_by_labels_and_readers_cannot_change_them(cache: Cache) -> None:
    for number in range(3):
        labels = {"shoal.dev/run": "sums", "shoal.dev/set": f"s{number % 2}"}
        cache.observe("ADDED", thing("Pod", f"p{number}", 10 + number, metadata={"labels": labels}))
    found = cache.find("Pod", "a", {"shoal.dev/run": "sums", "shoal.dev/set": "s0"})
    assert [pod["metadata"]["name"] for pod in found] == ["p0", "p2"]
    found[0]["metadata"]["labels"]["shoal.dev/set"] = "s1"
    assert len(cache.find("Pod", "a", {"shoal.dev/set": "s0"})) == 2
    assert cache.find("Pod", "b", {}) == []
    cache.observe("MODIFIED", thing("Pod", "p0", 20))  # lost its labels
    assert [pod["metadata"]["name"] for pod in cache.find("Pod", "a", {"shoal.dev/set": "s0"})] == ["p2"]
    assert len(cache.find("Pod", "a", {})) == 3


def test_what_serves_a_run_is_found_without_looking_at_what_serves_others(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serves(kind: str, name: str, version: int, run: str) -> None:
        cache.observe("MODIFIED", thing(kind, name, version, spec={"run": run}))

    serves("InferencePool", "another", 10, "sums")
    serves("Validator", "checks", 11, "sums")
    for number in range(50):
        serves("InferencePool", f"p{number}", 20 + number, "products")
    looked_at = list[str]()
    get = Cache.get
    monkeypatch.setattr(Cache, "get", lambda self, key: (looked_at.append(key.name), get(self, key))[1])
    assert cache.serving("InferencePool", "a", "sums") == [
        "another",
        POOL.name,
    ]
    assert looked_at == []
    serves("InferencePool", "another", 100, "products")
    assert cache.serving("InferencePool", "a", "sums") == [POOL.name]
    assert cache.serving("InferencePool", "b", "sums") == []


def test_what_nobody_reads_is_not_kept() -> None:
    fields = [{"manager": "x", "fieldsV1": {}}]
    kept = trimmed(thing("StatefulSet", "s", 1, metadata={"managedFields": fields}, spec={"replicas": 1}))
    assert "managedFields" not in kept["metadata"]
    assert kept["spec"] == {"replicas": 1}
    spec = {"nodeName": "n", "containers": [{"name": "c", "env": []}]}
    pod = trimmed(thing("Pod", "p", 1, spec=spec, status={"phase": "Pending", "podIP": "10.0.0.1"}))
    assert pod["spec"] == {"nodeName": "n"}
    assert pod["status"] == {"phase": "Pending"}


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
def test_of_what_is_large_and_nobodys_only_metadata_is_kept(kind: str) -> None:
    large = {"data": {"a": "x" * (LARGEST_STRANGER + 1)}}
    strange = entry_of(thing(kind, "c", 1, **large))
    assert len(strange.data) < 1000
    assert b'"name":"c"' in strange.data
    assert len(entry_of(thing(kind, "c", 1, RUN, **large)).data) > LARGEST_STRANGER
    assert b'"data"' in entry_of(thing(kind, "c", 1, data={"a": "x"})).data


@pytest.mark.parametrize("version", ["", "x", None])
def test_an_object_without_a_usable_version_is_refused(version: str | None) -> None:
    with pytest.raises((ValueError, TypeError)):
        entry_of(thing("ConfigMap", "c", 1, metadata={"resourceVersion": version}))


def test_a_run_is_told_with_its_stall_once_the_operator_has_looked_at_it(cache: Cache) -> None:
    assert cache.stalled() == []

    def told(version: int, status: str, reason: str) -> list[tuple[Key, str]]:
        found = {"conditions": [{"type": "Stalled", "status": status, "reason": reason}]}
        cache.observe("MODIFIED", thing("TrainingRun", "sums", version, status=found))
        return cache.stalled()

    assert told(10, "False", "Progressing") == [(RUN, "")]
    assert told(11, "True", "NoWorker") == [(RUN, "NoWorker")]


def test_a_pod_that_failed_and_was_replaced_is_remembered_until_its_run_is_gone(cache: Cache) -> None:
    labels = {"labels": {"shoal.dev/run": "sums"}}
    for number in range(9):
        failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"GPU {number} is broken"}
        cache.observe(
            "ADDED", thing("Pod", "sums-pool-0", 10 * number + 10, metadata=labels, status={"phase": "Pending"})
        )
        cache.observe("MODIFIED", thing("Pod", "sums-pool-0", 10 * number + 11, metadata=labels, status=failed))
        cache.observe("DELETED", thing("Pod", "sums-pool-0", 10 * number + 12, metadata=labels, status=failed))
    cache.observe("ADDED", thing("Pod", "well", 200, metadata=labels, status={"phase": "Running"}))
    cache.observe("DELETED", thing("Pod", "well", 201, metadata=labels, status={"phase": "Running"}))
    found = cache.failed_pods("a", "sums")
    assert [each["status"]["message"] for each in found] == [f"GPU {number} is broken" for number in range(5, 9)]
    assert cache.failed_pods("b", "sums") == []
    cache.observe("DELETED", thing("TrainingRun", "sums", 300))
    assert cache.failed_pods("a", "sums") == []


def test_objects_take_little_more_memory_than_their_text(told: Told) -> None:
    cache = Cache(told)
    found = [
        thing("ConfigMap", f"c{number}", 2 + number, data={f"key{at}": "v" * 20 for at in range(80)})
        for number in range(100)
    ]
    tracemalloc.start()
    try:
        for each in found:
            cache.observe("ADDED", each)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = sum(len(entry.data) for _, entry in cache.entries("ConfigMap", "a", {}))
    assert text > 200_000
    assert taken < 2 * text
