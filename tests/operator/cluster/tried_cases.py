"""Cases of an administrator's bad days, tried on a real API server by the rows of `tried_cases.yaml`: what is done, and the words that must be said.

`read_cases` gives them. `Stage.try_cases` makes many runs side by side, does to each what its row says, and waits until the condition that the row
names has the row's words. What `kubectl describe` then prints must have them too. A manifest that must be refused has them from the API server.
Used by `test_tried_cases.py` and by `python -m benchmarks.operator --cases`. Costs some 3 CPU seconds a case, API server and controllers included.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hollow_node
import yaml
from hollow_node import HollowNode
from kube_client import CLUSTER_SCOPED, MERGE, RESOURCES, Kube, Object, Refused, make_namespace, path_of
from kube_manifests import manifest, merged
from orchestrators import Orchestrators

from shoal.contracts.protocol import RunProgress

ROWS = Path(__file__).with_name("tried_cases.yaml")
SECONDS = 60.0
"""Within which an administrator is to read the cause."""
SIDE_BY_SIDE = 16
"""Runs of one batch: some 120 pods. More would measure the machine."""
SEVERAL = ("said", "status", "objects", "then")
"""Fields of a row that are lists, or one text."""
OWN = ("TrainingRun", "InferencePool", "RelayServer", "Validator")
SMALLEST: Object = {"relayServer": {"replicas": 1}, "inferencePools": [{"name": "pool", "replicas": 1}]}
"""Of a run whose pods are not what the case is about."""
NO_PODS = {"relayServerRef", "mode"}
"""Fields with which a run has no relays of its own."""
Describe = Callable[[str], str]
"""From a namespace to what `kubectl describe` prints of our kinds in it."""


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        done: what the administrator, or bad luck, does.
        said: all words that must be in the condition, or in the refusal.
        about: `Kind/name` of the object that says them.
        condition: type of its condition.
        status: what that condition may be.
        refused: whether the API server refuses the manifest, or the edit.
        alone: whether it needs a namespace of its own.
        together: cases of the same word are done to one run; empty: to a run of its own.
        kind: of the object that is made; None for none.
        spec: laid over that kind's small manifest.
        objects: made before it.
        pods: what becomes of pods, by the name after the run's.
        events: Warning Events about pods, by the name after the run's: reason and note.
        says: what the orchestrator says from the start; None for nothing.
        after: what is waited for before `then`: `Ready`, or `Kind/name`.
        then: acts on the cluster, in order.
    """

    done: str
    said: tuple[str, ...]
    about: str = "TrainingRun/{run}"
    condition: str = "Ready"
    status: tuple[str, ...] = ("False",)
    refused: bool = False
    alone: bool = False
    together: str = ""
    kind: str | None = "TrainingRun"
    spec: Object = field(default_factory=dict)
    objects: tuple[Object, ...] = ()
    pods: Object = field(default_factory=dict)
    events: Object = field(default_factory=dict)
    says: Object | None = field(default_factory=dict)
    after: str = ""
    then: tuple[Object, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `lacks` is empty when the cause was said, after `seconds`; otherwise it says what was there instead."""

    case: Case
    seconds: float
    lacks: str = ""

    @property
    def told(self) -> bool:
        """Whether the cause was said, by the condition and by `kubectl describe`, in time."""
        return not self.lacks and self.seconds <= SECONDS


def read_cases(path: Path = ROWS) -> list[Case]:
    """All rows, those of the table of parts and problems too. Raises ValueError for two rows of one name."""
    document = yaml.safe_load(path.read_text())
    rows = [row for group in document["cases"].values() for row in group]
    problems = document["problems"]
    for number, part in enumerate(document["parts"]):
        for shift in range(len(problems)):
            problem = problems[(number + shift) % len(problems)]
            if problem["is"] not in part.get("not", ()):
                rows.append(_of_part(part, problem, shift))
    cases = [Case(**{**row, **{name: _several(row[name]) for name in SEVERAL if name in row}}) for row in rows]
    twice = [name for name, times in Counter(each.done for each in cases).items() if times > 1]
    if twice:
        raise ValueError(f"cases of one name: {twice}")
    return cases


def _several(found: Any) -> tuple[Any, ...]:
    return (found,) if isinstance(found, str) else tuple(found)


def _of_part(part: Object, problem: Object, shift: int) -> Object:
    """The row of a problem that pods of a part have. One run has another problem in each part; what happens to a run that is well, in all at once."""
    row = {
        "done": f"{part['part']}: {problem['is']}",
        "said": problem["said"],
        "condition": part["condition"],
        "spec": {"ui": {}},
    }
    if part["condition"] != "Prepared":  # in which nothing else is made yet
        row["together"] = problem["is"] if "then" in problem else f"square {shift}"
    if "event" in problem:
        row["events"] = {part["pods"]: problem["event"]}
    if "then" not in problem:
        return row | {"pods": {part["pods"]: problem["pods"]}}
    acts = [{act: {"pods": part["pods"], **how}} for act, how in problem["then"].items()]
    return row | {"after": "Ready", "then": acts}


@dataclass
class _Trial:
    case: Case
    namespace: str
    run: str
    began: float = 0.0
    """When it was done; 0.0 while what comes before it is waited for."""
    seconds: float = 0.0
    was: str = "nothing"
    """What the condition said last."""
    told: bool = False
    broken: str = ""
    """Why the case itself could not be done."""
    evented: set[str] = field(default_factory=set)

    def filled(self, found: Any) -> Any:
        """A part of the row with the names of this trial."""
        if isinstance(found, str):
            return found.replace("{run}", self.run).replace("{ns}", self.namespace)
        if isinstance(found, dict):
            return {self.filled(key): self.filled(value) for key, value in found.items()}
        return [self.filled(each) for each in found] if isinstance(found, list | tuple) else found


class Stage:
    """Where cases are tried: an API server with controllers, a node of the test, orchestrators of the test, and the operator."""

    def __init__(self, kube: Kube, node: HollowNode, orchestrators: Orchestrators, describe: Describe) -> None:
        self.kube, self.node, self.orchestrators, self.describe = kube, node, orchestrators, describe
        self._numbers = iter(range(1, 1_000_000))

    def try_cases(
        self, cases: Sequence[Case], patience: float = SECONDS, say: Callable[[str], None] = lambda text: None
    ) -> list[Outcome]:
        """Try all, some side by side, and remove what was made.

        `patience`: seconds after which a case that says nothing is given up. `say` is told of each that lacks its cause.
        """
        outcomes: list[Outcome] = []
        for refused in (True, False):
            for batch in _batches([each for each in cases if each.refused == refused]):
                found = self._refusals(batch) if refused else self._batch(batch, patience)
                for each in found:
                    if not each.told:
                        lacks = (
                            f"not said {list(each.case.said)}, but: {each.lacks}" if each.lacks else "said, too late"
                        )
                        say(f"{each.case.done}: after {each.seconds:.0f} s {lacks}")
                outcomes += found
                say(f"{len(outcomes)} of {len(cases)} cases are tried")
        return outcomes

    def _refusals(self, cases: Sequence[Case]) -> list[Outcome]:
        namespace, outcomes = make_namespace(self.kube), []
        for case in cases:
            trial = _Trial(case, namespace, f"c{next(self._numbers)}", time.monotonic())
            try:
                wanted = trial.filled(manifest(case.kind or "TrainingRun", trial.run, namespace, **case.spec))
                wanted = merged(wanted, trial.filled(case.objects[0])) if case.objects else wanted
                if case.then and case.kind == "TrainingRun":
                    wanted["spec"]["suspend"] = True  # it is edited before the operator makes anything of it
                self._as_kubectl("POST", path_of(wanted["kind"], namespace), wanted)
                self._act(trial)
                lacks = "nothing was refused"
            except Refused as refused:
                lacks = "" if all(words in refused.message for words in case.said) else refused.message
            outcomes.append(Outcome(case, time.monotonic() - trial.began, lacks))
        self.kube.delete("Namespace", namespace)
        return outcomes

    def _batch(self, cases: Sequence[Case], patience: float) -> list[Outcome]:
        shared = make_namespace(self.kube)
        names = {each.together: f"c{next(self._numbers)}" for each in cases if each.together}
        trials = []
        for case in cases:
            space = make_namespace(self.kube) if case.alone else shared
            trials.append(_Trial(case, space, names.get(case.together) or f"c{next(self._numbers)}"))
        spaces = {each.namespace for each in trials}
        for space in spaces:
            self.node.play(space, "*-prepare-*", hollow_node.succeeded)
        try:
            for trial in trials:
                self._do(trial, self._set)
            made: set[str] = set()
            for trial in trials:
                self._do(trial, self._begin if trial.run not in made else self._join)
                made.add(trial.run)
            self._watch(trials, patience)
            described = {space: " ".join(self.describe(space).split()) for space in spaces}
            return [self._outcome(trial, described[trial.namespace]) for trial in trials]
        finally:
            for trial in trials:
                for each in trial.filled(list(trial.case.objects)):
                    if each["kind"] in CLUSTER_SCOPED:
                        self.kube.delete(each["kind"], each["metadata"]["name"])
            for space in spaces:
                self._unbind(space)
                self.kube.delete("Namespace", space)

    def _outcome(self, trial: _Trial, described: str) -> Outcome:
        if trial.broken:
            return Outcome(trial.case, trial.seconds, trial.broken)
        if not trial.began:
            return Outcome(trial.case, trial.seconds, f"{trial.case.after} was never there: {trial.was}")
        lacks = "" if trial.told else trial.was
        if trial.told and not all(" ".join(trial.filled(words).split()) in described for words in trial.case.said):
            lacks = "kubectl describe does not print it"
        return Outcome(trial.case, trial.seconds, lacks)

    def _set(self, trial: _Trial) -> None:
        """What is there before the run."""
        case = trial.case
        for each in trial.filled(list(case.objects)):
            self._create(trial, each)
        for suffix, row in case.pods.items():
            self.node.play(trial.namespace, f"{trial.run}-{suffix}-*", played(row))
        if case.says is not None:
            self._say(trial, case.says)

    def _do(self, trial: _Trial, step: Callable[["_Trial"], None]) -> None:
        """A step of the case; one that the API server refuses breaks this case only."""
        if not trial.broken:
            try:
                step(trial)
            except Refused as refused:
                trial.broken = f"the case could not be done: {refused.message}"

    def _begin(self, trial: _Trial) -> None:
        case = trial.case
        if case.kind is not None:
            small = SMALLEST if case.kind == "TrainingRun" and not case.spec.keys() & NO_PODS else {}
            self.kube.create(trial.filled(manifest(case.kind, trial.run, trial.namespace, **merged(small, case.spec))))
        self._join(trial)

    def _join(self, trial: _Trial) -> None:
        if not trial.case.after:
            trial.began = time.monotonic()
            self._act(trial)

    def _act(self, trial: _Trial) -> None:
        for act in trial.filled(list(trial.case.then)):
            ((verb, what),) = act.items()
            getattr(self, f"_{verb}")(trial, what)

    def _create(self, trial: _Trial, what: Object) -> None:
        made = {"apiVersion": RESOURCES[what["kind"]][0].removeprefix("/apis/").removeprefix("/api/"), **what}
        if what["kind"] not in CLUSTER_SCOPED:
            made["metadata"] = {"namespace": trial.namespace, **what["metadata"]}
        found = self.kube.create(made)
        if "status" in what:
            self.kube.merge(
                what["kind"],
                what["metadata"]["name"],
                found["metadata"].get("namespace"),
                {"status": what["status"]},
                sub="status",
            )

    def _edit(self, trial: _Trial, what: Object) -> None:
        path = path_of(trial.case.kind or "TrainingRun", trial.namespace, trial.run)
        self._as_kubectl("PATCH", path, {"spec": what}, MERGE)

    def _as_kubectl(self, method: str, path: str, body: Object, content_type: str = "application/json") -> None:
        """A write as kubectl makes it: unknown fields are refused."""
        params = {"fieldValidation": "Strict", "fieldManager": "kubectl"}
        self.kube.call(method, path, body, params=params, content_type=content_type)

    def _patch(self, trial: _Trial, what: Object) -> None:
        kind, name = what["object"].split("/")
        self.kube.merge(
            kind, name, None if kind in CLUSTER_SCOPED else trial.namespace, what["with"], sub=what.get("sub", "")
        )

    def _delete(self, trial: _Trial, what: str) -> None:
        kind, name = what.split("/")
        self.kube.delete(kind, name, trial.namespace)

    def _play(self, trial: _Trial, what: Object) -> None:
        how = {key: value for key, value in what.items() if key != "pods"}
        self.node.play(trial.namespace, f"{trial.run}-{what['pods']}-*", played(how))

    def _hold(self, trial: _Trial, what: Object) -> None:
        """Delete pods that cannot go: something holds them by a finalizer, as a node that is lost holds its own."""
        for pod in self._pods(trial, what["pods"]):
            finalizers = {"metadata": {"finalizers": ["example.com/held"]}}
            self.kube.merge("Pod", pod["metadata"]["name"], trial.namespace, finalizers)
            self.kube.delete("Pod", pod["metadata"]["name"], trial.namespace)

    def _say(self, trial: _Trial, what: Object) -> None:
        self.orchestrators.say(trial.namespace, progress(trial.run, what))

    def _hush(self, trial: _Trial, what: object) -> None:
        self.orchestrators.hush(trial.namespace, trial.run)

    def _pods(self, trial: _Trial, suffix: str) -> list[Object]:
        start = f"{trial.run}-{suffix}-"
        return [each for each in self.kube.list("Pod", trial.namespace) if each["metadata"]["name"].startswith(start)]

    def _unbind(self, namespace: str) -> None:
        for pod in self.kube.list("Pod", namespace):
            if pod["metadata"].get("finalizers"):
                self.kube.merge("Pod", pod["metadata"]["name"], namespace, {"metadata": {"finalizers": None}})

    def _watch(self, trials: Sequence[_Trial], patience: float) -> None:
        """Look until each case is told or its time is over. What comes before it has as long again, twice."""
        started = time.monotonic()
        while True:
            found = {
                (kind, each["metadata"]["namespace"], each["metadata"]["name"]): each
                for kind in OWN
                for each in self.kube.list(kind)
            }
            waiting = 0
            for trial in trials:
                self._warn(trial)
                if trial.told or trial.broken:
                    continue
                now = time.monotonic()
                over = now - (trial.began or started) > (patience if trial.began else 3 * patience)
                trial.seconds = now - (trial.began or started)
                if not trial.began:
                    self._do(trial, lambda each: self._begin_late(each, found))
                else:
                    self._look(trial, found)
                waiting += not trial.told and not over
            if not waiting:
                return
            time.sleep(0.5)

    def _begin_late(self, trial: _Trial, found: dict[tuple[str, str, str], Object]) -> None:
        after = trial.filled(trial.case.after)
        if after == "Ready":
            ready = _condition(found.get(("TrainingRun", trial.namespace, trial.run)), "Ready")
            there, trial.was = ready.get("status") == "True", _words(ready)
        else:
            kind, name = after.split("/")
            there = self.kube.get(kind, name, trial.namespace) is not None
        if there:
            trial.began = time.monotonic()
            self._act(trial)

    def _look(self, trial: _Trial, found: dict[tuple[str, str, str], Object]) -> None:
        kind, name = trial.filled(trial.case.about).split("/")
        condition = _condition(found.get((kind, trial.namespace, name)), trial.case.condition)
        trial.was = _words(condition)
        trial.told = condition.get("status") in trial.case.status and all(
            trial.filled(words) in trial.was for words in trial.case.said
        )

    def _warn(self, trial: _Trial) -> None:
        """Warning Events about pods, as a kubelet writes them, once for each pod that its node has."""
        for suffix, (reason, note) in trial.case.events.items():
            for pod in self._pods(trial, suffix):
                metadata = pod["metadata"]
                if pod["spec"].get("nodeName") and metadata["uid"] not in trial.evented:
                    trial.evented.add(metadata["uid"])
                    self.kube.call(
                        "POST", f"/api/v1/namespaces/{trial.namespace}/events", _event(pod, reason, trial.filled(note))
                    )


def progress(run: str, figures: Object) -> RunProgress:
    """What the orchestrator of a run says, by the row."""
    small = {"run": run, "steps_total": 4, "open_step": 0, "latest_version": 0}
    return RunProgress.model_validate({**small, **figures})


def played(row: Object) -> hollow_node.Play:
    """What becomes of a pod, by the row: one key, which names a play of `hollow_node`, with its arguments."""
    ((name, how),) = row.items()
    if how is None:
        return getattr(hollow_node, name)
    made = getattr(hollow_node, name)
    return made(**how) if isinstance(how, dict) else made(*how)


def _event(pod: Object, reason: str, note: str) -> Object:
    metadata, now = pod["metadata"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{metadata['uid'][:8]}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": note,
        "type": "Warning",
        "source": {"component": "kubelet", "host": hollow_node.NODE},
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }


def _condition(live: Object | None, of: str) -> Object:
    conditions = (live or {}).get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == of), {})


def _words(condition: Object) -> str:
    return " ".join(f"{condition.get('status')} {condition.get('reason')} {condition.get('message')}".split())


def _batches(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Cases of some runs side by side; those of one run stay together."""
    runs: dict[str, list[Case]] = {}
    for case in cases:
        runs.setdefault(case.together or case.done, []).append(case)
    several = list(runs.values())
    for first in range(0, len(several), SIDE_BY_SIDE):
        yield [case for run in several[first : first + SIDE_BY_SIDE] for case in run]
