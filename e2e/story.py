"""A run on real pods: the manifest, made of examples/arithmetic for one small node, and what a test sees of the run and does to it.

A `Story` reads the run's status, its page and its pods, and waits for policy versions.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from e2e import ROOT
from e2e.release import NAME, Release
from e2e.space import Object, Space
from lying_worker import LIE

Value = TypeVar("Value")

EXAMPLE = ROOT / "examples" / "arithmetic" / "trainingrun.yaml"
ROLES = ("operator", "protocol", "redis", "minio", "relay", "tracker", "trainer", "worker", "validator")
PREPARE_SECONDS = 360.0
"""For the base model: a supervised warm start of a minute on two quiet cores."""
STEP_SECONDS = 120.0
"""For one policy version while something is broken; some seconds when nothing is."""
START_SECONDS = 300.0
"""For every part to be ready: each process reads a gigabyte of torch and vLLM from the disk first."""

CHANGES: Object = {
    "steps": 2000,  # never reached: the story ends before
    "recipe": {"promptsPerStep": 8, "groupSize": 8, "optimizerSteps": 1},
    "sampling": {"groupsPerSubmission": 4},
    "inferencePools": [
        {"name": "pool", "replicas": 1, "weightsSize": "1Gi", "resources": {"requests": {"cpu": "100m"}}}
    ],
    # A dead validator's work is soon given to its successor.
    "ui": {},
    "validator": {"validation": {"claimSeconds": 15}},
    "trainer": {"resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}},
}
"""What differs from the example: steps of seconds, and requests that one small node can give. The store is set apart."""

RUN_OBJECTS = (
    "pods,services,statefulsets,deployments,jobs,configmaps,secrets,persistentvolumeclaims,networkpolicies,poddisruptionbudgets,"
    "inferencepools,relayservers,validators,trainingruns"
)

ASKED = (137, 143)
"""Exit codes of a container that was killed, or asked to end."""

STRANGER, READER = "cheat", "reader"


def merged(before: Any, change: Any) -> Any:
    """`before` with the fields of `change`; maps are merged, all else is replaced."""
    if not isinstance(before, dict) or not isinstance(change, dict):
        return change
    return before | {key: merged(before.get(key), value) for key, value in change.items()}


def manifest(images: Callable[[str], str], endpoint: str, secret: str) -> Object:
    """The TrainingRun of the story, its data in the chart's own MinIO."""
    document: Object = yaml.safe_load(EXAMPLE.read_text())
    store = {"endpoint": endpoint, "bucket": "rollouts", "credentialsSecret": secret}
    named = {role: images(role) for role in ("protocol", "redis", "relay", "trainer", "validator", "worker")}
    document["spec"] = merged(document["spec"], CHANGES | {"images": named})
    document["spec"]["storage"] = {"s3": store}
    return document


def without_claims(template: Object) -> Object:
    """The pod of a StatefulSet's template for a pod that stands alone: an empty folder in place of each claim, and nobody's but its own."""
    spec = template["spec"]
    known = {volume["name"] for volume in spec["volumes"]}
    mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
    spec["volumes"] += [{"name": name, "emptyDir": {}} for name in sorted(mounted - known)]
    return template


