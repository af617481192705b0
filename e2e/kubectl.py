"""kubectl of tools/kubernetes, as the user of a kubeconfig and with nothing of this process's environment."""

import subprocess
from pathlib import Path

from e2e.nodes.layout import SYSTEM_PATH, built_tool


def run_kubectl(kubeconfig: Path, *arguments: str, seconds: float = 120.0, text: str | None = None) -> str:
    """What kubectl prints as the user of `kubeconfig`. Raises RuntimeError with what it complains of."""
    done = subprocess.run(
        [built_tool("kubernetes") / "kubectl", *arguments],
        env={"PATH": SYSTEM_PATH, "HOME": "/nonexistent", "KUBECONFIG": str(kubeconfig)},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
