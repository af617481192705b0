"""From a manifest file to the operator's checked objects, its rendered children and its local run.

The operator is imported when a verb needs it. What it refuses comes back as `InputWrong`, one line a mistake.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import InputWrong
from shoal.report.run_folders import LOGS_FOLDER
from shoal.report.snapshot import Part
from shoal.text import percent

if TYPE_CHECKING:
    from shoal.contracts.run import RunConfig
    from shoal_operator.api.training_run import TrainingRun
    from shoal_operator.local.containers import ContainerView
    from shoal_operator.local.pods import PodView
    from shoal_operator.local.run import LocalRun

EVERY_PART = ("pyarrow", "redis", "torch", "transformers", "vllm")
"""Packages of which the CLI alone has none."""


@dataclass(frozen=True)
class Manifest:
    """A checked manifest: where it lies, the one TrainingRun in it, and the Secrets that it refers to."""

    path: Path
    run: TrainingRun
    secrets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.run.metadata.name


def read_manifest(path: Path, secrets: Sequence[str] = ()) -> Manifest:
    """Read and check a manifest; raises `InputWrong` with one line for each mistake."""
    from shoal_operator.api.manifest import ManifestError, load_manifest
    from shoal_operator.api.training_run import TrainingRun

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputWrong(f"{path}: cannot be read: {error.strerror}; give the path of a manifest") from None
    except UnicodeDecodeError as error:
        raise InputWrong(f"{path}: is not UTF-8 text (byte {error.start}); give the path of a manifest") from None
    try:
        objects = load_manifest(text, str(path))
    except ManifestError as error:
        raise InputWrong(*str(error).splitlines()) from None
    runs = [found for found in objects if isinstance(found, TrainingRun)]
    if len(runs) != 1 or len(objects) != 1:
        kinds = ", ".join(f"{found.kind} {found.metadata.name}" for found in objects)
        raise InputWrong(
            f"{path}: holds {kinds}; this machine runs exactly one TrainingRun, and the run creates the other kinds"
        )
    return Manifest(path, runs[0], tuple(secrets))


def rendered(manifest: Manifest) -> str:
    """Every object that the operator would apply for a manifest, as YAML documents; nothing is applied and no secret is made."""
    from shoal_operator.render import render, to_yaml

    return to_yaml(render(manifest.run))


def config_of(manifest: Manifest) -> RunConfig:
    """`config/run.json` as the operator makes it of a manifest, with the addresses of a cluster and keys of zeros."""
    from shoal.contracts.run import RunConfig
    from shoal_operator.children import names
    from shoal_operator.render import render

    name = names.config(manifest.name)
    [made] = [each for each in render(manifest.run) if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", name)]
    return RunConfig.from_json(made["data"]["run.json"])


def open_local_run(manifest: Manifest, runs_dir: Path) -> OperatorRun:
    """The operator's run of a manifest on this machine; nothing is started yet. Raises `InputWrong` for what cannot work here."""
    from shoal.cli.preflight import lacking
    from shoal.report.access import has_orchestrator
    from shoal_operator.local.run import LocalRun

    if absent := [name for name in EVERY_PART if find_spec(name) is None]:
        raise InputWrong(
            f"every part of a run works on this machine, and {', '.join(absent)} are not installed here: `make setup` in a checkout of this release"
        )
    known = has_orchestrator(runs_dir / manifest.name)
    lines = [] if known else [f"{manifest.path}: {line}" for line in lacking(manifest.run.spec)]
    try:
        local = LocalRun(manifest.path, runs_dir, manifest.secrets)
    except OSError as error:
        lines.append(f"{error.filename}: cannot be read: {error.strerror}; give the path of a Secret's manifest")
    except ValueError as error:
        lines += str(error).splitlines()
    if lines:
        raise InputWrong(*lines)
    return OperatorRun(local)


def clean_up(run_dir: Path) -> int:
    """End processes that a killed `shoal up` left in `run_dir`; returns how many there were."""
    from shoal_operator.local.run import clean_up as end_left_over

    return len(end_left_over(run_dir))


class OperatorRun:
    """The operator's `LocalRun` as `driver.Driver` runs it: its pods become parts, its conditions one sentence."""

    def __init__(self, local: LocalRun) -> None:
        self._local = local
        self.name = local.name
        self.steps = local.steps
        self.run_dir = local.run_dir

    def start(self) -> None:
        self._local.start()

    def tick(self) -> None:
        self._local.tick()

    def parts(self) -> tuple[Part, ...]:
        return parts_of(self._local.pods())

    def message(self) -> str:
        said = message_of(self._local.status())
        rate = warm_start(self.run_dir / LOGS_FOLDER)
        if said == PREPARING and rate is not None and self._local.warm_start_pass_rate is not None:
            return f"{said}; warm start: {percent(rate)} correct (stops at {percent(self._local.warm_start_pass_rate)})"
        return said

    def stalled(self) -> str:
        """Why the run makes no progress; empty while it does."""
        return stalled_of(self._local.status())

    def finished(self) -> str | None:
        """None, `complete`, or `failed: why`."""
        return self._local.finished()

    def stop(self) -> None:
        self._local.stop()

    def kill(self) -> None:
        self._local.kill()


def parts_of(pods: Iterable[PodView]) -> tuple[Part, ...]:
    """One part for every container, in the order of the pods; a pod without containers yet is one part."""
    parts: list[Part] = []
    for pod in pods:
        if not pod.containers:
            parts.append(Part(pod.name, "", pod.phase, address=pod.address, message=pod.message))
        parts += [
            Part(
                pod=pod.name,
                container=container.name,
                phase=_phase(pod.phase, container),
                ready=container.ready,
                restarts=container.restarts,
                address=pod.address,
                last_exit=container.last_exit,
                pid=container.pid,
                message="" if container.ready or container.last_exit == 0 else container.message,
            )
            for container in pod.containers
        ]
    return tuple(parts)


def _phase(pod_phase: str, container: ContainerView) -> str:
    if container.state == "Exited":
        return "Succeeded" if container.last_exit == 0 else "Failed"
    return "Stopping" if pod_phase == "Stopping" else container.state


CONDITIONS_TOLD = (("Failed", "True"), ("Suspended", "True"), ("Progressing", "True"), ("Ready", "False"))
"""Which conditions say what a run waits for, most telling first."""


PREPARING = "makes the base model and the task table"
"""The operator's message (`reconcile/run_status.py`) while prepare works and nothing is wrong."""
TAIL_BYTES = 4096


def warm_start(logs: Path) -> float | None:
    """The newest pass rate in prepare's log: the progress of a generated model's warm start. None before the first."""
    try:
        newest = max(logs.glob("*/prepare.log"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return None
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            said = json.loads(line)
            if said["event"] == "warm start":
                return float(said["pass_rate"])
    return None


def stalled_of(status: Mapping[str, Any]) -> str:
    """Why the run makes no progress, since when, and what to do, from its condition `Stalled`; empty while it does."""
    found = (each for each in status.get("conditions", []) if (each["type"], each["status"]) == ("Stalled", "True"))
    return next((str(each["message"]) for each in found), "")


def message_of(status: Mapping[str, Any]) -> str:
    """The operator's message about a run, from its conditions; empty when there is nothing to say."""
    conditions = {(each["type"], each["status"]): each for each in status.get("conditions", [])}
    told = (conditions[wanted] for wanted in CONDITIONS_TOLD if wanted in conditions)
    return next((str(each.get("message") or each["reason"]) for each in told), "")
