"""The Lease's edge and the whole engine of one replica, against an API server that does as the test says."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import kopf
import pytest
from hostile_api import Answer, Asked, ScriptedApi, discovery, listed, listed_whole, refusal

from servers import PLAIN, Loopback, wait_until
from shoal_operator import handlers
from shoal_operator.api import InferencePool
from shoal_operator.engine.api_server import CATCHES_UP_SECONDS, UNMAPPED, ApiServer
from shoal_operator.engine.cluster import Cluster, ClusterError
from shoal_operator.engine.election import ElectionTiming
from shoal_operator.engine.informer import DEAF_SECONDS
from shoal_operator.engine.kinds import CACHED, OWN, Key, Resource
from shoal_operator.engine.lease import LeaseHolder
from shoal_operator.engine.manager import STUCK_SECONDS, Manager, Options
from shoal_operator.engine.relist import RelistTiming
from shoal_operator.kopf_loop import KopfLoop
from shoal_operator.reconcile.common import parse

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ops/leases"
LEASE = f"{LEASES}/shoal-operator"
QUICK = ElectionTiming(duration=3, renew_deadline=2.0, retry=0.1)


class LeaseStore:
    """One Lease with optimistic concurrency, as an API server keeps it."""

    def __init__(self, hostile: ScriptedApi, spec: dict[str, Any] | None = None) -> None:
        self.live: dict[str, Any] | None = None
        self.version = 1
        self.away = False
        self.lock = threading.Lock()
        if spec is not None:
            self.live = {"metadata": {"name": "shoal-operator", "resourceVersion": "1"}, "spec": spec}
        hostile.script(LEASE, self.serve)
        hostile.script(LEASES, self.serve)

    @property
    def holder(self) -> str:
        return "" if self.live is None else self.live["spec"]["holderIdentity"]

    def serve(self, asked: Asked) -> Answer:
        with self.lock:
            if self.away:
                return refusal(500, "InternalError")
            if asked.method == "GET":
                return refusal(404, "NotFound") if self.live is None else Answer(body=json.dumps(self.live).encode())
            if asked.method == "POST" and self.live is not None:
                return refusal(409, "AlreadyExists")
            if asked.method == "PUT" and asked.body["metadata"]["resourceVersion"] != str(self.version):
                return refusal(409, "Conflict")
            self.version += 1
            metadata = {**asked.body["metadata"], "resourceVersion": str(self.version)}
            self.live = {**asked.body, "metadata": metadata}
            return Answer(body=json.dumps(self.live).encode())


class Replica:
    """A LeaseHolder that says what happened to it."""

    def __init__(self, hostile: ScriptedApi, name: str) -> None:
        self.elected, self.lost = threading.Event(), threading.Event()
        self.holder = LeaseHolder(
            ApiServer(hostile.configuration),
            "ops",
            name,
            elected=self.elected.set,
            lost=lambda why: self.lost.set(),
            timing=QUICK,
        )


def test_the_first_replica_makes_the_lease_and_leads(hostile: ScriptedApi) -> None:
    store, replica = LeaseStore(hostile), Replica(hostile, "a")
    replica.holder.step()
    assert replica.elected.is_set()
    assert replica.holder.leads()
    assert store.live is not None
    spec = store.live["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 3, 0)
    assert len(spec["renewTime"].split(".")[1]) == 7, "a MicroTime has six digits"


def test_a_standby_only_reads(hostile: ScriptedApi) -> None:
    LeaseStore(hostile, {"holderIdentity": "b", "leaseDurationSeconds": 60})
    replica = Replica(hostile, "a")
    for _ in range(3):
        replica.holder.step()
    assert {asked.method for asked in hostile.asked} == {"GET"}
    assert not replica.holder.leads()
    assert not replica.elected.is_set()


def test_of_two_that_take_the_lease_at_once_one_leads(hostile: ScriptedApi) -> None:
    store = LeaseStore(hostile, {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4})
    one, two = Replica(hostile, "a"), Replica(hostile, "b")
    real = two.holder._read

    def read_then_be_overtaken() -> Any:
        found = real()
        one.holder.step()
        return found

    two.holder._read = read_then_be_overtaken
    two.holder.step()
    assert (one.holder.leads(), two.holder.leads()) == (True, False)
    assert store.holder == "a"
    assert store.live is not None
    assert store.live["spec"]["leaseTransitions"] == 5


def test_a_released_lease_is_led_by_the_next_at_once(hostile: ScriptedApi) -> None:
    store, one, two = LeaseStore(hostile), Replica(hostile, "a"), Replica(hostile, "b")
    one.holder.start()
    assert one.elected.wait(10)
    two.holder.start()
    assert not two.elected.wait(0.5)
    one.holder.release()
    assert two.elected.wait(10)
    assert store.holder == "b"
    assert not one.lost.is_set(), "to give it back is no loss"
    assert not one.holder.leads(), "a reconcile that is still in hand must not write any more"
    two.holder.release()
    assert store.holder == ""


def test_a_leader_that_cannot_renew_is_told_that_it_lost(hostile: ScriptedApi) -> None:
    store, replica = LeaseStore(hostile), Replica(hostile, "a")
    replica.holder.start()
    assert replica.elected.wait(10)
    store.away = True
    assert replica.lost.wait(10)
    assert not replica.holder.leads()
    store.away = False
    replica.holder.release()


def test_a_leader_whose_lease_was_taken_is_told_that_it_lost(hostile: ScriptedApi) -> None:
    store, replica = LeaseStore(hostile), Replica(hostile, "a")
    replica.holder.start()
    assert replica.elected.wait(10)
    with store.lock:
        assert store.live is not None
        store.version += 1
        store.live = {
            "metadata": {**store.live["metadata"], "resourceVersion": str(store.version)},
            "spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60},
        }
    assert replica.lost.wait(10)
    replica.holder.release()


# The whole engine, with kopf.


POOLS = CACHED["InferencePool"].path("a")


class Engine:
    """A manager whose lists are empty but for one pool; `reconcile` is the test's."""

    def __init__(self, hostile: ScriptedApi, address: str) -> None:
        self.hostile = hostile
        self.calls: list[str] = []
        self.react: Callable[[str], float | None] = lambda name: None
        self.lost: list[str] = []
        self.store = LeaseStore(hostile)
        for resource in CACHED.values():
            self.script(resource.path("a"))
        self.discover(*OWN.values())
        options = Options(
            namespaces=["a"],
            lease_namespace="ops",
            identity="me",
            workers=2,
            bind=address,
            port=0,
            relist=RelistTiming(period=0.5, after_kopf=0.1, look=0.02, silence=1.0, retry=0.2),
            election=QUICK,
        )
        self.manager = Manager(hostile.configuration, options, self.reconcile, lost=self.lost.append)
        self.kopf = KopfLoop(self.manager, hostile.configuration, options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self.kopf.run(),), daemon=True)
        self.url = f"http://{address}:{self.manager.port}"

    def start(self) -> None:
        """Start engine and kopf, as the operator does."""
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.kopf.stop)
        self._thread.join(30)
        # kopf leaves tasks whose exceptions nobody reads. Python reports them when it frees them, and a report
        # in the middle of another test's `ast.parse` is a SystemError on Python 3.11: free them here.
        gc.collect()

    def discover(self, *resources: Resource) -> None:
        """The kinds of ours that the API server has."""
        for path, answer in discovery(*resources).items():
            self.hostile.script(path, answer)

    def script(self, path: str, first: Answer | None = None, *items: dict[str, Any]) -> None:
        """Answer lists with these items (after one other answer), and watches with nothing for a minute."""
        answers = [first] if first is not None else []

        def answer(asked: Asked) -> Answer:
            if asked.query.get("watch"):
                return Answer(body=[60.0])
            if answers:
                return answers.pop()
            [kind] = [each.kind for each in CACHED.values() if each.path("a") == path]
            return listed_whole(kind, 10, *items) if kind in OWN else listed(10, *items)

        self.hostile.script(path, answer)

    def pool(self, name: str, version: int = 5) -> dict[str, Any]:
        return {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "InferencePool",
            "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(version)},
            "spec": {"run": "sums"},
        }

    def reconcile(self, cluster: Cluster, kind: str, name: str) -> float | None:
        self.calls.append(name)
        return self.react(name)

    def metric(self, name: str) -> float:
        [line] = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[-1])

    def get(self, path: str) -> tuple[int, str]:
        answer = httpx.get(self.url + path, **PLAIN, timeout=10)
        return answer.status_code, answer.text


