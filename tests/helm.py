"""The pinned Helm, for tests of the chart."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from servers import ROOT, lacking

CHART = ROOT / "charts" / "shoal"


def helm_program() -> str:
    """Path of the pinned Helm that `make tools` built."""
    found = subprocess.run([ROOT / "tools/build.sh", "--path", "helm"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        lacking("Helm", found.stderr.strip() or "run `make tools`, it builds the pinned program")
    return found.stdout.strip()


def run_helm(*arguments: str | Path, ok: bool = True, folder: Path | None = None) -> str:
    """What Helm prints, or with `ok=False` what it complains of. Nothing of the user's own Helm is read."""
    home = str(folder or "/nonexistent")
    done = subprocess.run(
        [helm_program(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={"HOME": home, "HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home, "HELM_DATA_HOME": home},
    )
    assert (done.returncode == 0) == ok, done.stderr or done.stdout
    return done.stdout if ok else done.stderr


def render(*options: str | Path) -> list[dict[str, Any]]:
    """The chart's objects with these options, in namespace `shoal-system`, hooks included."""
    printed = run_helm("template", "shoal", CHART, "--namespace", "shoal-system", *options)
    return [each for each in yaml.safe_load_all(printed) if each]
