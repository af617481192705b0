"""What is made from the metrics that the code declares: docs/metrics.md and the Grafana dashboards of the chart (`make observability`)."""
