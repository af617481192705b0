"""`shoal trace`: sends one trace a submission to an OpenTelemetry collector, made from the run's store (`report.traces`). Off unless it is called.

The store has all the times, also those of strangers' machines, which need not be asked. `--follow` continues until the run ends.
"""

import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shoal.errors import InputWrong, RunFailed
from shoal.ledger.source import LedgerSource
from shoal.report.facts import StoreReader
from shoal.report.times import read_times
from shoal.report.traces import Span, spans, submissions
from shoal.storage import StoreUnavailable
from shoal.text import count, plain

FOLLOW_SECONDS = 10.0
BATCH_SPANS = 512
TIMEOUT_SECONDS = 10.0
SCOPE = InstrumentationScope("shoal")


def trace_endpoint(url: str) -> str:
    """Where spans are posted: `/v1/traces` below a collector's address, or the address itself if it says so; raises `InputWrong`."""
    if not url.startswith(("http://", "https://")):
        raise InputWrong(
            f"--otlp {plain(url, 200)}: give the http:// or https:// URL of an OTLP receiver, such as http://127.0.0.1:4318"
        )
    return url if url.rstrip("/").endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"


class Tracer:
    """Sends finished submissions, each once."""

    def __init__(self, source: LedgerSource, url: str) -> None:
        self._store = source.store
        self._run = source.trust.roster.document.run
        self._reader = StoreReader(source.store, ledger=False)
        self._exporter = OTLPSpanExporter(endpoint=trace_endpoint(url), timeout=TIMEOUT_SECONDS)
        self._resources: dict[str, Resource] = {}
        self._sent: set[tuple[str, str]] = set()
        self.waiting = 0

    def send(self) -> int:
        """Send the traces of submissions that became final; returns how many. Raises `RunFailed` when the receiver does not accept them."""
        try:
            facts, times = self._reader.read(), read_times(self._store)
        except StoreUnavailable as error:
            raise InputWrong(plain(error, 400)) from None
        sent, self.waiting = 0, 0
        batch: list[ReadableSpan] = []
        keys: list[tuple[str, str]] = []
        for found in submissions(facts, times):
            key = (found.verdict.node, found.verdict.sha256)
            if key in self._sent:
                continue
            if not found.final:
                self.waiting += 1
                continue
            batch += [self._readable(span) for span in spans(found)]
            keys.append(key)
            sent += 1
            if len(batch) >= BATCH_SPANS:
                self._post(batch, keys)
                batch, keys = [], []
        self._post(batch, keys)
        return sent

    def stop(self) -> None:
        self._exporter.shutdown()

    def _post(self, batch: Sequence[ReadableSpan], keys: Sequence[tuple[str, str]]) -> None:
        if batch and self._exporter.export(batch) != SpanExportResult.SUCCESS:
            raise RunFailed("the OTLP receiver did not accept the traces; nothing is lost: run the command again")
        self._sent.update(keys)

    def _readable(self, span: Span) -> ReadableSpan:
        resource = self._resources.setdefault(
            span.service,
            Resource({"service.name": f"shoal-{span.service}", "service.namespace": "shoal", "shoal.run": self._run}),
        )
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.span),
            parent=_context(span.trace, span.parent) if span.parent else None,
            resource=resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
            start_time=int(span.start * 1e9),
            end_time=int(span.end * 1e9),
            instrumentation_scope=SCOPE,
        )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def trace(source: LedgerSource, url: str, say: Callable[[str], None], *, follow: bool) -> None:
    """Send the traces of a run; with `follow` go on until Ctrl-C."""
    tracer = Tracer(source, url)
    try:
        while True:
            sent = tracer.send()
            if sent or not follow:
                say(f"sent {count(sent)} traces; {count(tracer.waiting)} submissions are not finished yet")
            if not follow:
                return
            time.sleep(FOLLOW_SECONDS)
    finally:
        tracer.stop()
