"""Reads what Prometheus scraped of a run's parts, as the lines that `sampler` writes: so that a report of a run elsewhere has the same figures.

In: the URL of a Prometheus, the run's name, a span of time. Out: `Readings`. Every series of the chart's PodMonitors carries `namespace`, `run`,
`container` and `pod`. Its answers are bounded and checked; what it does not have is missing from the report, and a note says so.
"""

import math
from collections import defaultdict
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.report.collect import BUSY_METRIC, BYTES_SERVED_METRIC, ENGINE_METRIC, RELAY_SERVER_METRIC
from shoal.report.records import SampleRecord, SessionRecord, metric_key
from shoal.report.write import Readings
from shoal.transport.authorities import well_known
from shoal.transport.bounded import UNENCODED, AnswerTooLong, body_of

METRICS = (BUSY_METRIC, BYTES_SERVED_METRIC, ENGINE_METRIC, RELAY_SERVER_METRIC)
CPU_METRIC = "process_cpu_seconds_total"
STEPS_METRIC = "shoal_run_steps"
TARGET_LABELS = frozenset(
    {"__name__", "namespace", "run", "component", "container", "pod", "instance", "job", "endpoint"}
)
MOST_POINTS = 5000
"""Of a series in one answer; Prometheus itself refuses above 11,000."""
FINEST_SECONDS = 15.0
LARGEST_ANSWER_BYTES = 256 << 20
TIMEOUT_SECONDS = 60.0


class NoReadings(ValueError):
    """Prometheus cannot be asked, or what it says cannot be used; the message says why."""


class _Series(BaseModel):
    model_config = ConfigDict(extra="ignore")
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(BaseModel):
    model_config = ConfigDict(extra="ignore")
    result_type: Literal["matrix"] = Field(alias="resultType")
    result: Annotated[list[_Series], Field(max_length=100_000)]


def read_prometheus(url: str, run: str, begin_unix: float, end_unix: float, namespace: str | None = None) -> Readings:
    """Everything of the run between two times; raises `NoReadings`.

    `run` and `namespace` are names of Kubernetes, which cannot hold a quote. There is no process id: a restart is a counter that fell.
    """
    where = f'run="{_label(run)}"' + (f',namespace="{_label(namespace)}"' if namespace else "")
    step = max(FINEST_SECONDS, math.ceil((end_unix - begin_unix) / MOST_POINTS))
    values: dict[tuple[str, str, float], dict[str, float]] = defaultdict(dict)
    cpu: dict[tuple[str, str, float], float] = {}
    namespaces: set[str] = set()
    total: int | None = None
    with httpx.Client(verify=well_known(), trust_env=False, timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
        for name in (*METRICS, CPU_METRIC, STEPS_METRIC):
            for series in _ask(client, url, f"{name}{{{where}}}", begin_unix, end_unix, step):
                labels = series.metric
                namespaces.add(labels.get("namespace", ""))
                pod, container = labels.get("pod", ""), labels.get("container", "")
                key = metric_key(name, {each: labels[each] for each in labels.keys() - TARGET_LABELS})
                for unix, text in series.values:
                    value = _finite(text)
                    if value is None:
                        continue
                    if name == CPU_METRIC:
                        cpu[pod, container, unix] = value
                    elif name == STEPS_METRIC:
                        total = int(value)
                    else:
                        values[pod, container, unix][key] = value
    if len(namespaces) > 1:
        raise NoReadings(f"runs of the name {run} are in {', '.join(sorted(namespaces))}: say which with --namespace")
    places = sorted(values.keys() | cpu.keys(), key=lambda place: place[2])
    if not places:
        return Readings(steps_total=total, notes=[f"Prometheus has no samples of run {run} during its steps"])
    records: list[SessionRecord | SampleRecord] = [SessionRecord(unix=places[0][2], event="start")]
    records += [
        SampleRecord(
            unix=place[2], pod=place[0], container=place[1], cpu_seconds=cpu.get(place), metrics=values.get(place, {})
        )
        for place in places
    ]
    records.append(SessionRecord(unix=places[-1][2], event="stop"))
    told = f"times and CPU seconds are what Prometheus scraped, every {step:g} s; wall time is from its first to its last scrape"
    return Readings(
        records, steps_total=total, notes=[told, "CPU seconds of children of a process are not in its own metric"]
    )


def _label(name: str) -> str:
    if not name.replace("-", "").replace(".", "").isalnum() or not name.isascii():
        raise NoReadings(f"{name[:60]!r} is not a name of a run or namespace")
    return name


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _ask(client: httpx.Client, url: str, query: str, begin: float, end: float, step: float) -> list[_Series]:
    asked: dict[str, Any] = {"query": query, "start": begin, "end": end, "step": step}
    try:
        address = f"{url.rstrip('/')}/api/v1/query_range"
        with client.stream("POST", address, data=asked, headers=UNENCODED) as answer:
            body = body_of(answer, LARGEST_ANSWER_BYTES)
        if answer.status_code != 200:
            raise NoReadings(f"Prometheus at {url} answered {answer.status_code} to {query}")
        return _Answer.model_validate_json(body).data.result
    except AnswerTooLong:
        raise NoReadings(f"Prometheus answered {query} with more than {LARGEST_ANSWER_BYTES} bytes") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoReadings(f"Prometheus at {url} does not answer: {error}") from None
    except ValidationError:
        raise NoReadings(f"{url} answered {query} with something that is not Prometheus's JSON") from None


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")
    data: _Matrix
