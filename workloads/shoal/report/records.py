"""Lines of `runs/<name>/metrics.jsonl`, and what follows from them. Pure.

The sampler appends a line for every reading; the file goes on over restarts of parts and of `shoal up` itself. A counter of a process starts at 0
with the process, so totals are sums of *increases*: `total_increase` knows a restart by another process id, or by a value that fell.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from shoal.contracts.base import Contract


class SessionRecord(Contract):
    """`shoal up` began or ended."""

    kind: Literal["session"] = "session"
    unix: float
    event: Literal["start", "stop"]
    outcome: str = ""


class SampleRecord(Contract):
    """One reading of one process: CPU seconds (user and system, with its children) and its own metrics, as `name{label="value"}`."""

    kind: Literal["sample"] = "sample"
    unix: float
    pod: str
    container: str
    pid: int | None = None
    cpu_seconds: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)


Record = Annotated[SessionRecord | SampleRecord, Field(discriminator="kind")]
_RECORD: TypeAdapter[SessionRecord | SampleRecord] = TypeAdapter(Record)


def parse_records(lines: Iterable[str]) -> tuple[list[SessionRecord | SampleRecord], int]:
    """Records of the lines, and how many lines were not readable: the last line of a killed process is cut."""
    records, unreadable = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(_RECORD.validate_json(line))
        except ValidationError:
            unreadable += 1
    return records, unreadable


def metric_key(name: str, labels: dict[str, str]) -> str:
    """`name{a="x",b="y"}`, labels in order: one metric, one key."""
    inside = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def metric_labels(key: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a key made by `metric_key`."""
    name, brace, inside = key.partition("{")
    labels: dict[str, str] = {}
    decoder = json.JSONDecoder()
    rest = inside[:-1] if brace else ""
    while rest:
        label, _, rest = rest.partition("=")
        value, end = decoder.raw_decode(rest)
        labels[label] = value
        rest = rest[end:].removeprefix(",")
    return name, labels


RELAY_POD = re.compile(r"-relay-\d+$")


def part_of(pod: str, container: str) -> str:
    """Name of a part in the report: the container's, and for nginx which one: it stands in the trainer's pod and in every relay's."""
    if container != "nginx":
        return container
    return "relay nginx" if RELAY_POD.search(pod) else "origin nginx"


Reading = tuple[float, int | None, float]
"""(unix, process id, value)."""


def increases(readings: Iterable[Reading]) -> Iterator[tuple[float, float, float]]:
    """(from unix, to unix, increase) between readings of one counter in order of time; a fresh process starts at 0.

    The first reading counts from the reading itself: nothing is known of when it grew.
    """
    before: Reading | None = None
    for unix, pid, value in readings:
        fresh = before is None or (pid != before[1]) or value < before[2]
        yield (before[0] if before else unix), unix, value if fresh or before is None else value - before[2]
        before = (unix, pid, value)


def total_increase(readings: Iterable[Reading]) -> float:
    """How much a counter grew in all, over every restart of its process."""
    return sum(increase for _, _, increase in increases(readings))


def samples_of(records: Iterable[object]) -> dict[tuple[str, str], list[SampleRecord]]:
    """Samples by (pod, container), in order of time."""
    found: dict[tuple[str, str], list[SampleRecord]] = defaultdict(list)
    for record in records:
        if isinstance(record, SampleRecord):
            found[record.pod, record.container].append(record)
    return {key: sorted(samples, key=lambda sample: sample.unix) for key, samples in found.items()}


def readings_of(samples: Iterable[SampleRecord], key: str) -> list[Reading]:
    """One metric of one process over time."""
    return [(sample.unix, sample.pid, sample.metrics[key]) for sample in samples if key in sample.metrics]


def cpu_readings(samples: Iterable[SampleRecord]) -> list[Reading]:
    return [(sample.unix, sample.pid, sample.cpu_seconds) for sample in samples if sample.cpu_seconds is not None]


def wall_seconds(records: Iterable[SessionRecord | SampleRecord]) -> float | None:
    """Seconds that `shoal up` ran, over all its sessions; pauses between them do not count. None without a session.

    A session that was killed has no end: it lasted until its last reading.
    """
    total, start, last = 0.0, None, 0.0
    for record in records:
        if isinstance(record, SessionRecord) and record.event == "start":
            if start is not None:
                total += last - start
            start = record.unix
        last = record.unix
        if isinstance(record, SessionRecord) and record.event == "stop" and start is not None:
            total += record.unix - start
            start = None
    if start is not None:
        total += last - start
    return total if any(isinstance(record, SessionRecord) for record in records) else None
