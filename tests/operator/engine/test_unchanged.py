"""Work that is not done again while nothing that it read has changed: every other version of anything, and every other input, does it anew."""

from collections.abc import Callable
from typing import Any

import pytest
from hostile_api import Answer, ScriptedApi, config_map

from shoal_operator.engine.api_server import ApiServer
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.engine.events import EventRecorder
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.kubernetes_cluster import KubernetesCluster, Parts
from shoal_operator.engine.progress import RunProgressReader
from shoal_operator.engine.queue import WorkQueue
from shoal_operator.engine.storage_classes import StorageClasses
from shoal_operator.engine.unchanged import Unchanged
from shoal_operator.engine.warning_events import WarningEvents

RUN = Key("TrainingRun", "a", "sums")
OF_RUN = {"shoal.dev/run": "sums"}


class Rig:
    """A cluster over a cache that the test fills; `done` counts how often the work was really done."""

    def __init__(self, hostile: ScriptedApi) -> None:
        self.cache, self.done, self.version = Cache(WorkQueue()), 0, 10
        api = ApiServer(hostile.configuration)
        self.kept = Unchanged(self.cache)
        self.parts = Parts(
            api,
            self.cache,
            RunProgressReader(lambda key: None),
            EventRecorder(api, "op"),
            StorageClasses(api),
            WarningEvents(api),
            self.kept,
        )

    def cluster(self, key: Key = RUN) -> KubernetesCluster:
        return KubernetesCluster(self.parts, key)

    def see(self, name: str, *, event: str = "MODIFIED", **labels: str) -> None:
        self.version += 1
        found = config_map(name, self.version)
        found["metadata"]["labels"] |= {key.replace("_", "/", 1): value for key, value in labels.items()}
        self.cache.observe(event, found)

    def work(self, *, inputs: Any = 1, key: Key = RUN, **also: Callable[[KubernetesCluster], Any]) -> Any:
        """One pass: reads the ConfigMap `c`, that which is absent, and all of the run."""
        cluster = self.cluster(key)

        def do() -> Any:
            self.done += 1
            read = [
                cluster.get("ConfigMap", "c"),
                cluster.get("ConfigMap", "absent"),
                cluster.list("ConfigMap", OF_RUN),
            ]
            for each in also.values():
                each(cluster)
            return read

        return cluster.unchanged("work", inputs, do)


@pytest.fixture
def rig(hostile: ScriptedApi) -> Rig:
    made = Rig(hostile)
    for name in ("c", "d"):
        made.see(name, **{"shoal.dev_run": "sums"})
    made.work()
    return made


def test_it_is_not_done_again_and_gives_the_same(rig: Rig) -> None:
    assert rig.work() == rig.work()
    rig.see("nobody-reads-it")
    rig.work()
    assert rig.done == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda rig: rig.see("c", **{"shoal.dev_run": "sums"}),
        lambda rig: rig.see("d", **{"shoal.dev_run": "sums"}),
        lambda rig: rig.see("d"),
        lambda rig: rig.see("e", **{"shoal.dev_run": "sums"}),
        lambda rig: rig.see("absent"),
        lambda rig: rig.see("c", event="DELETED"),
    ],
    ids=["read", "listed", "no longer listed", "listed anew", "absent no more", "deleted"],
)
def test_whatever_it_read_has_changed_it_is_done_again_and_then_kept(rig: Rig, change: Callable[[Rig], None]) -> None:
    change(rig)
    rig.work()
    rig.work()
    assert rig.done == 2


def workload(version: int, owner: str = "sums", **also: Any) -> dict[str, Any]:
    reference = {"kind": "TrainingRun", "name": owner, "uid": owner, "controller": True}
    metadata = {"name": "w", "namespace": "a", "uid": "w", "resourceVersion": str(version), "labels": OF_RUN}
    found = {"kind": "StatefulSet", "metadata": metadata | {"ownerReferences": [reference]}, "spec": {"replicas": 1}}
    return found | also


def test_of_a_workload_it_gets_no_status_and_is_done_again_for_all_else(rig: Rig) -> None:
    def work() -> tuple[Any, Any]:
        cluster = rig.cluster()

        def do() -> Any:
            rig.done += 1
            return cluster.get("StatefulSet", "w"), cluster.list("StatefulSet", OF_RUN)

        return cluster.unchanged("workload", 1, do), cluster.get("StatefulSet", "w")

    rig.done = 0
    rig.cache.observe("ADDED", workload(100, status={"readyReplicas": 0}))
    assert "status" not in str(work()[0])
    rig.cache.observe("MODIFIED", workload(101, status={"readyReplicas": 1}))
    kept, live = work()
    assert (rig.done, live["status"]["readyReplicas"]) == (1, 1)
    assert "status" not in str(kept)
    for number, change in enumerate(({"replicas": 2}, {"replicas": 2, "paused": True})):
        rig.cache.observe("MODIFIED", workload(103 + number, spec=change))
        work()
        assert rig.done == 2 + number
    changed = workload(105, spec={"replicas": 2, "paused": True})
    changed["metadata"]["annotations"] = {"edited": "yes"}
    rig.cache.observe("MODIFIED", changed)
    work()
    assert rig.done == 4


