"""docs/metrics.md, from the catalogue. Pure; called by `__main__`."""

from collections.abc import Sequence

from tools.observability.catalogue import LABELS, Declared

HEAD = """# Metrics

Made from the code by `make observability`; do not edit.

Every process serves its metrics on `/metrics` of its [port](ports.md). Clients that accept OpenMetrics also get exemplars with the step or the
policy version. Names end with their unit: `_seconds`, `_bytes`, `_tokens`, `_ratio` (0 to 1). Names without one are counts, or have the unit of the
paper's formula (nats for entropy and KL). The trainer reports NaN, never 0, for values that it has not measured: at its start, after a step without
rows, and for ratios and rewards in mode SFT. The chart's PodMonitor (`metrics.runMonitor`) adds `namespace`, `run`, `component`, `pod` and
`container`, which dashboards and alerts use.

[Runbooks](runbooks/README.md) describe the alerts; the dashboards are in `charts/shoal/dashboards/`.

On a cluster with the Prometheus operator and Grafana's sidecar:

```
helm upgrade shoal charts/shoal --namespace shoal-system --reset-then-reuse-values \\
    --set metrics.podMonitor.enabled=true --set metrics.runMonitor.enabled=true \\
    --set metrics.runMonitor.prometheusNamespace=monitoring --set metrics.alerts.enabled=true --set metrics.dashboards.enabled=true
```

The chart lets Prometheus into the namespaces of `operator.namespaces` and `storage.namespaces`, or into the release's own if neither is set. A run
elsewhere needs a NetworkPolicy like `shoal-metrics`.

The orchestrator serves the series of each node, so Prometheus never scrapes strangers' machines. `shoal up` writes the same metrics to
`runs/<name>/metrics.jsonl`, and your own Prometheus can scrape each port.

## Without the operators of Prometheus and Grafana

This `prometheus.yml`, in the checkout, scrapes the demo with the labels that alerts and dashboards use. The live view shows the addresses, and so
does `runs/<name>/addresses.json` (`"arithmetic-validator/0": 11` is 127.64.0.11). Those below are the demo's if no other run is active. With it every
panel of a run had data, except those of events that had not happened (rejections, evaluations).

```yaml
scrape_configs:
  - job_name: runs
    scrape_interval: 5s
    static_configs:
      - targets: ["127.64.0.2:8081"]
        labels: {namespace: local, run: arithmetic, component: discovery}
      - targets: ["127.64.0.3:8080", "127.64.0.3:9108"] # 9108: the series of single nodes
        labels: {namespace: local, run: arithmetic, component: orchestrator}
      - targets: ["127.64.0.4:9100", "127.64.0.4:9101"]
        labels: {namespace: local, run: arithmetic, component: trainer}
      - targets: ["127.64.0.6:9102", "127.64.0.7:9102"]
        labels: {namespace: local, run: arithmetic, component: relay}
      - targets: ["127.64.0.9:9103", "127.64.0.9:9104", "127.64.0.9:9105", "127.64.0.10:9103", "127.64.0.10:9104", "127.64.0.10:9105"]
        labels: {namespace: local, run: arithmetic, component: pool}
      - targets: ["127.64.0.11:9106"]
        labels: {namespace: local, run: arithmetic, component: validator}
    relabel_configs: # pod: the address, except for its port; container: by the port
      - {source_labels: [__address__], regex: "(.+):.+", target_label: pod}
      - {source_labels: [__address__], regex: ".+:(8080|9108)", target_label: container, replacement: orchestrator}
      - {source_labels: [__address__], regex: ".+:8081", target_label: container, replacement: discovery}
      - {source_labels: [__address__], regex: ".+:9100", target_label: container, replacement: trainer}
      - {source_labels: [__address__], regex: ".+:9101", target_label: container, replacement: publisher}
      - {source_labels: [__address__], regex: ".+:9102", target_label: container, replacement: sync}
      - {source_labels: [__address__], regex: ".+:9103", target_label: container, replacement: agent}
      - {source_labels: [__address__], regex: ".+:9104", target_label: container, replacement: fetch}
      - {source_labels: [__address__], regex: ".+:9105", target_label: container, replacement: worker}
      - {source_labels: [__address__], regex: ".+:9106", target_label: container, replacement: validator}
rule_files: [charts/shoal/files/alerts.yaml]
```

```sh
prometheus --config.file=prometheus.yml --web.listen-address=127.0.0.1:9090 --storage.tsdb.path=prometheus-data
```

In Grafana (which the authors have not run) add `http://127.0.0.1:9090` as a data source. Then upload the files of `charts/shoal/dashboards/` one by
one under *Dashboards*, *New*, *Import*, and choose the source at their head. Links to runbooks begin with `@runbooks@`, which the chart replaces by
`metrics.alerts.runbookUrl`: replace it by the address of your copy of `docs/runbooks` first.
"""


def page(metrics: Sequence[Declared]) -> str:
    """The whole page."""
    lines = [HEAD, "| metric | kind | labels | meaning | in |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        text = metric.help.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {text} | {', '.join(_places(metric))} |")
    lines += ["", "## Labels", "", "Every label is bounded: no text of a stranger becomes a value.", ""]
    lines += ["| label | meaning | bounded by |", "|---|---|---|"]
    used = {label for metric in metrics for label in metric.labels}
    lines += [
        f"| `{label}` | {meaning} | {bound} |" for label, (meaning, bound) in sorted(LABELS.items()) if label in used
    ]
    return "\n".join(lines) + "\n"


def _places(metric: Declared) -> Sequence[str]:
    return ("every part of a run",) if len(metric.parts) > 8 else metric.parts
