"""docs/metrics.md, from the catalogue. Pure; called by `__main__`."""

from collections.abc import Sequence

from tools.observability.catalogue import LABELS, Declared

HEAD = """# Metrics

Made from the code by `make observability`; do not edit. Every process serves these on `/metrics` of its port (docs/architecture.md), as OpenMetrics
for who accepts it, with exemplars that name the step or the policy version. Names carry their unit: `_seconds`, `_bytes`, `_tokens`, `_ratio` (0 to
1); what has none is a count or has the unit of the paper's formula (nats for entropy and KL). In a cluster the chart's PodMonitor
(`metrics.runMonitor`) adds `namespace`, `run`, `component`, `pod` and `container`; queries of the dashboards and alerts rest on these.

Alerts over them are in [runbooks](runbooks/README.md), dashboards in `charts/shoal/dashboards/`.

On a cluster with the Prometheus operator and Grafana's sidecar:

```
helm upgrade shoal charts/shoal --reuse-values --set metrics.podMonitor.enabled=true --set metrics.runMonitor.enabled=true \\
    --set metrics.runMonitor.prometheusNamespace=monitoring --set metrics.alerts.enabled=true --set metrics.dashboards.enabled=true
```

Prometheus is let into the runs of `operator.namespaces` and `storage.namespaces`, and where neither is set into the release's own: a run elsewhere
needs a NetworkPolicy like `shoal-metrics` in its namespace.

Each node's series are told by the orchestrator, not by the node: strangers' machines are not scraped. On one machine `shoal up` reads the same pages
into `runs/<name>/metrics.jsonl`, and each port can be scraped by a Prometheus of your own.
"""


def page(metrics: Sequence[Declared]) -> str:
    """The whole page."""
    lines = [HEAD, "| metric | kind | labels | what it says | in |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        text = metric.help.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {text} | {', '.join(_places(metric))} |")
    lines += ["", "## Labels", "", "Every label is bounded: nothing that a stranger says becomes a value.", ""]
    lines += ["| label | what it says | bounded by |", "|---|---|---|"]
    used = {label for metric in metrics for label in metric.labels}
    lines += [
        f"| `{label}` | {meaning} | {bound} |" for label, (meaning, bound) in sorted(LABELS.items()) if label in used
    ]
    return "\n".join(lines) + "\n"


def _places(metric: Declared) -> Sequence[str]:
    return ("every part of a run",) if len(metric.parts) > 8 else metric.parts
