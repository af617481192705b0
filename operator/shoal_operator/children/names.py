"""Names and ports of a run's parts (docs/architecture.md): the one place that builders, addresses and the local cluster take them from."""

DISCOVERY_PORT = 8081
ORCHESTRATOR_PORT = 8080
WEIGHTS_PORT = 8090
REDIS_PORT = 6379


def redis(run: str) -> str:
    return f"{run}-redis"


def discovery(run: str) -> str:
    return f"{run}-discovery"


def orchestrator(run: str) -> str:
    return f"{run}-orchestrator"


def trainer(run: str) -> str:
    """Prefix of the trainer's Jobs, one an attempt."""
    return f"{run}-trainer"


def relay(run: str) -> str:
    return f"{run}-relay"
