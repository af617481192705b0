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
SIDE_BY_SIDE = 24
"""Cases of one batch: some 200 pods. More would measure the machine."""
OWN = ("TrainingRun", "InferencePool", "RelayServer", "Validator")
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
    """All rows, those of the table of parts and problems too. Raises ValueError for a row with an unknown field, or two rows of one name."""
    document = yaml.safe_load(path.read_text())
    rows = [row for group in document["cases"].values() for row in group]
    for part in document["parts"]:
        rows += [
            _of_part(part, problem) for problem in document["problems"] if problem["is"] not in part.get("not", ())
        ]
    cases = []
    for row in rows:
        said = (row["said"],) if isinstance(row["said"], str) else tuple(row["said"])
        status = row.get("status", "False")
        more = {
            "said": said,
            "status": (status,) if isinstance(status, str) else tuple(status),
            "objects": tuple(row.get("objects", ())),
            "then": tuple(row.get("then", ())),
        }
        cases.append(Case(**{**row, **more}))
    twice = [name for name, times in Counter(each.done for each in cases).items() if times > 1]
    if twice:
        raise ValueError(f"cases of one name: {twice}")
    return cases


def _of_part(part: Object, problem: Object) -> Object:
    """The row of a problem that pods of a part have."""
    row = {
        "done": f"{part['part']}: {problem['is']}",
        "said": problem["said"],
        "condition": part.get("condition", "Ready"),
        "status": ["False", "Unknown"],
        "spec": part.get("spec", {}),
        "pods": {part["pods"]: problem["pods"]},
    }
    if "event" in problem:
        row["events"] = {part["pods"]: problem["event"]}
    if "then" in problem:
        # What ends or hangs has been well before, apart from prepare, which ends well.
        row |= {
            "pods": {},
            "after": "Ready",
            "then": [{act: {"pods": part["pods"], **how}} for act, how in problem["then"].items()],
        }
    return row


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
                        say(
                            f"{each.case.done}: after {each.seconds:.0f} s not said {list(each.case.said)}, but: {each.lacks}"
                        )
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
        spaces = [make_namespace(self.kube) if case.alone else shared for case in cases]
        trials = [_Trial(case, space, f"c{next(self._numbers)}") for case, space in zip(cases, spaces, strict=True)]
        for space in {*spaces}:
            self.node.play(space, "*-prepare-*", hollow_node.succeeded)
        try:
            for trial in trials:
                self._begin(trial)
            self._watch(trials, patience)
            described = {space: " ".join(self.describe(space).split()) for space in {*spaces}}
            return [self._outcome(trial, described[trial.namespace]) for trial in trials]
        finally:
            for trial in trials:
                for each in trial.filled(list(trial.case.objects)):
                    if each["kind"] in CLUSTER_SCOPED:
                        self.kube.delete(each["kind"], each["metadata"]["name"])
            for space in {*spaces}:
                self._unbind(space)
                self.kube.delete("Namespace", space)

    def _outcome(self, trial: _Trial, described: str) -> Outcome:
        if not trial.began:
            return Outcome(trial.case, trial.seconds, f"{trial.case.after} was never there: {trial.was}")
        lacks = "" if trial.told else trial.was
        if trial.told and not all(" ".join(trial.filled(words).split()) in described for words in trial.case.said):
            lacks = "kubectl describe does not print it"
        return Outcome(trial.case, trial.seconds, lacks)

    def _begin(self, trial: _Trial) -> None:
        case = trial.case
        for each in trial.filled(list(case.objects)):
            self._create(trial, each)
        for suffix, row in case.pods.items():
            self.node.play(trial.namespace, f"{trial.run}-{suffix}-*", played(row))
        if case.says is not None:
            self._say(trial, case.says)
        if case.kind is not None:
            self.kube.create(trial.filled(manifest(case.kind, trial.run, trial.namespace, **case.spec)))
        if not case.after:
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
        figures = {"run": trial.run, "steps_total": 4, "open_step": 0, "latest_version": 0, **what}
        self.orchestrators.say(trial.namespace, RunProgress.model_validate(figures))

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
                if trial.told:
                    continue
                now = time.monotonic()
                over = now - (trial.began or started) > (patience if trial.began else 3 * patience)
                trial.seconds = now - (trial.began or started)
                if not trial.began:
                    self._begin_late(trial, found)
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
        """Warning Events about pods, as a kubelet writes them, once for each pod."""
        for suffix, (reason, note) in trial.case.events.items():
            for pod in self._pods(trial, suffix):
                metadata = pod["metadata"]
                if metadata["uid"] not in trial.evented:
                    trial.evented.add(metadata["uid"])
                    self.kube.call(
                        "POST", f"/api/v1/namespaces/{trial.namespace}/events", _event(pod, reason, trial.filled(note))
                    )


def played(row: Object) -> hollow_node.Play:
    """What becomes of a pod, by the row: one key, which names a play of `hollow_node`, with its arguments."""
    ((name, how),) = row.items()
    if how is None:
        return getattr(hollow_node, name)  # type: ignore[no-any-return]
    made = getattr(hollow_node, name)
    return made(**how) if isinstance(how, dict) else made(*how)  # type: ignore[no-any-return]


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
    for first in range(0, len(cases), SIDE_BY_SIDE):
        yield cases[first : first + SIDE_BY_SIDE]