@pytest.fixture
def engine(hostile: ScriptedApi, loopback: Loopback) -> Iterator[Engine]:
    made = Engine(hostile, loopback.address())
    yield made
    hostile.ended.set()
    made.stop()


def test_nothing_is_reconciled_before_every_kind_is_listed(engine: Engine) -> None:
    engine.script(CACHED["InferencePool"].path("a"), None, engine.pool("p"))
    gate = threading.Event()

    def slow(asked: Asked) -> Answer:
        if asked.query.get("watch"):
            return Answer(body=[60.0])
        gate.wait(20)
        return listed(10)

    engine.hostile.script(CACHED["Job"].path("a"), slow)
    engine.start()
    wait_until("it to lead", lambda: engine.store.holder == "me")
    wait_until("only Jobs to be missing", lambda: engine.get("/readyz") == (503, "not listed yet: Job in a\n"))
    assert engine.calls == []
    gate.set()
    wait_until("the pool to be reconciled", lambda: engine.calls == ["p"])
    assert engine.get("/readyz") == (200, "ok\n")


def test_a_failure_is_tried_again_and_does_not_hold_up_others(engine: Engine) -> None:
    engine.script(
        CACHED["InferencePool"].path("a"), None, engine.pool("bad"), engine.pool("good"), engine.pool("worse")
    )
    failures = {"bad": ClusterError("etcd is away"), "worse": RuntimeError("a defect")}

    def react(name: str) -> float | None:
        if engine.calls.count(name) < 3 and name in failures:
            raise failures[name]
        return 3600.0

    engine.react = react
    engine.start()
    wait_until(
        "all to succeed",
        lambda: {name: engine.calls.count(name) for name in set(engine.calls)} == {"bad": 3, "good": 1, "worse": 3},
    )
    metrics = engine.get("/metrics")[1]
    for line in (
        'controller_runtime_reconcile_total{controller="inferencepool",result="requeue_after"} 3.0',
        'controller_runtime_reconcile_total{controller="inferencepool",result="error"} 4.0',
        'controller_runtime_reconcile_errors_total{controller="inferencepool"} 4.0',
        'workqueue_retries_total{name="shoal"} 4.0',
        'workqueue_depth{name="shoal"} 0.0',
        'leader_election_master_status{name="shoal-operator"} 1.0',
    ):
        assert line in metrics
    for name in (
        "controller_runtime_reconcile_time_seconds_bucket",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds_bucket",
        "workqueue_work_duration_seconds_bucket",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        'shoal_operator_watch_last_event_age_seconds{kind="StatefulSet"}',
        'rest_client_requests_total{code="200",method="GET"}',
    ):
        assert name in metrics


