"""What tests on the API server wait for, in their words: conditions, children, replicas of the objects in one namespace."""

from collections.abc import Callable
from typing import Any

import hollow_node
import pytest
from hollow_node import HollowNode
from kube_client import Kube, Object
from kube_manifests import run
from orchestrators import Orchestrators

from servers import wait_until
from shoal.contracts.protocol import RunProgress
from shoal_operator.engine.cluster import CHILD_KINDS
from shoal_operator.engine.informer import LACKING_SECONDS

SECONDS = 45.0 + LACKING_SECONDS
"""Deadline of one wait: a reconcile takes milliseconds, but two cores are shared with the control plane. A kind whose CRD came after the operator
began is found after up to a minute."""


class Story:
    """One namespace, its runs, and the node that plays their pods. Preparation succeeds unless the test says otherwise."""

    def __init__(self, kube: Kube, namespace: str, node: HollowNode, orchestrators: Orchestrators) -> None:
        self.kube = kube
        self.namespace = namespace
        self.node = node
        self.orchestrators = orchestrators
        self.play("*-prepare-*", hollow_node.succeeded)

    def play(self, pattern: str, play: hollow_node.Play) -> None:
        """Pods of these names get this status from now on."""
        self.node.play(self.namespace, pattern, play)

    def create(self, name: str = "sums", **changes: Any) -> Object:
        """Create a run. Its orchestrator answers from the start; `orchestrators.hush` silences it."""
        if not self.orchestrators.speaks(self.namespace, name):
            self.progress(name)
        return self.kube.create(run(self.namespace, name, **changes))

    def running(self, name: str = "sums", **changes: Any) -> Object:
        """Create a run and wait until all its parts are ready."""
        self.create(name, **changes)
        self.wait_condition("TrainingRun", name, "Ready", "True")
        return self.get("TrainingRun", name)

    def edit(self, name: str = "sums", kind: str = "TrainingRun", **changes: Any) -> Object:
        """Merge into a spec."""
        return self.kube.merge(kind, name, self.namespace, {"spec": changes})

    def progress(self, name: str = "sums", **figures: Any) -> None:
        """What the run's orchestrator says from now on."""
        self.orchestrators.say(
            self.namespace,
            RunProgress(run=name, steps_total=4, **{"open_step": 0, "latest_version": 0, **figures}),
        )

    def get(self, kind: str, name: str) -> Object:
        found = self.kube.get(kind, name, self.namespace)
        assert found is not None, f"{kind} {name} does not exist"
        return found

    def condition(self, kind: str, name: str, of: str) -> Object:
        """A condition of the live object; an empty one where there is none yet."""
        found = self.kube.get(kind, name, self.namespace) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == of), {})

    def wait_condition(
        self, kind: str, name: str, of: str, status: str, said: str = "", seconds: float = SECONDS
    ) -> Object:
        """Wait until a condition has this status and its reason or message has `said` in it."""

        seen: list[str] = []

        def holds() -> Object | None:
            found = self.condition(kind, name, of)
            text = f"{found.get('status')} {found.get('reason')} {found.get('message')}"
            if text not in seen[-1:]:
                seen.append(text)
            return found if found.get("status") == status and said in text else None

        try:
            return wait_until(f"{kind} {name}: {of} to be {status} {said}", holds, seconds, interval=0.05)
        except pytest.fail.Exception as failed:
            pytest.fail(f"{failed}; it was, one after the other: {seen}")

    def wait_for(self, what: str, poll: Callable[[], Any], seconds: float = SECONDS) -> Any:
        return wait_until(what, poll, seconds, interval=0.05)

    def wait_there(self, kind: str, name: str) -> Object:
        return self.wait_for(f"{kind} {name}", lambda: self.kube.get(kind, name, self.namespace))

    def wait_gone(self, kind: str, name: str) -> None:
        self.wait_for(f"{kind} {name} to be gone", lambda: self.kube.get(kind, name, self.namespace) is None)

    def wait_field(self, kind: str, name: str, path: str, value: Any) -> Object:
        """Wait until a field (`spec.replicas`, list items by number) has this value."""

        def equals() -> Object | None:
            found = self.kube.get(kind, name, self.namespace)
            return found if found is not None and at(found, path) == value else None

        return wait_until(f"{kind} {name}: {path} to be {value}", equals, SECONDS, interval=0.05)

    def managed(self) -> dict[tuple[str, str], Object]:
        """All live objects that the operator made here, by kind and name."""
        return {
            (kind, found["metadata"]["name"]): found
            for kind in CHILD_KINDS
            if kind != "Pod"
            for found in self.kube.list(kind, self.namespace, "app.kubernetes.io/managed-by=shoal-operator")
        }

    def versions(self) -> dict[tuple[str, str], str]:
        """Resource versions of what the operator made and of our own kinds here."""
        own = {
            (kind, found["metadata"]["name"]): found
            for kind in ("TrainingRun", "InferencePool", "RelayServer", "Validator")
            for found in self.kube.list(kind, self.namespace)
        }
        return {key: found["metadata"]["resourceVersion"] for key, found in (self.managed() | own).items()}


def at(found: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.split("."):
        if isinstance(found, list):
            found = found[int(part)] if int(part) < len(found) else None
        elif isinstance(found, dict):
            found = found.get(part)
        else:
            return None
    return found
