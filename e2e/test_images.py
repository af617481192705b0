"""Every image runs as a uid that it has never heard of, on a root that it cannot write, without a capability; and the operator's is small."""

import subprocess
from collections.abc import Callable

import pytest

from e2e.conftest import ARCHIVES
from e2e.space import Object, Space

IMPORT_SECONDS = 180.0
"""For an import of torch and vLLM from a disk that others read too."""
OPERATOR_BYTES = 150e6
"""Compressed."""

STARTS: dict[str, tuple[str, ...]] = {
    "operator": ("python", "-m", "shoal_operator", "--help"),
    "protocol": ("python", "-c", "import shoal.agent.agent, shoal.discovery.discovery, shoal.orchestrator.http.service"),
    "relay": ("python", "-c", "import shoal.broadcast.relay, subprocess; subprocess.run(['nginx', '-v'], check=True)"),
    "redis": ("redis-server", "--version"),
    "minio": ("minio", "--version"),
    # Whoever looks up the name of a uid finds none: torch and vLLM do, when they are imported and when they compile.
    "trainer": ("python", "-c", "import getpass, torch, shoal.training.__main__, shoal.environments.prepare; getpass.getuser()"),
    "worker": ("python", "-c", "import getpass, vllm, shoal.inference.__main__; getpass.getuser()"),
    "validator": ("python", "-c", "import getpass, torch, shoal.validation.__main__; getpass.getuser()"),
    "node": ("shoal", "node", "join", "--help"),
}  # fmt: skip
"""What each image's programs need before they can begin. A lent machine's node is the worker's image."""


def image_of(role: str) -> str:
    return "worker" if role == "node" else role


def once(space: Space, role: str) -> Object:
    """A pod that runs the command of a role to its end."""
    pod = space.probe_pod(role, restartPolicy="Never")
    container = pod["spec"]["containers"][0]
    container.update(image=space.image(image_of(role)), command=list(STARTS[role]))
    container["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "2Gi"}}
    return pod


@pytest.mark.parametrize("role", STARTS)
def test_an_image_starts_as_any_uid_on_a_root_that_it_cannot_write(
    role: str, space: Space, need_images: Callable[..., None]
) -> None:
    need_images(image_of(role))
    space.apply(once(space, role))

    def over() -> str | None:
        phase: str = (space.kube.get("Pod", role, space.name) or {}).get("status", {}).get("phase", "")
        return phase if phase in ("Succeeded", "Failed") else None

    ended = space.wait(f"the pod of {role} to end", over, IMPORT_SECONDS)
    assert ended == "Succeeded", space.kubectl("logs", role)


def test_the_operators_image_is_small(need_images: Callable[..., None], request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--kubeconfig"):
        pytest.skip("a given cluster has its images from a registry, which says how large they are")
    need_images("operator")
    done = subprocess.run(["gzip", "-c", ARCHIVES / "operator.tar"], capture_output=True, check=True, timeout=120)
    assert len(done.stdout) < OPERATOR_BYTES