def test_the_same_failure_is_logged_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.script(CACHED["InferencePool"].path("a"), None, engine.pool("p"))

    def react(name: str) -> float | None:
        if len(engine.calls) < 4:
            raise RuntimeError("a defect")
        return None

    engine.react = react
    with caplog.at_level("WARNING"):
        engine.start()
        wait_until("success", lambda: len(engine.calls) >= 4)
    said = [record for record in caplog.records if "a defect" in record.getMessage()]
    assert len(said) == 1
    assert said[0].exc_info


def test_an_owner_whose_kind_is_new_to_the_api_server_is_tried_again_soon(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script(CACHED["InferencePool"].path("a"), None, engine.pool("p"))
    for _ in range(12):  # it failed for long: while the CRD was away
        engine.manager.queue.failed(Key("InferencePool", "a", "p"))

    def react(name: str) -> float | None:
        raise ClusterError(f"cannot set blockOwnerDeletion in this case because {UNMAPPED} for Kind Validator")

    engine.react = react
    with caplog.at_level("WARNING"):
        engine.start()
        wait_until("the failure", lambda: f"tried again in {CATCHES_UP_SECONDS:.1f} s" in caplog.text)


def test_a_reconcile_that_asks_for_another_call_gets_it(engine: Engine) -> None:
    engine.script(CACHED["InferencePool"].path("a"), None, engine.pool("p"))
    engine.react = lambda name: 0.05
    engine.start()
    wait_until("several calls", lambda: len(engine.calls) >= 3)


def test_a_repeated_event_causes_no_work(engine: Engine) -> None:
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    engine.manager.seen("ADDED", engine.pool("new", 50))
    wait_until("the pool to be reconciled", lambda: engine.calls == ["new"])
    engine.manager.seen("MODIFIED", engine.pool("new", 50))
    time.sleep(0.2)
    assert engine.calls == ["new"]


def test_without_kopf_s_handlers_nothing_of_our_own_is_reconciled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "registry", lambda manager, configuration: kopf.OperatorRegistry())
    engine.script(POOLS, None, engine.pool("p"))
    engine.start()
    wait_until("kopf to be started again", lambda: engine.metric("shoal_operator_kopf_restarts_total") > 0)
    assert engine.calls == []
    assert engine.get("/readyz") == (503, "not listed yet: InferencePool in a\n")