def test_what_is_looked_for_by_its_controller_rests_on_that_ones_children_alone(rig: Rig) -> None:
    run = {"kind": "TrainingRun", "metadata": {"name": "sums"}}

    def work() -> Any:
        cluster = rig.cluster()

        def do() -> Any:
            rig.done += 1
            return [
                [each["metadata"]["name"] for each in cluster.controlled(kind, OF_RUN, by)]
                for kind, by in (("StatefulSet", run), ("ConfigMap", None), ("ConfigMap", run))
            ]

        return cluster.unchanged("by controller", 1, do)

    rig.done = 0
    rig.cache.observe("ADDED", workload(100))
    assert work() == [["w"], ["c", "d"], []]
    pool = {"kind": "InferencePool", "name": "math", "uid": "p", "controller": True}
    other = workload(101)
    other["metadata"] |= {"name": "of-a-pool", "ownerReferences": [pool]}
    rig.cache.observe("ADDED", other)
    assert (work(), rig.done) == ([["w"], ["c", "d"], []], 1)
    taken = workload(102)
    taken["metadata"] |= {"name": "of-a-pool"}
    rig.cache.observe("MODIFIED", taken)
    assert work() == [["of-a-pool", "w"], ["c", "d"], []]
    rig.cache.observe("MODIFIED", workload(103, owner="another"))
    assert work() == [["of-a-pool"], ["c", "d"], []]
    rig.cache.observe("DELETED", workload(104, owner="another"))
    taken["metadata"] |= {"resourceVersion": "105"}
    rig.cache.observe("DELETED", taken)
    assert work() == [[], ["c", "d"], []]


def test_other_inputs_another_owner_and_one_that_was_forgotten_have_nothing_kept(rig: Rig) -> None:
    rig.work(inputs=2)
    rig.work(inputs=2, key=RUN._replace(name="other"))
    rig.kept.forget(RUN)
    rig.work(inputs=2)
    assert rig.done == 4


@pytest.mark.parametrize(
    "also",
    [
        lambda cluster: cluster.now(),
        lambda cluster: cluster.apply(config_map("c", 1)),
        lambda cluster: cluster.adopt(config_map("c", 1)),
        lambda cluster: cluster.delete("ConfigMap", "c"),
        lambda cluster: cluster.apply_status("TrainingRun", "absent", {}),
        lambda cluster: cluster.read_foreign("ConfigMap", "c"),
        lambda cluster: cluster.run_progress("http://127.0.0.1:1"),
        lambda cluster: cluster.warning_about({"metadata": {"name": "x", "uid": "u"}}),
    ],
    ids=["time", "apply", "adopt", "delete", "status", "request", "progress", "events"],
)
def test_what_does_more_than_look_at_the_cache_is_never_kept(
    rig: Rig, hostile: ScriptedApi, also: Callable[[KubernetesCluster], Any]
) -> None:
    def answer(asked: Any) -> Answer:
        return Answer(body=b'{"items":[]}')

    for path in ("configmaps/c", "configmaps", "events"):
        hostile.script(f"/api/v1/namespaces/a/{path}", answer)
    hostile.script("/apis/events.k8s.io/v1/namespaces/a/events", answer)
    for _ in range(2):
        try:
            rig.work(inputs=2, also=also)
        except (ClusterError, KeyError):
            pass  # the scripted answers are no objects; it was asked for all the same
    assert rig.done == 3
    rig.parts.progress.close()


def test_work_that_failed_is_done_again(rig: Rig) -> None:
    def fail(cluster: KubernetesCluster) -> None:
        raise ClusterError("refused")

    for _ in range(2):
        with pytest.raises(ClusterError):
            rig.work(inputs=2, fail=fail)
    rig.work(inputs=2)
    rig.work(inputs=2)
    assert rig.done == 4


def test_work_within_other_work_is_part_of_it(rig: Rig) -> None:
    done: list[str] = []

    def inner(cluster: KubernetesCluster) -> None:
        done.append("inner")
        cluster.get("ConfigMap", "d")

    def outer() -> None:
        cluster = rig.cluster()

        def do() -> None:
            done.append("outer")
            cluster.unchanged("inner", 1, lambda: inner(cluster))
            cluster.get("ConfigMap", "c")

        cluster.unchanged("outer", 1, do)

    outer()
    outer()
    assert done == ["outer", "inner"]
    for name in ("d", "c"):
        done.clear()
        rig.see(name)
        outer()
        assert done == ["outer", "inner"], name
