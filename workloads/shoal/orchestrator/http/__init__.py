"""The orchestrator's HTTP service: routes, who may call them, and the process."""