@pytest.mark.parametrize("levels", [300, 1_500, 9_900])
def test_an_object_nested_deep_holds_up_no_other(engine: Engine, levels: int) -> None:
    bad = engine.pool("bad", 6)
    bad["spec"]["podTemplate"] = {"affinity": {"podAffinity": "DEEP"}}
    whole = listed_whole("InferencePool", 10, bad, engine.pool("good"))
    assert isinstance(whole.body, bytes)
    whole.body = whole.body.replace(b'"DEEP"', b'{"a":' * levels + b"1" + b"}" * levels)
    engine.hostile.script(POOLS, lambda asked: Answer(body=[60.0]) if asked.query.get("watch") else whole)
    engine.start()
    wait_until("the other one to be reconciled", lambda: "good" in engine.calls, 30.0)
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    assert "bad" in engine.calls
    found = engine.manager.cache.get(Key("InferencePool", "a", "bad"))
    assert found is not None
    with pytest.raises(ClusterError, match=r"InferencePool bad: spec: nested more than 250 levels deep"):
        parse(InferencePool, found)
    assert engine.metric("shoal_operator_kopf_restarts_total") == 0


def test_what_was_deleted_behind_kopf_s_back_leaves_the_cache(engine: Engine) -> None:
    engine.script(POOLS, None, engine.pool("p"))
    engine.start()
    wait_until("the pool to be reconciled", lambda: engine.calls == ["p"])
    engine.script(POOLS)  # its watch says nothing
    wait_until("the pool to be known as gone", lambda: engine.manager.cache.get(Key("InferencePool", "a", "p")) is None)
    assert engine.metric("shoal_operator_kopf_restarts_total") == 0


