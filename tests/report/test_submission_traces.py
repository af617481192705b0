"""`shoal trace` against a real OTLP receiver over HTTP: one trace a submission, from its lease to the training step, from the store alone."""

import gzip
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from run_documents import NODE, RunFolder, step_metrics, verdict

from shoal.cli.main import app
from shoal.cli.trace import Tracer, trace, trace_endpoint
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import Verdict
from shoal.errors import InputWrong, RunFailed
from shoal.ledger.source import LedgerSource, Trust
from shoal.report.traces import span_id, trace_id

T0 = 1_795_000_000


class Receiver:
    """A collector: keeps every span with the name of its service."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[tuple[str, SentSpan]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            [service] = [each.value.string_value for each in group.resource.attributes if each.key == "service.name"]
            self.spans += [(service, span) for scope in group.scope_spans for span in scope.spans]

    def of(self, trace: str) -> dict[str, tuple[str, SentSpan]]:
        return {span.name: (service, span) for service, span in self.spans if span.trace_id.hex() == trace}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


class TracedRun(RunFolder):
    """A run whose objects have the times that a test gives them."""

    def put(self, key: str, data: bytes, at: float) -> None:
        self.store.put(key, data)
        os.utime(self.store.local_path(key), (at, at))

    def judged(self, number: int, outcome: str, at: float, reason: str | None = None) -> Verdict:
        """Leased 30 s, uploaded 10 s before the verdict, which took 4 s to find."""
        found = verdict(number, outcome, reason).model_copy(
            update={"check_seconds": 4.0, "validator": "demo-validator-0", "seconds_by_check": {"computation": 3.0}}
        )
        self.put(keys.lease(0, NODE, number), b"{}", at - 30)
        self.put(keys.submission(NODE, found.sha256), b"{}", at - 10)
        signed = sign(found, self.role_keys["validator"])
        self.put(keys.verdict(NODE, found.sha256), signed.to_json(), at)
        return found

    def sealed(self, found: Verdict, at: float) -> None:
        file = BatchFile(
            node=NODE, submission=found.submission, sha256=found.sha256, policy_version=0, rows=1, prompt_indices=[0]
        )
        batch = StepBatch(run="demo", step=0, beacon="00" * 32, groups=1, groups_dropped=0, files=[file])
        self.put(keys.step_batch(0), batch.to_json(), at)

    @property
    def source(self) -> LedgerSource:
        return LedgerSource(self.store, Trust(self.config.run_key, self.config.roster, "the test", given=True))


def seconds(span: SentSpan) -> tuple[float, float]:
    return span.start_time_unix_nano / 1e9 - T0, span.end_time_unix_nano / 1e9 - T0


def test_a_submission_is_one_trace_from_its_lease_to_the_step_that_trained_on_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    run = TracedRun(tmp_path)
    found = run.judged(1, "accept", T0 + 30)
    run.sealed(found, T0 + 35)
    metrics = step_metrics(
        0, started_unix=T0 + 20.0, finished_unix=T0 + 60.0, phase_seconds={"wait": 20.0, "update": 15.0}
    )
    run.put(keys.step_metrics(0), metrics.to_json(), T0 + 60)
    said: list[str] = []
    trace(run.source, receiver.url, said.append, follow=False)
    assert said == ["sent 1 traces; 0 submissions are not finished yet"]
    spans = receiver.of(trace_id("demo", 0, NODE, 1))
    assert {name: (service, seconds(span)) for name, (service, span) in spans.items()} == {
        "submission": ("shoal-orchestrator", (0.0, 60.0)),
        "sample and upload": ("shoal-worker", (0.0, 20.0)),
        "wait for a validator": ("shoal-orchestrator", (20.0, 26.0)),
        "verify": ("shoal-validator", (26.0, 30.0)),
        "wait for the batch": ("shoal-orchestrator", (30.0, 35.0)),
        "wait for the trainer": ("shoal-trainer", (35.0, 40.0)),
        "train": ("shoal-trainer", (40.0, 60.0)),
    }
    root = spans["submission"][1]
    assert root.parent_span_id == b""
    assert {span.parent_span_id for name, (_, span) in spans.items() if name != "submission"} == {root.span_id}
    told = {each.key: each.value for each in spans["verify"][1].attributes}
    assert told["shoal.check.computation_seconds"].double_value == 3.0
    assert {each.key: each.value for each in root.attributes}["shoal.used"].bool_value is True


def test_a_rejected_file_is_a_trace_that_failed_and_says_why(tmp_path: Path, receiver: Receiver) -> None:
    run = TracedRun(tmp_path)
    run.judged(2, "reject", T0 + 30, "sampling")
    trace(run.source, receiver.url, lambda _: None, follow=False)
    spans = receiver.of(trace_id("demo", 0, NODE, 2))
    assert set(spans) == {"submission", "sample and upload", "wait for a validator", "verify"}
    assert spans["submission"][1].status.message.startswith("sampling")


def test_what_is_not_done_waits_and_nothing_is_sent_twice(tmp_path: Path, receiver: Receiver) -> None:
    run = TracedRun(tmp_path)
    found = run.judged(1, "accept", T0 + 30)
    tracer = Tracer(run.source, receiver.url)
    assert (tracer.send(), tracer.waiting, receiver.spans) == (0, 1, [])
    run.sealed(found, T0 + 35)
    assert (tracer.send(), tracer.waiting) == (0, 1)  # sealed, and not trained yet
    run.put(keys.step_metrics(0), step_metrics(0, started_unix=T0 + 36.0, finished_unix=T0 + 60.0).to_json(), T0 + 60)
    assert (tracer.send(), tracer.waiting) == (1, 0)
    before = len(receiver.spans)
    assert (tracer.send(), len(receiver.spans)) == (0, before)
    tracer.stop()


def test_an_end_that_is_not_known_is_not_made_up(tmp_path: Path, receiver: Receiver) -> None:
    run = TracedRun(tmp_path)
    run.judged(2, "reject", T0 + 30, "sampling")
    run.store.delete(keys.lease(0, NODE, 2))
    trace(run.source, receiver.url, lambda _: None, follow=False)
    spans = receiver.of(trace_id("demo", 0, NODE, 2))
    assert "sample and upload" not in spans
    assert seconds(spans["submission"][1]) == (20.0, 30.0)


def test_traces_that_the_receiver_refuses_are_kept_for_the_next_time(tmp_path: Path, receiver: Receiver) -> None:
    run = TracedRun(tmp_path)
    run.judged(2, "reject", T0 + 30, "sampling")
    tracer = Tracer(run.source, receiver.url)
    receiver.status = 400
    with pytest.raises(RunFailed, match="nothing is lost"):
        tracer.send()
    receiver.status = 200
    assert tracer.send() == 1
    tracer.stop()


def test_ids_follow_from_the_submission_alone() -> None:
    first = trace_id("demo", 0, NODE, 1)
    assert len(first) == 32
    assert first == trace_id("demo", 0, NODE, 1)
    assert (
        len({first, trace_id("demo", 1, NODE, 1), trace_id("demo", 0, "cd" * 32, 1), trace_id("dem", 0, NODE, 1)}) == 4
    )
    assert len(span_id(first, "verify")) == 16


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "file:///etc/passwd", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputWrong, match="OTLP receiver"):
        trace_endpoint(url)
    assert trace_endpoint("http://a:4318/") == "http://a:4318/v1/traces"
    assert trace_endpoint("http://a:4318/v1/traces") == "http://a:4318/v1/traces"


def test_without_a_receiver_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with pytest.raises(InputWrong, match="off without a receiver"):
        CliRunner().invoke(app, ["trace"], catch_exceptions=False)
