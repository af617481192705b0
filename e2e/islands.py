"""Runs of mode SFT whose trainers are islands: their data set, what their manifests have in common, and the rounds that they say they made.

The data set is put into the chart's MinIO by a pod of the test's own. What every island came to after a round is in its log, as a digest.
"""

import json
import random
from collections import defaultdict
from dataclasses import dataclass

from e2e.release import NAME
from e2e.space import CONTAINER_SECURITY, SECURITY, Object
from e2e.story import STEP_SECONDS, Story, is_ready

ROLES = ("operator", "protocol", "redis", "minio", "relay", "trainer")
INNER_STEPS = 20
DATA = "data/sums.jsonl"
"""Key below the store's prefix."""
PUT = """import io, pathlib, sys
from minio import Minio
read = lambda name: pathlib.Path('/shoal/secrets/store', name).read_text().strip()
text = sys.stdin.buffer.read()
client = Minio(endpoint=sys.argv[1], access_key=read('accessKey'), secret_key=read('secretKey'), secure=False)
client.put_object(bucket_name='rollouts', object_name=sys.argv[2], data=io.BytesIO(text), length=len(text))
print(len(text))
"""


def teacher(story: Story) -> Object:
    """A pod that may reach the object store and holds its keys."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "teacher", "labels": {"shoal.dev/run": "teacher"}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": SECURITY,
            "containers": [
                {
                    "name": "teacher",
                    "image": story.space.image("protocol"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [{"name": "keys", "mountPath": "/shoal/secrets/store", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "keys", "secret": {"secretName": "shoal-storage"}}],
        },
    }


def put_data(story: Story, seed: int = 5) -> None:
    """Sums to learn, as JSON lines in the run's bucket; others for another seed."""
    chance = random.Random(seed)
    pairs = [(chance.randrange(10, 100), chance.randrange(10, 100)) for _ in range(1200)]
    rows = [{"problem_id": f"{a}+{b}", "prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in pairs]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    story.space.apply(teacher(story))
    story.space.wait_ready("teacher")
    put = ("exec", "-i", "teacher", "--", "python", "-c", PUT, f"{NAME}-minio.{story.space.name}.svc:9000")
    assert int(story.space.kubectl(*put, f"shoal/{DATA}", text=text)) == len(text)
    story.delete_pod("teacher")


def manifest(story: Story, steps: int, islands: Object, **more: Object) -> Object:
    """A run of mode SFT that exchanges after every step, seconds apart. `islands` says who they are, `more` what else the spec has."""
    resources = {"requests": {"cpu": "100m", "memory": "512Mi"}}
    spec: Object = {
        "mode": "SFT",
        "model": {"generated": {"name": "arithmetic", "warmStartPassRate": 0.05}},
        "tasks": {"environment": "arithmetic", "count": 64},
        "steps": steps,
        "seed": 7,
        "images": {role: story.space.image(role) for role in ("protocol", "redis", "relay", "trainer")},
        "sft": {
            "dataset": {"object": DATA},
            "epochs": 200, "batchRows": 16, "learningRate": 1e-3, "warmupSteps": 8, "maxSequenceLength": 32, "packLength": 256,
            "maxUpdates": steps * INNER_STEPS,
        },
        "storage": {"s3": {"endpoint": story.endpoint, "bucket": "rollouts", "credentialsSecret": "shoal-storage"}},
        "trainer": {
            "resources": resources,
            "islands": {"innerSteps": INNER_STEPS, "exchange": "float16", "waitSeconds": 30, **islands},
        },
    }  # fmt: skip
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": story.run},
        "spec": spec | more,
    }


@dataclass(frozen=True)
class Said:
    """What a trainer said of a round: who stood in it, and the digest of the state that it came to."""

    islands: tuple[str, ...]
    state: str


class Rounds:
    """The rounds of some runs, gathered from the logs of their islands; what a killed pod said before stays known."""

    def __init__(self, *stories: Story) -> None:
        self._stories = stories
        self.said: dict[int, dict[tuple[str, str], Said]] = defaultdict(dict)
        """By round, then by run and pod."""

    def look(self) -> int:
        """Read the logs of all islands; the newest round, -1 before the first."""
        for story in self._stories:
            for pod in [*story.pods("trainer"), *story.pods("island")]:
                if is_ready(pod):
                    self._read(story, pod["metadata"]["name"])
        return max(self.said, default=-1)

    def _read(self, story: Story, pod: str) -> None:
        try:
            text = story.space.kubectl("logs", pod, "-c", "trainer", "--tail=-1")
        except RuntimeError:
            return  # the pod went away meanwhile
        for line in text.splitlines():
            if line.startswith("{") and (said := json.loads(line)).get("event") == "islands exchanged":
                self.said[said["round"]][story.run, pod] = Said(tuple(said["islands"]), said["state"])

    def wait(self, what: str, rounds: int, islands: int, at_most: int | None = None) -> None:
        """Until so many islands, and no more than `at_most`, made one of the rounds after the next `rounds`."""
        goal = self.look() + rounds
        most = len(self._stories) * 16 if at_most is None else at_most

        def reached() -> bool:
            self.look()
            return any(
                islands <= len(one.islands) <= most
                for number, said in self.said.items()
                for one in said.values()
                if number >= goal
            )

        self._stories[0].wait(what, reached, STEP_SECONDS * (rounds + 1))

    def states(self) -> list[set[str]]:
        """The states of each round of which more than one pod told, and that all of its islands made together: one each when all is well."""
        told = []
        for said in self.said.values():
            together = [one for one in said.values() if len(one.islands) > 1]
            if len(together) > 1:
                told.append({one.state for one in together})
        return told