def test_kopf_is_started_again_when_it_keeps_something_back(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    wait_until("kopf to watch", lambda: any(asked.query.get("watch") for asked in engine.hostile.requests(POOLS)))
    engine.script(POOLS, None, engine.pool("p"))  # its watch says nothing, but a list has it
    wait_until("the pool to be reconciled", lambda: engine.calls == ["p"])
    wait_until("kopf to be started again", lambda: engine.metric("shoal_operator_kopf_restarts_total") >= 1)
    assert "although InferencePool a/p exists" in caplog.text


def test_kopf_that_ended_is_started_again_while_children_are_reconciled(engine: Engine) -> None:
    """A watch that ends with an error is the end of kopf."""
    broken = threading.Event()

    def answer(asked: Asked) -> Answer:
        if not asked.query.get("watch"):
            return listed_whole("Validator", 10)
        return refusal(422, "Invalid") if broken.is_set() else Answer(body=[0.2])

    engine.hostile.script(CACHED["Validator"].path("a"), answer)
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    broken.set()
    # Twice kopf ends its tasks, waits, and lists again: seconds each on a busy machine.
    wait_until("kopf to have ended twice", lambda: engine.metric("shoal_operator_kopf_restarts_total") >= 2, 60)
    engine.manager.queue.add(Key("InferencePool", "a", "x"))
    wait_until("a key to be worked on", lambda: engine.calls == ["x"])
    assert engine.get("/healthz") == (200, "ok\n")
    assert engine.store.holder == "me"
    broken.clear()
    engine.script(POOLS, None, engine.pool("p"))
    wait_until("the pool to be reconciled", lambda: "p" in engine.calls)


def test_a_kind_without_its_crd_holds_up_no_other_and_is_served_when_it_is_back(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    missing = OWN["InferencePool"]
    engine.discover(*(each for each in OWN.values() if each is not missing))
    engine.hostile.script(POOLS, refusal(404, "NotFound"))
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    assert engine.metric('shoal_operator_crd_missing{kind="InferencePool"}') == 1
    assert engine.metric('shoal_operator_crd_missing{kind="Validator"}') == 0
    assert "the CRD inferencepools.shoal.dev is missing" in caplog.text
    assert "kubectl apply --server-side -f crds/" in caplog.text
    engine.discover(*OWN.values())
    engine.script(POOLS, None, engine.pool("p"))
    wait_until("the pool to be reconciled", lambda: engine.calls == ["p"])
    assert engine.metric('shoal_operator_crd_missing{kind="InferencePool"}') == 0


def test_a_stop_finishes_what_is_in_hand_and_gives_the_lease_back(engine: Engine) -> None:
    engine.script(CACHED["InferencePool"].path("a"), None, engine.pool("p"))
    begun, ended = threading.Event(), threading.Event()

    def react(name: str) -> float | None:
        begun.set()
        time.sleep(0.5)
        ended.set()
        return None

    engine.react = react
    engine.start()
    assert begun.wait(20)
    engine.stop()
    assert ended.is_set()
    assert engine.store.holder == ""
    assert engine.lost == []


def test_liveness_notices_a_dead_watch_and_a_reconcile_that_hangs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    assert engine.get("/healthz") == (200, "ok\n")
    [informer] = [each for each in engine.manager._informers if each.resource.kind == "Job"]
    informer.heard_at -= DEAF_SECONDS + 1
    status, text = engine.get("/healthz")
    assert status == 503
    assert "the watch of Job in a has received nothing for 30" in text
    informer.heard_at += DEAF_SECONDS + 1
    monkeypatch.setattr(engine.manager.queue, "running_seconds", lambda: [STUCK_SECONDS + 1])
    assert engine.get("/healthz")[1] == f"a reconcile has run for {STUCK_SECONDS + 1:.0f} s\n"


def test_other_paths_say_what_there_is(engine: Engine) -> None:
    engine.start()
    assert engine.get("/")[0] == 404
    assert "/healthz" in engine.get("/x")[1]


def test_an_object_that_is_gone_is_not_looked_at_again(engine: Engine) -> None:
    engine.start()
    wait_until("it to be ready", lambda: engine.get("/readyz")[0] == 200)
    engine.manager.queue.add(Key("InferencePool", "a", "gone"))
    wait_until("one look", lambda: engine.calls == ["gone"])
    wait_until("the worker to be done", lambda: not engine.manager.queue.running_seconds())
    assert not engine.manager.queue._due