@dataclass
class Story:
    """One run in one namespace, served by one release."""

    space: Space
    release: Release
    run: str = "arithmetic"

    @property
    def endpoint(self) -> str:
        return f"http://{NAME}-minio.{self.space.name}.svc:9000"

    def manifest(self) -> Object:
        return manifest(self.space.image, self.endpoint, "shoal-storage")

    # What is there.

    def status(self) -> Object:
        found = self.space.kube.get("TrainingRun", self.run, self.space.name) or {}
        status: Object = found.get("status") or {}
        return status

    def condition(self, name: str) -> Object:
        """The condition of that type; of unknown status while there is none."""
        found = self.status().get("conditions") or []
        return next(
            (each for each in found if each["type"] == name), {"status": "Unknown", "message": "", "reason": ""}
        )

    def secret(self, name: str, key: str) -> str:
        """A value of one of the run's Secrets."""
        found = self.space.kube.get("Secret", f"{self.run}-{name}", self.space.name)
        assert found is not None
        return base64.b64decode(found["data"][key]).decode()

    def page_token(self) -> str:
        """What a browser shows the page of the run."""
        return self.secret("ui-token", "token")

    def admin(self, method: str, path: str) -> Object:
        """What the orchestrator answers an admin; asked from inside its own pod."""
        token = self.secret("orchestrator-key", "admin_token")
        url = f"http://127.0.0.1:8080/v1/admin{path}"
        status, answer = self.space.fetch(self.pod("orchestrator"), url, token, method)
        assert status == 200, f"{method} {path} gave {status}"
        return answer

    def starts(self, pod: str) -> dict[str, int]:
        """How often the kubelet started each container of a pod again."""
        found = self.space.kube.get("Pod", pod, self.space.name) or {}
        listed = (found.get("status") or {}).get("containerStatuses") or []
        return {each["name"]: each["restartCount"] for each in listed}

    def page(self, path: str, token: str | None = None) -> tuple[int, Object]:
        """Status and JSON of a path of the run's page, as the pod `READER` sees it; with the run's token unless another one is given."""
        url = f"http://{self.run}-ui.{self.space.name}.svc:8082{path}"
        return self.space.fetch(READER, url, self.page_token() if token is None else token)

    def steps_rewards(self) -> list[float]:
        """Mean task reward of the rows that each step was trained on, from the first step: of all that the trainer wrote down."""
        status, steps = self.page("/api/steps")
        assert status == 200
        numbered = zip(steps["step"], steps["trained"], steps["columns"]["task_reward"], strict=True)
        return [reward for _, trained, reward in sorted(numbered) if trained]

    def holds(self, *conditions: str) -> bool:
        """Whether these are True."""
        return all(self.condition(name)["status"] == "True" for name in conditions)

    def version(self) -> int:
        """The newest announced policy version, -1 before there is one."""
        number = self.status().get("policyVersion")
        return -1 if number is None else int(number)

    def pods(self, component: str = "") -> list[Object]:
        """Pods of the run, or of one of its components, that are neither over nor on their way out."""
        labels = f"shoal.dev/run={self.run}" + (f",shoal.dev/component={component}" if component else "")
        return [
            pod
            for pod in self.space.kube.list("Pod", self.space.name, labels=labels)
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def pod(self, component: str) -> str:
        """Name of the one pod of a component."""
        (found,) = self.pods(component)
        name: str = found["metadata"]["name"]
        return name

    def uid(self, component: str) -> str:
        """Uid of the one pod of a component once it is Ready; empty while it is replaced."""
        found = self.pods(component)
        return str(found[0]["metadata"]["uid"]) if len(found) == 1 and is_ready(found[0]) else ""

    def identities(self) -> dict[str, str]:
        """The uid of each pod of the run."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    def objects(self) -> list[str]:
        """Everything that carries the run's label, as kind/name."""
        labelled = self.space.kubectl("get", RUN_OBJECTS, "-l", f"shoal.dev/run={self.run}", "-o", "name").split()
        own = self.space.kubectl("get", "trainingruns", self.run, "--ignore-not-found", "-o", "name").split()
        return [*labelled, *own]

    def stored(self) -> list[str]:
        """What the bucket holds of the run, by MinIO's own folders."""
        return self.space.run(f"{NAME}-minio-0", "ls", f"/data/rollouts/shoal/{self.run}").split()

    def events(self, component: str, container: str, event: str) -> list[Object]:
        """Lines of an event that begins with these words, in the log of a component's pod."""
        text = self.space.kubectl("logs", self.pod(component), "-c", container, "--tail=-1")
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if str(line.get("event", "")).startswith(event)]

    # What is done to it.

    def patch(self, change: Object, kind: str = "trainingrun", name: str = "") -> None:
        """`kubectl patch` of the run, or of another object."""
        self.space.kubectl("patch", kind, name or self.run, "--type=merge", "-p", json.dumps(change))

    def delete_pod(self, name: str) -> str:
        """Delete a pod; returns its uid."""
        found = self.space.kube.get("Pod", name, self.space.name)
        assert found is not None
        self.space.kube.delete("Pod", name, self.space.name)
        uid: str = found["metadata"]["uid"]
        return uid

    def replaced(self, name: str, uid: str) -> bool:
        """Whether another pod of that name is Ready."""
        found = self.space.kube.get("Pod", name, self.space.name)
        return found is not None and found["metadata"]["uid"] != uid and is_ready(found)

    def cheat(self) -> Object:
        """A pod like the pool's own, ticket and policies included, whose worker claims that every answer is right."""
        pool = self.space.kube.get("StatefulSet", f"{self.run}-pool", self.space.name)
        assert pool is not None
        template = without_claims(pool["spec"]["template"])
        labels = template["metadata"]["labels"] | {"shoal.dev/set": STRANGER}
        worker = next(each for each in template["spec"]["containers"] if each["name"] == "worker")
        worker["command"] = ["python", "-c", LIE]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": STRANGER, "labels": labels},
            "spec": template["spec"],
        }

    # Waits.

    def wait(self, what: str, poll: Callable[[], Value | None], seconds: float) -> Value:
        """`Space.wait`, which says what the run's status says when it fails."""
        with self._told():
            return self.space.wait(what, poll, seconds)

    def advance(self, versions: int = 2) -> int:
        """Wait until so many more versions are announced: the run goes on. Returns the newest."""
        goal = self.version() + versions
        self.wait(f"policy version {goal}", lambda: self.version() >= goal, STEP_SECONDS * versions)
        return self.version()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            wrong = [
                f"{each['type']}: {each['reason']}: {each.get('message', '')}"
                for each in self.status().get("conditions") or []
                if each["status"] == "False" and each.get("message")
            ]
            error.add_note("; ".join(wrong) or "the run's status says nothing")
            raise


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready."""
    found = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def crashes(pod: Object) -> list[str]:
    """Containers of a pod that were started again after an error or for want of memory, and not because a probe or a person asked them to end."""
    status = pod["status"]
    listed = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    ended = {each["name"]: (each.get("lastState") or {}).get("terminated") for each in listed}
    return [
        f"{name}: {over.get('reason')}, exit code {over['exitCode']}"
        for name, over in ended.items()
        if over and (over.get("reason") == "OOMKilled" or over["exitCode"] not in (0, *ASKED))
    ]
